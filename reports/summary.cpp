#include "reports/summary.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "reports/parts.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

// Numbers in their order, everything else behind them.
int64_t place_of(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const bool is_number = std::from_chars(text.data(), end, value).ptr == end && !text.empty();
  return is_number ? value : std::numeric_limits<int64_t>::max();
}

LaneTotal& total_for(Group& group, const std::string& name) {
  for (LaneTotal& total : group.lanes)
    if (total.name == name) return total;
  return group.lanes.emplace_back(LaneTotal{.name = name});
}

void add_lane(LaneTotal& total, const Lane& lane) {
  if (lane.verdict == Verdict::Skipped || lane.verdict == Verdict::NotRun) return;
  ++total.cases;
  total.compared += lane.compared;
  total.differing += lane.differing;
  if (went_wrong(lane.verdict)) ++total.wrong;
  if (worse_margin(lane.margin, total.margin)) total.margin = lane.margin;
  if (lane.worst && worse_margin(lane.worst->ulp, total.ulp)) total.ulp = lane.worst->ulp;
}

void add_case(Group& group, const Case& one) {
  group.counts.add(one);
  group.seconds += one.seconds;
  group.cases.push_back(&one);
  for (const Lane& lane : one.lanes) {
    add_lane(total_for(group, lane.name), lane);
    if (worse_margin(lane.margin, group.margin)) group.margin = lane.margin;
  }
}

double worst_margin(const Case& one) {
  double worst = 0;
  for (const Lane& lane : one.lanes)
    if (worse_margin(lane.margin, worst)) worst = lane.margin;
  return worst;
}

const char* verdict_of(const Counts& sum) {
  if (sum.failed > 0) return "FAILED";
  if (sum.went_wrong() > 0) return "BROKEN";
  if (sum.not_run > 0) return "NOT ALL RUN";
  return sum.compared == 0 || sum.vacuous > 0 ? "INCONCLUSIVE" : "HELD";
}

std::string problems(const Counts& sum) {
  std::string out;
  for (const Verdict verdict :
       {Verdict::Failed, Verdict::Crashed, Verdict::TimedOut, Verdict::NotRun})
    if (sum.of(verdict) > 0) out += ", " + grouped(sum.of(verdict)) + " " + spoken(verdict);
  if (sum.vacuous > 0) out += ", " + grouped(sum.vacuous) + " empty";
  return out;
}

}  // namespace

Verdict Group::verdict() const {
  const auto happened = [this](Verdict verdict) { return counts.of(verdict) > 0; };
  const auto worst = std::find_if(kVerdicts.begin(), kVerdicts.end(), happened);
  return worst == kVerdicts.end() ? Verdict::NotRun : *worst;
}

const LaneTotal* Group::lane(const std::string& name) const {
  for (const LaneTotal& total : lanes)
    if (total.name == name) return &total;
  return nullptr;
}

std::string lane_text(const Group& group, const std::string& lane_name) {
  const LaneTotal* lane = group.lane(lane_name);
  if (lane == nullptr || lane->cases == 0) return "-";
  return lane_name == "bounded" ? short_number(lane->margin) : grouped(lane->differing);
}

bool all_hold(const Counts& counts) {
  return counts.executed() == counts.held() && counts.vacuous == 0 && counts.held() > 0;
}

std::vector<ContractRow> contract_rows(const Run& run) {
  std::map<std::pair<std::string, std::string>, std::size_t> places;
  std::vector<ContractRow> rows;
  for (const Statement& statement : run.statements) {
    places[{statement.section, statement.name}] = rows.size();
    rows.push_back({&statement, {}, {}});
  }
  for (const Case& one : run.cases) {
    const std::string section = dimension(one, "section"), stage = dimension(one, "stage");
    for (const std::string& name : {std::string(), dimension(one, "case")}) {
      const auto found = places.find({section, name});
      if (found == places.end()) continue;
      rows[found->second].stages[stage].add(one);
      rows[found->second].sum.add(one);
    }
  }
  return rows;
}

std::string held_text(const Counts& counts) {
  if (counts.executed() == 0) return "-";
  if (all_hold(counts)) return grouped(counts.held());
  return grouped(counts.held() - counts.vacuous) + "/" + grouped(counts.executed());
}

