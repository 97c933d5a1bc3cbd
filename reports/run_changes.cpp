#include "reports/run_changes.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>

#include "reports/json_text.hpp"
#include "reports/merge.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr std::size_t kListed = 20;  // in the text; the JSON has all
constexpr std::size_t kTimes = 5;

// How little a case says; a larger one is worse.
enum class Says { Passed, Nothing, Skipped, NotRun, Wrong };

Says says(const Case& one) {
  if (went_wrong(one.verdict)) return Says::Wrong;
  if (one.verdict == Verdict::NotRun) return Says::NotRun;
  if (one.verdict == Verdict::Skipped) return Says::Skipped;
  return vacuous(one) ? Says::Nothing : Says::Passed;
}

bool has_equal_numbers(const Lane& a, const Lane& b) {
  const auto numbers = [](const Lane& lane) {
    const Worst worst = lane.worst.value_or(Worst{});
    return std::tuple(lane.name, lane.verdict, lane.compared, lane.differing,
                      std::bit_cast<uint64_t>(lane.margin), worst.tensor, worst.index,
                      std::bit_cast<uint64_t>(worst.got), std::bit_cast<uint64_t>(worst.want));
  };
  return numbers(a) == numbers(b);
}

void add_pair(RunChanges& to, const CasePair& pair) {
  const auto before = says(*pair.before), after = says(*pair.after);
  if (before != Says::Wrong && after == Says::Wrong)
    to.newly_failing.push_back(pair);
  else if (before != Says::Passed && after == Says::Passed)
    to.newly_passing.push_back(pair);
  else if (after > before)
    to.lost.push_back(pair);
  else if (pair.before->verdict != pair.after->verdict || before != after)
    to.other.push_back(pair);
  else if (!has_same_numbers(pair))
    to.numbers.push_back(pair);
  if (passed(pair.before->verdict) && passed(pair.after->verdict)) to.timed.push_back(pair);
}

std::string verdicts_text(const CasePair& pair) {
  return spoken(pair.before->verdict) + " -> " + spoken(pair.after->verdict) +
         (vacuous(*pair.after) && !vacuous(*pair.before) ? ", compares nothing" : "");
}

void add_pairs(std::string& text, const std::string& title, const std::vector<CasePair>& pairs,
               bool with_cause) {
  if (pairs.empty()) return;
  text += title + ": " + count_of(pairs.size(), "case") + "\n";
  for (std::size_t i = 0; i < std::min(pairs.size(), kListed); ++i) {
    text += "  " + clean(pairs[i].after->id) + "  " + verdicts_text(pairs[i]) + "\n";
    const auto cause = with_cause ? first_line(clean(message_of(*pairs[i].after))) : "";
    if (!cause.empty()) text += "    " + cause + "\n";
  }
  if (pairs.size() > kListed)
    text += "  and " + grouped(pairs.size() - kListed) + " more: --json - has all\n";
}

void add_only(std::string& text, const std::string& name, const std::vector<const Case*>& cases) {
  if (cases.empty()) return;
  text += "only in " + name + ": " + count_of(cases.size(), "case") + "\n";
  for (std::size_t i = 0; i < std::min(cases.size(), kListed); ++i)
    text += "  " + clean(cases[i]->id) + "  " + spoken(cases[i]->verdict) + "\n";
  if (cases.size() > kListed)
    text += "  and " + grouped(cases.size() - kListed) + " more: --json - has all\n";
}

std::string lane_change(const Lane& a, const Lane& b) {
  std::string text = a.name + ": " + grouped(a.differing) + " of " + grouped(a.compared) +
                     " differ -> " + grouped(b.differing) + " of " + grouped(b.compared);
  if (a.margin != b.margin)
    text += ", margin " + short_number(a.margin) + " -> " + short_number(b.margin);
  if (a.worst && b.worst)
    text += ", worst " + clean(b.worst->tensor) + "[" + std::to_string(b.worst->index) + "] got " +
            shortest(a.worst->got) + " -> " + shortest(b.worst->got) + ", want " +
            shortest(a.worst->want) + " -> " + shortest(b.worst->want);
  return text;
}

std::string numbers_text(const CasePair& pair) {
  if (pair.before->lanes.size() != pair.after->lanes.size()) return "    other lanes\n";
  std::string text;
  for (std::size_t i = 0; i < pair.after->lanes.size(); ++i)
    if (!has_equal_numbers(pair.before->lanes[i], pair.after->lanes[i]))
      text += "    " + lane_change(pair.before->lanes[i], pair.after->lanes[i]) + "\n";
  return text;
}

struct Times {
  double before = 0, after = 0;
  double ratio() const { return after / before; }
};

