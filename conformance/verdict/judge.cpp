#include "conformance/verdict/judge.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "conformance/verdict/divergence_judge.hpp"
#include "conformance/verdict/lane_tally.hpp"
#include "conformance/verdict/picture_judge.hpp"

namespace equigrad::conformance {
namespace {

using ranks::Outcome;
using reports::Lane;
using reports::Verdict;

// Sums one lane over the ranks; the worst element is the worst of all ranks.
Lane sum_lane(const std::string& name, const std::vector<Outcome>& outcomes) {
  Lane lane;
  lane.name = name;
  const bool bounded = name == "bounded";
  double worst_badness = -1;
  for (const auto& outcome : outcomes) {
    const auto& part = outcome.answer.at(name);
    lane.compared += part.at("compared").get<int64_t>();
    lane.differing += part.at("differing").get<int64_t>();
    lane.margin = std::max(lane.margin, exact_value(part.at("margin")));
    const auto& worst = part.at("worst");
    if (worst.is_null()) continue;
    const double badness = exact_value(bounded ? part.at("margin") : worst.at("ulp"));
    if (badness <= worst_badness) continue;
    worst_badness = badness;
    lane.worst = {worst.at("tensor"),
                  worst.at("index"),
                  exact_value(worst.at("got")),
                  exact_value(worst.at("want")),
                  exact_value(worst.at("bound")),
                  exact_value(worst.at("ulp"))};
  }
  if (lane.differing > 0)
    lane.verdict = Verdict::Failed;
  else
    lane.verdict = bounded && lane.margin > 0 ? Verdict::Within : Verdict::Equal;
  if (!bounded && lane.differing > 0) lane.margin = std::numeric_limits<double>::infinity();
  return lane;
}

// What each rank saw first: the rank whose line is earliest in the run is where to look.
std::string first_findings(const std::string& lane, const std::vector<Outcome>& outcomes) {
  std::string text;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string first = outcomes[rank].answer.at(lane).at("first");
    if (!first.empty())
      text += "  " + lane + ", rank " + std::to_string(rank) + " first: " + first + "\n";
  }
  return text;
}

// The line of the first divergence, and what its rank, or the next one that knows, makes of it.
std::string first_text(const Judged& judged, const std::vector<Outcome>& outcomes) {
  std::string text = judged.first ? line_of(*judged.first) : "";
  if (judged.first) {
    const auto& answer = outcomes.at(static_cast<std::size_t>(judged.first->rank)).answer;
    if (answer.value("text", "") != "") return text + answer.at("text").get<std::string>();
  }
  for (const auto& outcome : outcomes)
    if (outcome.answer.value("text", "") != "")
      return text + outcome.answer.at("text").get<std::string>();
  return text;
}

struct Held {
  bool held = true;
  double margin = 0;
};
using HeldByName = std::map<std::string, Held>;

// One step's gradients, over all ranks: a tensor holds if it does on every rank.
HeldByName gradients_of(const std::vector<Outcome>& outcomes, std::size_t step) {
  HeldByName gradients;
  for (const auto& outcome : outcomes)
    for (const auto& row : outcome.answer.at("gradients").at(step)) {
      auto& gradient = gradients[row.at(0)];
      gradient.held = gradient.held && row.at(1).get<bool>();
      gradient.margin = std::max(gradient.margin, exact_value(row.at(2)));
    }
  return gradients;
}

// "7 of 8 gradients of step 1 held, smallest headroom 3.2x (fc.weight)": of the first step in which
// one did not, else of the last.
std::string rest_line(const std::vector<Outcome>& outcomes) {
  const std::size_t steps = outcomes.at(0).answer.at("gradients").size();
  const auto holds = [](const auto& entry) { return entry.second.held; };
  for (std::size_t step = 0; step < steps; ++step) {
    const auto gradients = gradients_of(outcomes, step);
    const auto held = std::count_if(gradients.begin(), gradients.end(), holds);
    if (held == static_cast<std::ptrdiff_t>(gradients.size()) && step + 1 < steps) continue;
    std::string text = "    rest    " + std::to_string(held) + " of " +
                       std::to_string(gradients.size()) + " gradients of step " +
                       std::to_string(step + 1) + " held";
    const auto least =
        std::max_element(gradients.begin(), gradients.end(), [](const auto& a, const auto& b) {
          return (a.second.held ? a.second.margin : 0) < (b.second.held ? b.second.margin : 0);
        });
    if (least != gradients.end() && least->second.held && least->second.margin > 0) {
      char times[32];
      std::snprintf(times, sizeof times, "%.1fx", 1 / least->second.margin);
      text += std::string(", smallest headroom ") + times + " (" + least->first + ")";
    }
    return text + "\n";
  }
  return {};
}

// "fail/ID/{rank0.safetensors,rank1.safetensors}": they are all in one folder.
std::string files_line(const std::vector<std::string>& files) {
  if (files.empty()) return {};
  std::string names;
  for (const auto& file : files)
    names += (names.empty() ? "" : ",") + file.substr(file.rfind('/') + 1);
  return "    files   " + files[0].substr(0, files[0].rfind('/')) + "/{" + names + "}\n";
}

void sum_up(Judged& judged, const std::vector<Outcome>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& answer = outcomes[rank].answer;
    judged.digest += answer.at("digest").get<uint64_t>();
    judged.digested += answer.at("digested").get<int64_t>();
    HeldMemory memory;
    for (const auto& row : answer.at("memory"))
      memory[row.at(0)] = {row.at(1).get<int64_t>(), row.at(2).get<int64_t>()};
    if (judged.memory.empty() || total_bytes(memory) > total_bytes(judged.memory))
      judged.memory = std::move(memory);
    for (const auto& file : answer.value("files", nlohmann::json::array()))
      judged.record.files.push_back("fail/" + judged.record.id + "/" + file.get<std::string>());
  }
}

