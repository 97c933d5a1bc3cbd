#include "conformance/on_rank/contract.hpp"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "conformance/contract/contract_case.hpp"
#include "conformance/contract/players/engine_play.hpp"
#include "conformance/contract/players/reference_play.hpp"
#include "conformance/diagnosis/explain.hpp"
#include "conformance/diagnosis/picture.hpp"
#include "conformance/faults/adversary.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/on_rank/caller_state.hpp"

namespace equigrad::conformance::contract {
namespace {

at::Tensor slice_like(const at::Tensor& whole, const PlayDifference& difference) {
  if (!whole.defined()) return whole;
  return whole.flatten().slice(0, difference.begin, difference.begin + difference.want.numel());
}

// The narrowest type that a gradient is rounded to on its way.
at::ScalarType rounding_of(const Spec& spec, const at::Tensor& got) {
  if (spec.precision == Precision::Fp32) return got.scalar_type();
  return spec.precision == Precision::Bf16 ? at::kBFloat16 : at::kHalf;
}

oracle::Evidence evidence_of(const Spec& spec, const PlayDifference& difference) {
  const auto& source = difference.source;
  oracle::Evidence evidence;
  evidence.name = source.parameter.empty() ? source.what : source.parameter;
  evidence.what = source.what;
  evidence.is_gradient = source.what == "gradient";
  evidence.is_number = source.parameter.empty() && difference.whole.numel() == 1;
  const bool is_float = difference.want.is_floating_point();
  evidence.got = is_float ? difference.got : difference.got.to(at::kDouble);
  evidence.want = is_float ? difference.want : difference.want.to(at::kDouble);
  evidence.world = spec.world;
  evidence.accumulation_steps = difference.accumulation;
  evidence.shards = spec.stage == 0 || source.parameter.empty() ? 1 : spec.world;
  evidence.begin = difference.begin;
  evidence.shape = difference.whole.sizes().vec();
  evidence.whole = difference.whole.flatten();
  evidence.previous = slice_like(difference.previous, difference);
  evidence.loss_scale = evidence.previous_loss_scale = evidence.next_loss_scale =
      difference.loss_scale;
  if (evidence.is_gradient) evidence.rounding = rounding_of(spec, evidence.got);
  return evidence;
}

// The first element that differs; both zeros are the same value.
nlohmann::json first_element(const PlayDifference& difference) {
  const auto got = difference.got.to(at::kDouble).contiguous(),
             want = difference.want.to(at::kDouble).contiguous();
  const auto* x = got.const_data_ptr<double>();
  const auto* y = want.const_data_ptr<double>();
  int64_t i = 0;
  while (i + 1 < want.numel() && x[i] == y[i]) ++i;
  const bool is_float = difference.want.is_floating_point();
  const double ulp = is_float ? oracle::ulp_distance(x[i], y[i], difference.want.scalar_type()) : 0;
  return {{"index", difference.begin + i},
          {"got", exact_text(x[i])},
          {"want", exact_text(y[i])},
          {"ulp", exact_text(ulp)}};
}

nlohmann::json to_json(const Spec& spec, const PlayDifference& difference) {
  nlohmann::json json = {{"order", difference.order},
                         {"step", difference.window},
                         {"call", difference.source.call},
                         {"parameter", difference.source.parameter},
                         {"what", difference.source.what}};
  if (!difference.finding.empty()) {
    json["finding"] = difference.finding;
    return json;
  }
  json.update(first_element(difference));
  json["text"] = oracle::explain(evidence_of(spec, difference)).text;
  json["picture"] = picture_of({{{.phase = Phase::Gradient,
                                  .step = static_cast<int>(difference.window),
                                  .what = difference.source.what,
                                  .parameter = difference.source.parameter,
                                  .begin = difference.begin},
                                 difference.got,
                                 difference.want}},
                               difference.source.parameter);
  return json;
}

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
                                   .fault = request.value("fault", false),
                                   .directory = rank_context.directory()};
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
    // A program may make models of its own, which draw their weights.
    check_caller(*engine, "the window", here, {Share::Callback, Share::Generator});
  }
  auto tally = engine->tally();
  const auto difference = engine->difference();
  engine.reset();
  const auto changes = CallerState().changes(before, {Share::Generator});
  if (!changes.empty()) tally.add_finding("caller after the case", changes);
  nlohmann::json answer = {{"exact", tally.to_json()}};
  if (difference) answer["difference"] = to_json(spec, *difference);
  if (fault) answer["acted"] = fault->act().to_json();
  return answer;
}

}  // namespace equigrad::conformance::contract