Times sums_of(const std::vector<CasePair>& pairs) {
  Times sum;
  for (const auto& pair : pairs) {
    sum.before += pair.before->seconds;
    sum.after += pair.after->seconds;
  }
  return sum;
}

std::string time_change(const Times& times) {
  return seconds_text(times.before) + " -> " + seconds_text(times.after) +
         (times.before > 0 ? ", x " + formatted("%.2f", times.ratio()) : "");
}

void add_times(std::string& text, const RunChanges& changes) {
  if (changes.timed.empty()) return;
  text += "time of the " + count_of(changes.timed.size(), "case") +
          " that both passed: " + time_change(sums_of(changes.timed)) + "\n";
  auto pairs = changes.timed;
  const auto far = [](const CasePair& pair) {
    return std::abs(pair.after->seconds - pair.before->seconds);
  };
  const auto count = static_cast<std::ptrdiff_t>(std::min(kTimes, pairs.size()));
  std::partial_sort(pairs.begin(), pairs.begin() + count, pairs.end(),
                    [&](const CasePair& a, const CasePair& b) { return far(a) > far(b); });
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const auto& pair = pairs[static_cast<std::size_t>(i)];
    text += "  " + clean(pair.after->id) + "  " + time_change(sums_of({pair})) + "\n";
  }
  text +=
      "  One run each, on machines that may be others or busy: no measurement of speed. "
      "docs/performance.md says what measures it.\n";
}

std::vector<std::tuple<std::string, std::string, std::string>> differing_settings(
    const RunChanges& changes) {
  const auto& a = changes.before->environment;
  const auto& b = changes.after->environment;
  std::vector<std::tuple<std::string, std::string, std::string>> differing;
  const auto add = [&](const char* name, const std::string& before, const std::string& after) {
    if (before != after) differing.emplace_back(name, clean(before), clean(after));
  };
  add("version", a.version, b.version);
  add("commit", a.commit, b.commit);
  add("torch", a.torch, b.torch);
  add("compiler", a.compiler, b.compiler);
  add("device", a.device, b.device);
  add("cpu", a.cpu, b.cpu);
  add("cores", std::to_string(a.cores), std::to_string(b.cores));
  add("os", a.os, b.os);
  add("seed", std::to_string(changes.before->seed), std::to_string(changes.after->seed));
  add("command", changes.before->command, changes.after->command);
  return differing;
}

Json changes_json(const std::vector<CasePair>& pairs) {
  Json list = Json::array();
  for (const auto& pair : pairs)
    list.push_back({{"id", clean(pair.after->id)},
                    {"before", word(pair.before->verdict)},
                    {"after", word(pair.after->verdict)},
                    {"message", clean(pair.after->message)}});
  return list;
}

Json changes_json(const std::vector<const Case*>& cases) {
  Json list = Json::array();
  for (const auto* one : cases)
    list.push_back({{"id", clean(one->id)}, {"verdict", word(one->verdict)}});
  return list;
}

Json changes_json(const Lane& lane) {
  Json json = {{"compared", lane.compared}, {"differing", lane.differing}, {"margin", lane.margin}};
  if (lane.worst)
    json["worst"] = {{"tensor", clean(lane.worst->tensor)},
                     {"index", lane.worst->index},
                     {"got", lane.worst->got},
                     {"want", lane.worst->want}};
  return json;
}

Json numbers_json(const std::vector<CasePair>& pairs) {
  Json list = Json::array();
  for (const auto& [before, after] : pairs) {
    Json lanes = Json::object();
    for (std::size_t i = 0; i < std::min(before->lanes.size(), after->lanes.size()); ++i)
      if (!has_equal_numbers(before->lanes[i], after->lanes[i]))
        lanes[after->lanes[i].name] = {{"before", changes_json(before->lanes[i])},
                                       {"after", changes_json(after->lanes[i])}};
    list.push_back({{"id", clean(after->id)}, {"lanes", lanes}});
  }
  return list;
}

Json times_json(const RunChanges& changes) {
  Json list = Json::array();
  for (const auto& [before, after] : changes.timed)
    list.push_back(
        {{"id", clean(after->id)}, {"before", before->seconds}, {"after", after->seconds}});
  const auto sum = sums_of(changes.timed);
  return {{"before", sum.before}, {"after", sum.after}, {"cases", list}};
}

Json side_json(const Run& run, const std::string& name) {
  return {{"name", clean(name)},
          {"outcome", word(outcome(run))},
          {"seed", std::to_string(run.seed)},
          {"command", clean(run.command)},
          {"environment", run.environment}};
}

bool holds_no_more(const RunChanges& changes) {
  return outcome(*changes.before) == Outcome::Held && outcome(*changes.after) != Outcome::Held;
}