// A comparison with nothing in it proves nothing: names the first kind that no rank compared, but
// for those that the ranks themselves say they could not.
std::string empty_comparison(const std::vector<Outcome>& outcomes) {
  const auto excused = outcomes.at(0).answer.value("not_compared", nlohmann::json::object());
  for (const char* kind : {"loss", "loss_scale", "norm", "gradient", "master", "parameter", "bound",
                           "update", "getter", "ledger", "caller"}) {
    if (excused.contains(kind)) continue;
    int64_t elements = 0;
    for (const auto& outcome : outcomes)
      elements += outcome.answer.at("compared").value(kind, int64_t{0});
    if (elements == 0) return std::string("nothing was compared of the kind ") + kind;
  }
  return {};
}

// Said whatever the verdict is.
std::string not_compared_lines(const std::vector<Outcome>& outcomes) {
  const auto excused = outcomes.at(0).answer.value("not_compared", nlohmann::json::object());
  std::string text;
  for (const auto& [kind, why] : excused.items())
    text += "  not compared  " + kind + ": " + why.get<std::string>() + "\n";
  return text;
}

// Of which stages the digests of a tuple must agree.
int agreement_class(const CaseSpec& spec) {
  return spec.accumulation == 1 || sums_exactly(spec.precision) ? 0 : spec.stage / 2;
}

void cross_check_class(const std::vector<CaseSpec>& specs, const std::vector<Judged*>& cases) {
  if (cases.size() < 2) return;
  std::map<uint64_t, std::vector<Judged*>> groups;
  for (Judged* one : cases) groups[one->digest].push_back(one);
  // A result that passed in the other lanes weighs more than any number of others that are alike.
  const auto weight = [](const std::vector<Judged*>& alike) {
    const auto passed = [](const Judged* one) { return reports::passed(one->record.verdict); };
    return std::pair(std::count_if(alike.begin(), alike.end(), passed), alike.size());
  };
  const auto majority = std::max_element(
      groups.begin(), groups.end(),
      [&](const auto& a, const auto& b) { return weight(a.second) < weight(b.second); });
  for (Judged* one : cases) {
    Lane lane{"cross", Verdict::Equal, one->digested, 0, 0, std::nullopt};
    if (one->digest != majority->first) {
      lane.verdict = Verdict::Failed;
      lane.differing = 1;  // a digest says that something differs, not how much
      lane.margin = std::numeric_limits<double>::infinity();
      const bool only_here = reports::passed(one->record.verdict);
      one->record.verdict = Verdict::Failed;
      // One case alone has nothing to be compared with: the replay takes all of its tuple.
      const auto at = one->record.replay.find(one->record.id);
      if (only_here && at != std::string::npos)
        one->record.replay.replace(at, one->record.id.size(), specs.front().tuple() + ".");
      one->record.message += "  cross   its results differ from those of " +
                             std::to_string(majority->second.size()) + " cases, such as " +
                             majority->second.front()->record.id + "\n";
    }
    one->record.lanes.push_back(lane);
  }
}

