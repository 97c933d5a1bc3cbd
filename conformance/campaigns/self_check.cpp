#include "conformance/campaigns/self_check.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "conformance/faults/fault.hpp"
#include "conformance/faults/planted_faults.hpp"
#include "conformance/verdict/judge.hpp"
#include "engine/error.hpp"
#include "reports/text.hpp"

namespace equigrad::conformance {
namespace {

// What a rank that died, hung or lost its peers leaves unsaid is not "not caught".
void require_answers(const Outcomes& outcomes, const std::string& what) {
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

// A case into which faults are planted.
struct Ground {
  CaseSpec spec;
  std::string path;     // of its twin
  std::string spoiled;  // why red would prove nothing here; empty: it would
  std::string failed;   // what of the engine differs without a fault; empty: nothing does
};

// An interrupt leaves nothing to say of the fault.
Outcomes answers(ProcessSlots& slots, int world, const nlohmann::json& request,
                 const std::string& what) {
  const auto outcomes = slots.ask(world, request);
  if (!outcomes) throw Error("self_check", "expected an answer, got an interrupt.");
  require_answers(*outcomes, what);
  return *outcomes;
}

// "step 1, gradient of head.bias [0, 3) on rank 0": the first line of a message.
std::string first_difference(const std::string& message) {
  const std::string line = reports::first_line(message), word = "first ";
  auto begin = std::min(line.find_first_not_of(' '), line.size());
  if (line.compare(begin, word.size(), word) == 0)
    begin = std::min(line.find_first_not_of(' ', begin + word.size()), line.size());
  return line.substr(begin);
}

// Makes the twin, and runs the case without a fault: red proves nothing where green is not to be
// had.
Ground prepare(ProcessSlots& slots, const Ask& ask, const std::string& id) {
  Ground ground{.spec = parse_id(id),
                .path = slots.directory() + "/self-check." + id,
                .spoiled = "",
                .failed = ""};
  auto twin = ask("twin", id);
  twin["path"] = ground.path;
  const auto made = answers(slots, 1, twin, "the twin");
  if (!ranks::all_ok(made)) {
    ground.spoiled = "nothing: no twin: " + ranks::failures(made);
    return ground;
  }
  auto request = ask("case", id);
  request["twin"] = ground.path;
  const auto outcomes = answers(slots, ground.spec.world, request, "the case without a fault");
  const auto clean = judge(ground.spec, "", outcomes);
  if (!clean.answered || !reports::passed(clean.record.verdict)) {
    ground.failed = id + ": " + first_difference(clean.record.message);
  }
  return ground;
}

reports::SelfCheck plant(ProcessSlots& slots, const Ask& ask, const faults::PlantedFault& fault,
                         const Ground& ground) {
  reports::SelfCheck check{.fault = fault.name,
                           .what = faults::fault_named(fault.name).what,
                           .caught = false,
                           .by = ground.spoiled};
  if (!ground.spoiled.empty()) return check;
  auto request = ask("case", fault.in);
  request["twin"] = ground.path;
  request["fault"] = fault.name;
  const auto outcomes = answers(slots, ground.spec.world, request, "planted: " + fault.name);
  const auto judged = judge(ground.spec, "", outcomes);
  if (!judged.answered) {
    check.by = "nothing: the case ended early: " + judged.record.message;
    return check;
  }
  const auto& exact = judged.record.lanes.front();
  check.caught = exact.verdict == reports::Verdict::Failed;
  check.by = std::to_string(exact.differing) + " of " + std::to_string(exact.compared) +
             " elements in the exact lane";
  return check;
}

}  // namespace

void self_check(ProcessSlots& slots, const Ask& ask, reports::Run& run) {
  std::map<std::string, Ground> grounds;
  for (const auto& fault : faults::planted_faults()) {
    auto found = grounds.find(fault.in);
    if (found == grounds.end())
      found = grounds.emplace(fault.in, prepare(slots, ask, fault.in)).first;
    if (found->second.failed.empty())
      run.self_checks.push_back(plant(slots, ask, fault, found->second));
    else if (run.engine_failure.empty())
      run.engine_failure = found->second.failed;
  }
  for (const auto& [id, ground] : grounds) unlink(ground.path.c_str());
}

}  // namespace equigrad::conformance