bool worse_margin(double a, double b) {
  if (std::isnan(b)) return false;
  return std::isnan(a) || a > b;
}

std::vector<std::string> values(const Run& run, const std::string& dimension_name) {
  std::vector<std::string> found;
  for (const Case& one : run.cases) {
    const std::string value = dimension(one, dimension_name);
    if (std::find(found.begin(), found.end(), value) == found.end()) found.push_back(value);
  }
  std::stable_sort(found.begin(), found.end(), [](const std::string& a, const std::string& b) {
    return place_of(a) < place_of(b);
  });
  return found;
}

std::vector<Group> group_by(const Run& run, const std::vector<std::string>& dimension_names) {
  std::vector<std::map<std::string, size_t>> order;
  for (const std::string& name : dimension_names) {
    std::map<std::string, size_t>& places = order.emplace_back();
    for (const std::string& value : values(run, name)) places.emplace(value, places.size());
  }
  std::map<std::vector<size_t>, Group> groups;
  for (const Case& one : run.cases) {
    std::vector<std::string> key;
    std::vector<size_t> place;
    for (size_t i = 0; i < dimension_names.size(); ++i) {
      key.push_back(dimension(one, dimension_names[i]));
      place.push_back(order[i].at(key.back()));
    }
    Group& group = groups[place];
    group.key = std::move(key);
    add_case(group, one);
  }
  std::vector<Group> out;
  for (auto& [place, group] : groups) out.push_back(std::move(group));
  return out;
}

Group whole(const Run& run) {
  Group all;
  for (const Case& one : run.cases) add_case(all, one);
  return all;
}

std::vector<const Case*> wrong_cases(const Run& run) {
  std::vector<const Case*> out;
  for (const Case& one : run.cases)
    if (went_wrong(one.verdict) || vacuous(one)) out.push_back(&one);
  return out;
}

std::vector<const Case*> worst_first(std::vector<const Case*> cases) {
  std::stable_sort(cases.begin(), cases.end(), [](const Case* a, const Case* b) {
    const bool a_failed = a->verdict == Verdict::Failed;
    const bool b_failed = b->verdict == Verdict::Failed;
    return a_failed != b_failed ? a_failed : worse_margin(worst_margin(*a), worst_margin(*b));
  });
  return cases;
}

std::vector<Reason> reasons(const Run& run) {
  std::map<std::pair<std::string, Verdict>, int64_t> found;
  for (const Case& one : run.cases)
    if (one.verdict == Verdict::Skipped || one.verdict == Verdict::NotRun)
      ++found[{first_line(message_of(one)), one.verdict}];
  for (const auto& [text, cases] : run.not_run) found[{text, Verdict::NotRun}] += cases;
  std::vector<Reason> out;
  for (const auto& [key, cases] : found) out.push_back({key.second, key.first, cases});
  std::stable_sort(out.begin(), out.end(),
                   [](const Reason& a, const Reason& b) { return a.cases > b.cases; });
  return out;
}

std::vector<PartRange> part_ranges(const Run& run) {
  if (run.parts.empty()) return {{"", 0, run.cases.size()}};
  std::vector<PartRange> ranges;
  std::size_t begin = 0;
  for (const Part& part : run.parts) {
    const auto end = std::min(begin + static_cast<std::size_t>(part.cases), run.cases.size());
    ranges.push_back({part.name, begin, end});
    begin = end;
  }
  return ranges;
}

std::vector<std::string> part_lines(const Run& run) {
  std::vector<std::string> lines;
  const auto ranges = part_ranges(run);
  for (std::size_t i = 0; i < run.parts.size(); ++i) {
    Counts sum;
    for (auto at = ranges[i].begin; at < ranges[i].end; ++at) sum.add(run.cases[at]);
    const bool is_broken_engine = !run.engine_failure.empty();
    const bool is_void = !run.self_checks.empty() && !self_checked(run);
    lines.push_back(run.parts[i].name + ": " +
                    (is_broken_engine ? "FAILED"
                     : is_void        ? "VOID"
                                      : verdict_of(sum)) +
                    "  " + count_of(run.parts[i].cases, "case") + problems(sum) + ", " +
                    elements_text(sum, run.parts[i].wall_s));
  }
  return lines;
}

}  // namespace equigrad::reports