// Of every place along tensor by itself: its ranks share the parts that they have.
std::string problem_of_cover(int stage, const std::vector<Outcome>& outcomes) {
  std::map<int, std::vector<nlohmann::json>> cover;
  for (const auto& outcome : outcomes)
    cover[outcome.answer.value("tensor_rank", 0)].push_back(outcome.answer.at("cover"));
  for (const auto& [place, rows] : cover) {
    const auto problem = cover_problem(stage, rows);
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace

int64_t total_bytes(const HeldMemory& memory) {
  const auto total = memory.find("total");
  if (total != memory.end()) return total->second.first;
  return std::accumulate(memory.begin(), memory.end(), int64_t{0},
                         [](int64_t sum, const auto& row) { return sum + row.second.first; });
}

Verdict verdict_of_failure(const std::vector<Outcome>& outcomes) {
  const auto any = [&](Outcome::Kind kind) {
    return std::any_of(outcomes.begin(), outcomes.end(),
                       [&](const Outcome& outcome) { return outcome.kind == kind; });
  };
  if (any(Outcome::Kind::Died)) return Verdict::Crashed;
  if (any(Outcome::Kind::TimedOut)) return Verdict::TimedOut;
  const bool thrown = std::any_of(outcomes.begin(), outcomes.end(), [](const Outcome& outcome) {
    return outcome.kind == Outcome::Kind::Error && !ranks::is_infrastructure_error(outcome);
  });
  return thrown ? Verdict::Failed : Verdict::Crashed;
}

reports::Case record_of(const CaseSpec& spec, const std::string& replay) {
  reports::Case record;
  record.id = spec.id();
  record.dimensions = spec.dimensions();
  record.replay = replay;
  return record;
}

std::string cover_problem(int stage, const std::vector<nlohmann::json>& cover) {
  struct Pieces {
    int64_t numel = 0;
    std::vector<std::pair<int64_t, int64_t>> ranges;
  };
  std::map<std::string, Pieces> parameters;
  for (const auto& rows : cover)
    for (const auto& row : rows) {
      auto& pieces = parameters[row.at(0)];
      pieces.numel = row.at(3);
      pieces.ranges.emplace_back(row.at(1), row.at(2));
    }
  for (auto& [name, pieces] : parameters) {
    if (pieces.ranges.size() != cover.size())
      return name + " is held by " + std::to_string(pieces.ranges.size()) + " of " +
             std::to_string(cover.size()) + " ranks";
    std::sort(pieces.ranges.begin(), pieces.ranges.end());
    int64_t next = 0;
    for (const auto& [begin, end] : pieces.ranges) {
      const bool whole = begin == 0 && end == pieces.numel;
      const bool fits = stage == 0 ? whole : begin == end || begin == next;
      if (!fits || end < begin)
        return name + " has a shard [" + std::to_string(begin) + ", " + std::to_string(end) +
               ") where " + std::to_string(next) + " of " + std::to_string(pieces.numel) +
               " elements are covered";
      next = std::max(next, end);
    }
    if (next != pieces.numel)
      return name + " is covered up to element " + std::to_string(next) + " of " +
             std::to_string(pieces.numel);
  }
  return parameters.empty() ? "no rank holds a shard" : "";
}

std::optional<bool> acted(const std::vector<Outcome>& outcomes) {
  std::optional<bool> any;
  if (!ranks::all_ok(outcomes)) return any;
  for (const auto& outcome : outcomes)
    if (outcome.answer.contains("acted"))
      any = any.value_or(false) || outcome.answer.at("acted").at("times") > 0;
  return any;
}

Judged judge(const CaseSpec& spec, const std::string& replay,
             const std::vector<Outcome>& outcomes) {
  auto record = record_of(spec, replay);
  if (!spec.is_refused() || !ranks::all_ok(outcomes))
    return judge(std::move(record), spec.stage, outcomes);
  record.acted = acted(outcomes);
  record.lanes = {sum_lane("exact", outcomes)};
  record.verdict = record.lanes[0].verdict;
  if (record.verdict == Verdict::Failed) record.message = first_findings("exact", outcomes);
  Judged judged;
  judged.record = std::move(record);
  return judged;
}

Judged judge(reports::Case of_case, int stage, const std::vector<Outcome>& outcomes) {
  Judged judged;
  judged.record = std::move(of_case);
  auto& record = judged.record;
  record.acted = acted(outcomes);
  if (!ranks::all_ok(outcomes)) {
    record.verdict = verdict_of_failure(outcomes);
    judged.first = first_failure(outcomes);
    record.message = (judged.first ? line_of(*judged.first) : "") + ranks::failures(outcomes);
    return judged;
  }
  judged.answered = true;
  sum_up(judged, outcomes);
  record.lanes = {sum_lane("exact", outcomes), sum_lane("bounded", outcomes)};
  std::string problem = problem_of_cover(stage, outcomes);
  if (problem.empty()) {
    problem = empty_comparison(outcomes);
    judged.only_empty =
        !problem.empty() && record.lanes[0].differing == 0 && record.lanes[1].differing == 0;
  }
  if (!problem.empty()) {
    auto& exact = record.lanes[0];
    exact.verdict = Verdict::Failed;
    ++exact.differing;
  }
  record.verdict = Verdict::Equal;
  for (const auto& lane : record.lanes)
    if (lane.verdict == Verdict::Failed) record.verdict = Verdict::Failed;
  if (record.verdict == Verdict::Failed) {
    judged.first = first_of(outcomes);
    record.message = first_text(judged, outcomes) + first_findings("exact", outcomes) +
                     first_findings("bounded", outcomes);
    record.picture = picture_from(outcomes, judged.first ? judged.first->rank : 0);
    if (!problem.empty()) record.message += "  checks  " + problem + "\n";
    record.message += rest_line(outcomes) + files_line(record.files);
  }
  record.message += not_compared_lines(outcomes);
  return judged;
}

void cross_check(const std::vector<CaseSpec>& specs, std::vector<Judged*> cases) {
  std::map<int, std::vector<Judged*>> classes;
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (cases[i]->answered) classes[agreement_class(specs[i])].push_back(cases[i]);
  for (const auto& [number, members] : classes) cross_check_class(specs, members);
}

}  // namespace equigrad::conformance