std::size_t wrong_of(const std::vector<const Case*>& cases) {
  return static_cast<std::size_t>(std::count_if(
      cases.begin(), cases.end(), [](const Case* one) { return went_wrong(one->verdict); }));
}

// What "not worse" says nothing about: cases that only one of the two has.
std::string limits_of(const RunChanges& changes, const std::string& before,
                      const std::string& after) {
  const auto lost = wrong_of(changes.only_before), fresh = wrong_of(changes.only_after);
  if (changes.only_before.empty() && fresh == 0) return "";
  std::string text = "  of the " + count_of(changes.both_have, "case") + " that both have";
  if (!changes.only_before.empty())
    text += "; " + grouped(changes.only_before.size()) + " of " + clean(before) + " are not in " +
            clean(after) + (lost > 0 ? ", " + grouped(lost) + " of which went wrong" : "");
  if (fresh > 0) text += "; " + grouped(fresh) + " that only " + clean(after) + " has went wrong";
  return text;
}

}  // namespace

bool has_same_numbers(const CasePair& pair) {
  const auto& [a, b] = pair;
  return std::equal(a->lanes.begin(), a->lanes.end(), b->lanes.begin(), b->lanes.end(),
                    [](const Lane& one, const Lane& two) { return has_equal_numbers(one, two); });
}

bool RunChanges::is_worse() const {
  return !newly_failing.empty() || !lost.empty() || holds_no_more(*this);
}

RunChanges changes(const Run& before, const Run& after) {
  RunChanges found{.before = &before, .after = &after};
  std::map<std::string, const Case*> known;
  for (const Case& one : before.cases) known.emplace(one.id, &one);
  for (const Case& one : after.cases) {
    const auto same = known.find(one.id);
    if (same == known.end()) {
      found.only_after.push_back(&one);
      continue;
    }
    add_pair(found, {same->second, &one});
    ++found.both_have;
    known.erase(same);
  }
  for (const Case& one : before.cases)
    if (const auto left = known.find(one.id); left != known.end() && left->second == &one)
      found.only_before.push_back(&one);
  return found;
}

std::string to_text(const RunChanges& changes, const std::string& before,
                    const std::string& after) {
  std::string text;
  for (const auto& [name, run] : {std::pair(before, changes.before), {after, changes.after}})
    text += upper_case(word(outcome(*run))) + "  " + counts_text(counts_of_selected(*run)) + "  " +
            clean(name) + "\n";
  for (const auto& [name, a, b] : differing_settings(changes))
    text += "  " + name + ": " + a + " -> " + b + "\n";
  add_pairs(text, "newly failing", changes.newly_failing, true);
  add_pairs(text, "says less than before", changes.lost, true);
  add_pairs(text, "newly passing", changes.newly_passing, false);
  add_pairs(text, "another verdict", changes.other, true);
  add_only(text, clean(before), changes.only_before);
  add_only(text, clean(after), changes.only_after);
  if (!changes.numbers.empty()) {
    text += "same verdict, other numbers: " + count_of(changes.numbers.size(), "case") + "\n";
    for (std::size_t i = 0; i < std::min(changes.numbers.size(), kListed); ++i)
      text += "  " + clean(changes.numbers[i].after->id) + "\n" + numbers_text(changes.numbers[i]);
    if (changes.numbers.size() > kListed)
      text += "  and " + grouped(changes.numbers.size() - kListed) + " more: --json - has all\n";
  }
  add_times(text, changes);
  if (!changes.is_worse() && changes.both_have == 0)
    return text + "NOTHING COMPARED  no case is in both\n";
  if (!changes.is_worse()) return text + "NOT WORSE" + limits_of(changes, before, after) + "\n";
  return text + "WORSE  " + count_of(changes.newly_failing.size(), "case") + " newly failing, " +
         grouped(changes.lost.size()) + " that say less" +
         (holds_no_more(changes) ? "; the run held and does not any more" : "") + "\n";
}

std::string to_json(const RunChanges& changes, const std::string& before,
                    const std::string& after) {
  return document_lines({{"schema_version", 1},
                         {"worse", changes.is_worse()},
                         {"in_both", changes.both_have},
                         {"before", side_json(*changes.before, before)},
                         {"after", side_json(*changes.after, after)},
                         {"newly_failing", changes_json(changes.newly_failing)},
                         {"says_less", changes_json(changes.lost)},
                         {"newly_passing", changes_json(changes.newly_passing)},
                         {"other_verdict", changes_json(changes.other)},
                         {"only_before", changes_json(changes.only_before)},
                         {"only_after", changes_json(changes.only_after)},
                         {"numbers", numbers_json(changes.numbers)},
                         {"seconds", times_json(changes)}});
}

}  // namespace equigrad::reports
