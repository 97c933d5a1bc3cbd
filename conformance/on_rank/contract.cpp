#include "conformance/on_rank/contract.hpp"

#include "conformance/contract/contract_case.hpp"
#include "conformance/contract/players/engine_play.hpp"
#include "conformance/contract/players/reference_play.hpp"
#include "conformance/faults/adversary.hpp"
#include "conformance/faults/fault.hpp"

namespace equigrad::conformance::contract {

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
  EnginePlay engine(spec, context, rank_context, data,
                    fault ? fault->wrap(communicator) : communicator);
  for (std::size_t window = 0; window < steps.size(); ++window) {
    *moment = {static_cast<int>(window), -1};
    engine.window(steps[window], seen[window]);
  }
  nlohmann::json answer = {{"exact", engine.tally().to_json()}};
  if (fault) answer["acted"] = fault->act().to_json();
  return answer;
}

}  // namespace equigrad::conformance::contract
