#include "conformance/self_check.hpp"

#include <unistd.h>

#include <algorithm>

#include "conformance/faults/planted_faults.hpp"
#include "conformance/judge.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

// Two ranks, three micro-batches, odd sizes: every planted fault can act, and it takes
// milliseconds.
const char* const kCase = "Required.grad.zero2.fp32.w2.gas3.clip-off.sgd.nasty.engine_backward";

// What a rank that died, hung or lost its peers leaves unsaid is not "not caught".
void require_answers(const std::vector<ranks::Outcome>& outcomes, const std::string& what) {
  const bool lost =
      std::any_of(outcomes.begin(), outcomes.end(), [](const ranks::Outcome& outcome) {
        return outcome.kind == ranks::Outcome::Kind::Died ||
               outcome.kind == ranks::Outcome::Kind::TimedOut ||
               ranks::is_infrastructure_error(outcome);
      });
  if (!lost) return;
  throw Error("self_check", "expected every rank to answer before the cases begin (" + what +
                                "), got: " + ranks::failures(outcomes) +
                                ". Nothing was compared. equigrad doctor looks at the machine; "
                                "--timeout-scale gives more time.");
}

}  // namespace

std::vector<reports::SelfCheck> self_check(ranks::Pool& pool, const Ask& ask) {
  const CaseSpec spec = parse_id(kCase);
  const std::string path = pool.directory() + "/self-check.safetensors";
  auto twin = ask("twin", kCase);
  twin["path"] = path;
  const auto made = pool.run({0}, twin);
  require_answers(made, "the twin");
  // Red proves nothing where green is not to be had: first the case without a fault.
  std::string spoiled;
  if (!ranks::all_ok(made)) {
    spoiled = "nothing: no twin: " + ranks::failures(made);
  } else {
    auto request = ask("case", kCase);
    request["twin"] = path;
    const auto outcomes = pool.run({0, 1}, request);
    require_answers(outcomes, "the case without a fault");
    const auto clean = judge(spec, "", outcomes);
    if (!clean.answered || !reports::passed(clean.record.verdict))
      spoiled = "nothing: the case fails without a fault: " + clean.record.message;
  }
  std::vector<reports::SelfCheck> checks;
  for (const auto& fault : faults::planted_faults()) {
    auto& check = checks.emplace_back();
    check.fault = fault.name;
    check.what = fault.what;
    if (!spoiled.empty()) {
      check.by = spoiled;
      continue;
    }
    auto request = ask("case", kCase);
    request["twin"] = path;
    request["fault"] = fault.name;
    const auto outcomes = pool.run({0, 1}, request);
    require_answers(outcomes, "planted: " + fault.name);
    const auto judged = judge(spec, "", outcomes);
    if (!judged.answered) {
      check.by = "nothing: the case ended early: " + judged.record.message;
      continue;
    }
    const auto& exact = judged.record.lanes.front();
    check.caught = exact.verdict == reports::Verdict::Failed;
    check.by = std::to_string(exact.differing) + " of " + std::to_string(exact.compared) +
               " elements in the exact lane";
  }
  unlink(path.c_str());
  return checks;
}

}  // namespace equigrad::conformance
