#include "conformance/check/check_case.hpp"

#include <utility>

#include "conformance/cases/mode_columns.hpp"
#include "conformance/cases/recipe.hpp"
#include "conformance/check/check.hpp"
#include "conformance/on_rank/run.hpp"
#include "engine/config/config.hpp"

namespace equigrad::conformance {
namespace {

using reference::SumOrder;

Precision precision_of(const EngineConfig& config) {
  const auto& precision = config.precision;
  const bool is_exact = config.reduction == ReductionOrder::Exact;
  if (precision.autocast.enabled)
    return precision.autocast.dtype == DataType::Bf16 ? Precision::AutocastBf16
                                                      : Precision::AutocastFp16;
  if (precision.param == DataType::Bf16) return is_exact ? Precision::Bf16Exact : Precision::Bf16;
  if (precision.param == DataType::Fp16) return Precision::Fp16;
  return is_exact ? Precision::Fp32Exact : Precision::Fp32;
}

Precision precision_named(const std::string& name) {
  for (const auto precision : precisions())
    if (word(precision) == name) return precision;
  std::string names;
  for (const auto precision : precisions()) names += (names.empty() ? "" : ", ") + word(precision);
  throw CheckRefused("check", "expected one of the precisions " + names + ", got \"" + name +
                                  "\". Correct the name.");
}

SumOrder order_of(const CheckCase& one) { return conformance::order_of(one.spec); }

}  // namespace

std::string comparable_config(const std::string& config, std::vector<std::string>& left_out) {
  auto keys = nlohmann::json::parse(config);
  if (keys.contains("scheduler")) {
    keys.erase("scheduler");
    left_out.push_back("scheduler: the twin trains at the learning rate of the optimizer alone");
  }
  if (keys.value("reduction", "") == "native") {
    keys["reduction"] = "pinned";
    left_out.push_back(
        "\"reduction\": \"native\": sums in an order of the backend's are compared with no twin; "
        "\"pinned\" was run");
  }
  return keys.dump(1);
}

std::string config_with(const std::string& config, int stage, const std::string& precision) {
  auto keys = nlohmann::json::parse(config);
  keys["zero_optimization"]["stage"] = stage;
  if (precision.empty()) return keys.dump(1);
  for (const char* key : {"fp16", "bf16", "amp", "torch_autocast", "data_types", "reduction",
                          "communication_data_type", "prescale_gradients",
                          "gradient_predivide_factor", "gradient_allreduce_op"})
    keys.erase(key);
  keys["zero_optimization"].erase("offload_optimizer");
  const int64_t accumulation = keys.value("gradient_accumulation_steps", int64_t{1});
  keys.merge_patch(engine_keys(precision_named(precision), static_cast<int>(accumulation)));
  return keys.dump(1);
}

CaseSpec spec_of_config(const std::string& config, int world) {
  const auto parsed = parse_config(config, world);
  return {
      .stage = parsed.zero.stage,
      .precision = precision_of(parsed),
      .style = Style::EngineBackward,
      .world = world,
      .accumulation = static_cast<int>(parsed.gradient_accumulation_steps),
      .clip = parsed.gradient_clipping > 0 ? Clip::Above : Clip::Off,
      .optimizer = parsed.optimizer.kind == OptimizerConfig::Kind::Sgd ? Rule::Sgd : Rule::AdamW,
      .model = "model"};
}

reference::Recipe recipe_of(const CheckCase& one, double threshold, SumOrder order) {
  if (one.config.empty()) return recipe_of(one.spec, one.seed, threshold, order);
  auto recipe = recipe_of(parse_config(one.config, one.spec.world), one.spec.world, one.seed);
  recipe.gradient_clipping = threshold;
  recipe.order = order;
  return recipe;
}

std::string config_text(const CheckCase& one, double threshold, Subject& subject) {
  return one.config.empty() ? config_text(one.spec, threshold, *shell_of(subject)) : one.config;
}

PassSetting setting_of(const CheckCase& one) {
  PassSetting setting{.seed = one.seed, .world = one.spec.world};
  if (one.config.empty() && one.may_overflow) setting.overflowing = overflowing_batch(one.spec);
  return setting;
}

std::optional<oracle::UnderflowLedger> twin_of(const MakeSubject& make, const CheckCase& one,
                                               const std::string& path) {
  TwinPlan plan{.make_model = case_model_of(make, setting_of(one)),
                .recipe = [one](double threshold,
                                SumOrder order) { return recipe_of(one, threshold, order); },
                .orders = orders_of(one.spec),
                .threshold = std::nullopt,
                .steps = one.steps,
                .needs_bounds = false};
  if (!one.config.empty())
    plan.threshold = parse_config(one.config, one.spec.world).gradient_clipping;
  else if (one.spec.clip == Clip::Off)
    plan.threshold = 0;
  else if (one.spec.clip == Clip::Below)
    plan.threshold = 1e6;
  return make_twin(plan, path);
}

nlohmann::json check_on_rank(const MakeSubject& make, const CheckCase& one,
                             const nlohmann::json& request, ranks::RankContext& context) {
  Twin twin(request.at("twin"), order_of(one));
  const double threshold = twin.threshold();
  const auto setting = setting_of(one);
  auto subject = make_seeded(make, one.seed);
  CaseFacts facts{.stage = one.spec.stage,
                  .recipe = recipe_of(one, threshold, order_of(one)),
                  .keep = request.value("keep", ""),
                  .context = context,
                  .make_model = case_model_of(make, setting),
                  .twin = std::move(twin)};
  add_model(facts, *shell_of(*subject));
  const auto& recipe = facts.recipe;
  const bool is_scaled =
      recipe.precision.loss_scale.policy != reference::LossScaleSpec::Policy::None;
  const RankPasses passes{
      .style = one.spec.style, .dtype = recipe.compute_dtype, .is_scaled = is_scaled};
  RankCaseOptions options{.config = config_text(one, threshold, *subject),
                          .style = word(one.spec.style),
                          .fault = request.value("fault", ""),
                          .adversary = 0,
                          .steps = one.steps};
  keep_config(request, context, options.config);
  return RankCase(std::move(facts), rank_model_of(std::move(subject), setting, passes),
                  std::move(options))
      .run();
}

}  // namespace equigrad::conformance
