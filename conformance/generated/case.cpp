#include "conformance/generated/case.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "conformance/generated/core.hpp"
#include "conformance/generated/rank_model.hpp"
#include "conformance/generated/second_reading.hpp"
#include "conformance/on_rank/run.hpp"

namespace equigrad::conformance {
namespace {

using reference::SumOrder;

// "half" is read as off: the twin finds out.
nlohmann::json readable(const Workload& workload) {
  auto config = workload.config;
  if (config.contains("gradient_clipping") && config["gradient_clipping"] == "half")
    config["gradient_clipping"] = 0.0;
  return config;
}

SumOrder order_at(const reference::Recipe& recipe, int stage) {
  if (recipe.order == SumOrder::ExactGrid) return recipe.order;
  return stage <= 1 ? SumOrder::AddThenReduce : SumOrder::ReduceThenAdd;
}

reference::Recipe recipe_of(const Workload& workload, double threshold, SumOrder order) {
  auto recipe = read_again(readable(workload));
  recipe.seed = workload.seed;
  recipe.world = workload.zero_ranks();
  recipe.sequence = workload.sequence_ranks();
  recipe.accumulation_steps = workload.accumulation;
  recipe.steps = workload.steps;
  recipe.gradient_clipping = threshold;
  recipe.order = order;
  return recipe;
}

bool has_parts(const Workload& workload) {
  return std::any_of(workload.tensors.begin(), workload.tensors.end(),
                     [](const WorkloadTensor& tensor) { return tensor.role == "recomputed"; });
}

// With one pass a window, and one part a pass, both orders are one, unless a contribution is
// multiplied before it is sent: what is rounded then is the window's sum in one of them, and the
// contribution in the other.
std::vector<SumOrder> orders_of(const Workload& workload) {
  const auto recipe = read_again(readable(workload));
  if (recipe.order == SumOrder::ExactGrid) return {SumOrder::ExactGrid};
  const bool has_one_pass =
      workload.accumulation == 1 && !has_parts(workload) &&
      std::none_of(workload.passes.begin(), workload.passes.end(),
                   [](const PassEvent& event) { return event.what == "twice"; });
  const bool is_multiplied = recipe.precision.averaging == reference::Averaging::BeforeSum ||
                             recipe.precision.averaging == reference::Averaging::Around;
  if (has_one_pass && !(is_multiplied && recipe.accumulate_dtype != recipe.compute_dtype))
    return {SumOrder::AddThenReduce};
  return {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd};
}

std::vector<double> group_rates(const Workload& workload) {
  std::vector<double> rates;
  const double own = read_again(readable(workload)).optimizer.lr;
  for (const auto& group : workload.groups)
    rates.push_back(group.lr.is_null() ? own : group.lr.get<double>());
  return rates;
}

reference::Rates rates_at(const Workload& workload, int step, int64_t applied) {
  if (const auto schedule = schedule_of(workload.config))
    return reference::rates(*schedule, group_rates(workload), applied);
  reference::Rates rates{group_rates(workload), {}};
  for (const auto& event : workload.rates)
    if (event.step <= step) rates.lr.assign(workload.groups.size(), event.lr);
  return rates;
}

// What the bounds of sums have no terms for.
std::string why_unbounded(const Workload& workload) {
  for (const auto& event : workload.passes)
    if (event.what != "overflow") return "a pass of the first steps is used twice, or not divided";
  return has_parts(workload) ? "a gradient comes in parts" : "";
}

}  // namespace

TwinPlan plan_of(const Workload& workload) {
  TwinPlan plan{
      .make_model = generated_case_model(workload),
      .recipe = [workload](double threshold,
                           SumOrder order) { return recipe_of(workload, threshold, order); },
      .orders = orders_of(workload),
      .threshold = std::nullopt,
      .if_none_is = 1.0,
      .steps = workload.steps,
      .needs_bounds = true,
      .unbounded = why_unbounded(workload),
      .rates = [workload](int step, int64_t applied) { return rates_at(workload, step, applied); }};
  const auto clipping = workload.config.value("gradient_clipping", nlohmann::json(0.0));
  if (clipping.is_number()) plan.threshold = clipping.get<double>();
  return plan;
}

nlohmann::json serve_generated_twin(const nlohmann::json& request, ranks::RankContext& context) {
  context.note("twin of a generated case");
  make_twin(plan_of(generated_case(request.at("case")).workload), request.at("path"));
  return {};
}

nlohmann::json serve_generated(const nlohmann::json& request, ranks::RankContext& context) {
  const auto one = generated_case(request.at("case"));
  const auto& workload = one.workload;
  const auto order = order_at(read_again(readable(workload)), one.execution.stage);
  const auto place = tensor_place_of(workload, context.rank());
  Twin twin(request.at("twin"), order, place);
  const double threshold = twin.threshold();
  CaseFacts facts{.stage = one.execution.stage,
                  .recipe = recipe_of(workload, threshold, order),
                  .keep = request.value("keep", ""),
                  .context = context,
                  .make_model = generated_case_model(workload),
                  .twin = std::move(twin),
                  .tensor_rank = place};
  add_model(facts, *std::make_shared<GeneratedModel>(workload, true));
  const auto& recipe = facts.recipe;
  const PassTypes types{
      .dtype = recipe.compute_dtype,
      .is_scaled = recipe.precision.loss_scale.policy != reference::LossScaleSpec::Policy::None,
      .rates = std::make_shared<std::vector<double>>()};
  RankCaseOptions options{
      .config = engine_config(one, threshold).dump(1),
      .style = "generated",
      .fault = request.value("fault", ""),
      .adversary = one.execution.adversary,
      .steps = workload.steps,
      .rates =
          [workload, set = types.rates](int64_t updates) {
            return set->empty() ? rates_at(workload, -1, updates) : reference::Rates{*set, {}};
          },
      .gradient_step = static_cast<int>(one.execution.seed % static_cast<uint64_t>(workload.steps)),
      .resumed_before = one.execution.resumed_before};
  keep_config(request, context, options.config);
  return RankCase(std::move(facts), generated_rank_model(one, types), std::move(options)).run();
}

}  // namespace equigrad::conformance
