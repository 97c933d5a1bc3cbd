#include "conformance/verdict/fault_judge.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <tuple>

#include "reports/text.hpp"

namespace equigrad::conformance {
namespace {

using Outcomes = std::vector<ranks::Outcome>;

struct Failed {
  std::string lane, kind;
  int step;
};

// Of all ranks: by step, and within one in the order in which they were made.
std::vector<Failed> failed_checks(const Outcomes& outcomes) {
  std::vector<Failed> all;
  for (const auto& outcome : outcomes)
    for (const char* lane : {"exact", "bounded"})
      if (outcome.answer.contains(lane))
        for (const auto& check : outcome.answer.at(lane).at("checks"))
          all.push_back({lane, check.at("kind"), std::max(check.at("step").get<int>(), 0)});
  std::stable_sort(all.begin(), all.end(),
                   [](const Failed& a, const Failed& b) { return a.step < b.step; });
  std::vector<Failed> once;
  for (const auto& one : all)
    if (std::none_of(once.begin(), once.end(), [&](const Failed& other) {
          return one.lane == other.lane && one.kind == other.kind;
        }))
      once.push_back(one);
  return once;
}

void take_acts(FaultVerdict& verdict, const Outcomes& outcomes) {
  std::pair<int, int> first{0, 0};
  for (const auto& outcome : outcomes) {
    const auto& acted = outcome.answer.at("acted");
    const int64_t times = acted.at("times");
    if (times == 0) continue;
    const std::pair<int, int> here{acted.at("step"), acted.at("micro_batch")};
    if (verdict.acted_times == 0 || here < first) first = here;
    verdict.acted_times += times;
  }
  if (verdict.acted_times > 0) std::tie(verdict.acted_step, verdict.acted_micro_batch) = first;
}

// "2" of "... step 2 ...", from 0; nothing: there is none.
std::optional<int> step_after(const std::string& text, const std::string& word) {
  const auto at = text.find(word);
  if (at == std::string::npos) return std::nullopt;
  return std::atoi(text.c_str() + at + word.size()) - 1;
}

std::string how_it_ended(const Outcomes& outcomes) {
  using Kind = ranks::Outcome::Kind;
  const auto any = [&](auto is) { return std::any_of(outcomes.begin(), outcomes.end(), is); };
  if (any([](const auto& one) { return one.kind == Kind::Died; })) return "crash";
  const auto thrown = [](const auto& one) {
    return one.kind == Kind::Error && !ranks::is_infrastructure_error(one);
  };
  if (any(thrown)) return "exception";
  if (any([](const auto& one) { return one.kind == Kind::TimedOut; })) return "time-out";
  return "lost peer";
}

// In the first step in which anything failed: the phase that no other one of them leads to.
std::string first_phase(const std::vector<Failed>& checks) {
  for (const char* phase : {"forward", "gradient", "norm", "scale", "update", "parameter"})
    for (const auto& check : checks)
      if (check.step == checks[0].step && phase_of(check.kind) == phase) return phase;
  return {};
}

// A fault that ended the case says by its note where it was, and where it had acted before. Where
// it had not, it acted there and then: without it the case holds.
void judge_end(FaultVerdict& verdict, reports::Found& found, const Outcomes& outcomes) {
  found.checks = {how_it_ended(outcomes)};
  std::optional<int> acted, ended;
  for (const auto& outcome : outcomes) {
    const auto here = step_after(outcome.doing, "step ");
    if (here && (!ended || *here < *ended)) ended = here;
    const auto from = step_after(outcome.doing, "acted in step ");
    if (from && (!acted || *from < *acted)) acted = from;
  }
  verdict.acted_times = -1;
  verdict.acted_step = acted.value_or(ended.value_or(-1));
  found.after_steps = std::max(ended.value_or(0), 0) - std::max(verdict.acted_step, 0);
  found.located = found.after_steps == 0;
}

// When it acted first over all ranks, and on what.
struct Acted {
  int step = -1, micro_batch = -1;
  std::set<std::string> parameters;
};

Acted acted_of(const Outcomes& outcomes) {
  Acted first;
  for (const auto& outcome : outcomes) {
    const auto& acted = outcome.answer.at("acted");
    const std::tuple here{acted.at("step").get<int>(), acted.at("micro_batch").get<int>()};
    if (acted.at("times").get<int64_t>() == 0) continue;
    const std::tuple before{first.step, first.micro_batch};
    if (first.step < 0 || here < before) first = {std::get<0>(here), std::get<1>(here), {}};
    if (here == std::tuple{first.step, first.micro_batch})
      for (const auto& name : acted.at("parameters"))
        first.parameters.insert(name.get<std::string>());
  }
  return first;
}

void take_rules(FaultVerdict& verdict, const Outcomes& outcomes) {
  for (const auto& outcome : outcomes) {
    const auto rules = outcome.answer.find("rules");
    if (rules == outcome.answer.end()) continue;
    for (std::size_t i = 0; i < reports::kRulesElsewhere; ++i)
      verdict.elsewhere[i] = verdict.elsewhere[i] || rules->at(i).get<bool>();
  }
}

FaultVerdict verdict_of(const std::string& phase, const std::string& id, const std::string& replay,
                        const Outcomes& outcomes, bool is_passed, const std::string& message) {
  FaultVerdict verdict;
  verdict.answered = ranks::all_ok(outcomes);
  if (verdict.answered) take_acts(verdict, outcomes);
  if (verdict.answered) take_rules(verdict, outcomes);
  if (is_passed) return verdict;
  reports::Found found;
  found.in = id;
  found.replay = replay;
  found.first = reports::first_line(message);
  if (!verdict.answered) {
    judge_end(verdict, found, outcomes);
  } else {
    const auto checks = failed_checks(outcomes);
    for (const auto& check : checks) found.checks.push_back(check.lane + "/" + check.kind);
    if (checks.empty()) found.checks = {"cover"};  // nothing else is judged beside the lanes
    if (!checks.empty()) found.after_steps = checks[0].step - std::max(verdict.acted_step, 0);
    if (first_phase(checks) == phase)
      found.located = found.after_steps == 0 || (phase == "forward" && found.after_steps == 1);
  }
  verdict.found = found;
  return verdict;
}

}  // namespace

std::string phase_of(const std::string& kind) {
  if (kind == "loss" || kind == "loss.backward()") return "forward";
  if (kind == "gradient") return "gradient";
  if (kind == "norm") return "norm";
  if (kind == "loss_scale" || kind == "skipped_steps" || kind == "boundary") return "scale";
  if (kind == "parameter") return "parameter";
  return "update";  // masters and states, by name
}

std::string misplaced(const std::string& phase, const Judged& judged, const Outcomes& outcomes) {
  if (!judged.first) return "no first place";
  const auto& place = judged.first->divergence;
  if (!judged.answered) {
    std::optional<int> acted;
    for (const auto& outcome : outcomes)
      if (const auto step = step_after(outcome.doing, "acted in step "); step && *step >= 0)
        acted = std::min(acted.value_or(*step), *step);
    return acted && *acted != place.step ? "step" : "";
  }
  const auto acted = acted_of(outcomes);
  if (word(place.phase) != phase) return "phase";
  // What is published is read, and seen, by the next forward at the latest; before the first step
  // there is none to name.
  const bool is_next = phase == "forward" && place.step == acted.step + 1;
  if (place.step != std::max(acted.step, 0) && !is_next) return "step";
  const bool both_know = place.micro_batch >= 0 && acted.micro_batch >= 0;
  if (phase == "gradient" && both_know && place.micro_batch != acted.micro_batch)
    return "micro-batch";
  const bool names_both = !place.parameter.empty() && !acted.parameters.empty();
  return names_both && !acted.parameters.contains(place.parameter) ? "parameter" : "";
}

FaultVerdict judge_fault(const std::string& phase, const CaseSpec& spec, const std::string& replay,
                         const Outcomes& outcomes) {
  const auto judged = judge(spec, replay, outcomes);
  auto verdict = verdict_of(phase, spec.id(), replay, outcomes,
                            reports::passed(judged.record.verdict), judged.record.message);
  if (verdict.found && verdict.answered)
    verdict.found->located = misplaced(phase, judged, outcomes).empty();
  return verdict;
}

FaultVerdict judge_contract_fault(const std::string& phase, const std::string& id,
                                  const std::string& replay, const Outcomes& outcomes) {
  std::string message = ranks::failures(outcomes);
  int64_t differing = 0;
  if (ranks::all_ok(outcomes))
    for (const auto& outcome : outcomes) {
      const auto& exact = outcome.answer.at("exact");
      differing += exact.at("differing").get<int64_t>();
      if (message.empty()) message = exact.at("first");
    }
  return verdict_of(phase, id, replay, outcomes, message.empty() && differing == 0, message);
}

}  // namespace equigrad::conformance
