#include "conformance/check/own_faults.hpp"

#include <unistd.h>

#include "conformance/check/preflight.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/verdict/judge.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

Outcomes answers(ProcessSlots& slots, int world, const nlohmann::json& request) {
  auto outcomes = slots.ask(world, request);
  if (!outcomes) throw Error("check", "expected an answer, got an interrupt. Run it again.");
  return *std::move(outcomes);
}

}  // namespace

const std::vector<std::string>& own_faults() {
  // The last three act on one rank with one micro-batch too.
  static const std::vector<std::string> names = {"averaged_twice",
                                                 "micro_batch_dropped",
                                                 "shard_off_by_one",
                                                 "word_lost",
                                                 "gather_stale",
                                                 "accumulation.divisor_of_another_plan",
                                                 "accumulation.not_zeroed",
                                                 "optimizer.gradient_never_copied"};
  return names;
}

std::vector<reports::SelfCheck> plant_own_faults(
    ProcessSlots& slots, const CheckCase& ground,
    const std::function<nlohmann::json(const char* what)>& ask) {
  std::vector<reports::SelfCheck> checks;
  const std::string path = slots.directory() + "/own-faults";
  auto twin = ask("twin");
  twin["path"] = path;
  const auto made = answers(slots, 1, twin);
  if (!ranks::all_ok(made)) refuse_model(made.front());  // beyond its first passes
  for (const auto& name : own_faults()) {
    if (checks.size() == kOwnFaults) break;
    reports::SelfCheck check{.fault = name, .what = faults::fault_named(name).what};
    auto request = ask("case");
    request["twin"] = path;
    request["fault"] = name;
    const auto outcomes = answers(slots, ground.spec.world, request);
    const auto judged = judge(ground.spec, "", outcomes);
    if (judged.answered && !acted(outcomes).value_or(false)) continue;
    if (!judged.answered) {
      check.by = "nothing: the case ended early: " + judged.record.message;
    } else {
      const auto& exact = judged.record.lanes.front();
      check.caught = exact.verdict == reports::Verdict::Failed;
      check.by = std::to_string(exact.differing) + " of " + std::to_string(exact.compared) +
                 " elements in the exact lane, on this model";
    }
    checks.push_back(check);
  }
  unlink(path.c_str());
  return checks;
}

}  // namespace equigrad::conformance
