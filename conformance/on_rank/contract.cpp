#include "conformance/on_rank/contract.hpp"

#include <optional>
#include <utility>

#include "conformance/contract/contract_case.hpp"
#include "conformance/contract/players/engine_play.hpp"
#include "conformance/contract/players/reference_play.hpp"
#include "conformance/faults/adversary.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/on_rank/caller_state.hpp"

namespace equigrad::conformance::contract {
namespace {

void check_caller(EnginePlay& engine, const std::string& what, const CallerState& before,
                  Shares may_change) {
  const auto changes = CallerState().changes(before, may_change);
  engine.check(changes.empty() ? what + " leaves its caller as it was"
                               : "the caller after " + what + ": " + changes,
               changes.empty());
}

}  // namespace

nlohmann::json serve_contract(const nlohmann::json& request, ranks::RankContext& rank_context,
                              const reference::Data& data) {
  const Spec spec = parse_contract_id(request.at("id"));
  const uint64_t seed = request.at("seed");
  rank_context.note("reference");
  ReferencePlay reference(spec, seed, data);
  std::vector<std::vector<reference::StepRecord>> steps;
  std::vector<Seen> seen;
  for (int window = 0; window < spec.of->windows; ++window) {
    steps.push_back(reference.window());
    seen.push_back(reference.seen(rank_context.rank()));
  }
  rank_context.note("initialize");
  const ContractContext context = {.rank = rank_context.rank(),
                                   .world = spec.world,
                                   .stage = spec.stage,
                                   .precision = spec.precision,
                                   .accumulation = spec.accumulation,
                                   .window = -1,
                                   .seed = seed,
                                   .fault = request.value("fault", false)};
  const auto moment = std::make_shared<faults::Moment>();
  std::unique_ptr<faults::Planted> fault;
  if (request.contains("plant"))
    fault = std::make_unique<faults::Planted>(request.at("plant"), rank_context.rank(), spec.world,
                                              moment, std::vector<std::string>{});
  const auto communicator =
      faults::adversarial(rank_context.group(), spec.of->has(Feature::LateWire) ? seed + 1 : 0);
  const CallerState before;  // models are made after it, and draw their weights
  std::optional<EnginePlay> engine(std::in_place, spec, context, rank_context, data,
                                   fault ? fault->wrap(communicator) : communicator);
  check_caller(*engine, "initialize()", before, {Share::Callback, Share::Generator});
  for (std::size_t window = 0; window < steps.size(); ++window) {
    *moment = {static_cast<int>(window), -1};
    const CallerState here;
    engine->window(steps[window], seen[window]);
    check_caller(*engine, "the window", here, {Share::Callback});
  }
  auto tally = engine->tally();
  engine.reset();
  const auto changes = CallerState().changes(before, {Share::Generator});
  if (!changes.empty()) tally.add_finding("caller after the case", changes);
  nlohmann::json answer = {{"exact", tally.to_json()}};
  if (fault) answer["acted"] = fault->act().to_json();
  return answer;
}

}  // namespace equigrad::conformance::contract
