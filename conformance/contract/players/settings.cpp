#include "conformance/contract/players/settings.hpp"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "conformance/cases/model_groups.hpp"

namespace equigrad::conformance::contract {
namespace {

constexpr double kAbove = 0.01;  // below every norm that occurs
constexpr double kBelow = 1e6;
constexpr int kPatience = 3;
constexpr int kSmallBucket = 50;  // a head of "heads" fills it
constexpr double kAt = 2;         // so small that one ulp above it is a factor below 1

double clipping_of(const Spec& spec) {
  if (spec.of->clipping == Clipping::At) return kAt;
  return spec.of->clipping == Clipping::Below ? kBelow : kAbove;
}

// It begins at 2^8, grows after every other step, and halves at once.
nlohmann::json fp16_section(const Spec& spec) {
  nlohmann::json section = {{"enabled", true}};
  if (spec.of->has(Feature::LowMasters)) section["fp16_master_weights_and_grads"] = true;
  if (spec.precision == Precision::Fp16Static) {
    section["loss_scale"] = 128;
    return section;
  }
  section["loss_scale"] = 0;
  section["initial_scale_power"] = 8;
  section["loss_scale_window"] = 2;
  section["hysteresis"] = spec.of->has(Feature::PatientScale) ? kPatience : 1;
  return section;
}

bool has_low_masters(const Spec& spec) {
  if (!spec.of->has(Feature::LowMasters) || spec.precision == Precision::Fp32) return false;
  return spec.is_fp16() || spec.stage > 0;
}

// Low masters have windows of their own type, and sums in the exact order are fp32.
bool accumulates_in_fp32(const Spec& spec) {
  if (spec.of->has(Feature::ExactSums)) return true;
  return spec.sums_in_fp32() && !has_low_masters(spec);
}

// Of logarithmic schedules one is exact: that of 2 steps.
bool is_log(const Spec& spec) { return spec.stage % 2 == 1; }

reference::LossScaleSpec loss_scale_of(const Spec& spec) {
  using Policy = reference::LossScaleSpec::Policy;
  if (spec.precision == Precision::Fp16Static) return {.policy = Policy::Static, .initial = 128};
  if (spec.precision != Precision::Fp16) return {};
  if (spec.of->has(Feature::GradScaler))
    return {.policy = Policy::GradScaler, .initial = 256, .window = 2};
  return {.policy = Policy::DeepSpeed,
          .initial = 256,
          .window = 2,
          .hysteresis = spec.of->has(Feature::PatientScale) ? kPatience : 1};
}

// With small pages that stay: the others of stage 3 come and go all the time.
void set_stage(nlohmann::json& zero, const Spec& spec, int stage) {
  const int bucket = (spec.world + stage) % 2 == 0 ? kSmallBucket : 5000;
  zero["stage"] = stage;
  zero["reduce_bucket_size"] = bucket;
  zero["allgather_bucket_size"] = bucket;
  if (stage != 3) return;
  zero["stage3_param_persistence_threshold"] = spec.of->has(Feature::SmallPagesStay) ? 20 : 0;
  zero["stage3_max_reuse_distance"] = 0;
  zero["stage3_prefetch_bucket_size"] = bucket;
}

nlohmann::json config_json(const Spec& spec, int stage) {
  nlohmann::json config;
  config["train_micro_batch_size_per_gpu"] = 1;
  config["gradient_accumulation_steps"] = spec.accumulation;
  if (spec.of->clipping != Clipping::Off) config["gradient_clipping"] = clipping_of(spec);
  if (spec.of->clipping == Clipping::AboveLargest) config["gradient_norm_type"] = "inf";
  auto& optimizer = config["optimizer"];
  if (spec.of->optimizer == "SGD")
    optimizer = {{"type", "SGD"}, {"params", {{"lr", 0.1}, {"momentum", 0.9}}}};
  else
    optimizer = {{"type", spec.of->optimizer}, {"params", {{"lr", 1e-2}, {"weight_decay", 0.01}}}};
  if (spec.precision == Precision::Bf16) config["bf16"]["enabled"] = true;
  if (spec.precision == Precision::Bf16 && has_low_masters(spec))
    config["bf16"].update(
        {{"bf16_master_weights_and_grads", true}, {"bf16_optimizer_states", true}});
  if (spec.of->has(Feature::ExactSums)) config["reduction"] = "exact";
  if (spec.is_fp16()) config["fp16"] = fp16_section(spec);
  if (spec.precision != Precision::Fp32 && accumulates_in_fp32(spec))
    config["data_types"]["grad_accum_dtype"] = "fp32";
  if (spec.of->has(Feature::RateSchedule))
    config["scheduler"] = {{"type", "WarmupLR"},
                           {"params",
                            {{"warmup_min_lr", 0.0},
                             {"warmup_max_lr", 0.01},
                             {"warmup_num_steps", is_log(spec) ? 2 : 4},
                             {"warmup_type", is_log(spec) ? "log" : "linear"}}}};
  if (spec.of->has(Feature::LayerDrop))
    config["progressive_layer_drop"] = {{"enabled", true}, {"theta", 0.2}, {"gamma", 0.7}};
  auto& zero = config["zero_optimization"];
  set_stage(zero, spec, stage);
  if (spec.of->has(Feature::LeafModules)) zero["leaf_module"]["name_suffixes"] = {"experts"};
  return config;
}

}  // namespace

std::string config_text(const Spec& spec) { return config_json(spec, spec.stage).dump(); }

reference::Recipe recipe_of(const Spec& spec) {
  reference::Recipe recipe;
  recipe.world = spec.world;
  recipe.accumulation_steps = spec.accumulation;
  if (spec.of->optimizer == "SGD") {
    recipe.optimizer = {.rule = reference::Rule::Sgd, .lr = 0.1, .momentum = 0.9};
  } else {
    recipe.optimizer = {.rule = reference::Rule::AdamW, .lr = 1e-2, .weight_decay = 0.01};
  }
  if (spec.of->clipping == Clipping::Above || spec.of->clipping == Clipping::AboveLargest)
    recipe.gradient_clipping = kAbove;
  recipe.precision.infinity_norm = spec.of->clipping == Clipping::AboveLargest;
  recipe.compute_dtype = spec.is_fp16()                      ? at::kHalf
                         : spec.precision == Precision::Bf16 ? at::kBFloat16
                                                             : at::kFloat;
  recipe.accumulate_dtype = accumulates_in_fp32(spec) ? at::kFloat : recipe.compute_dtype;
  if (has_low_masters(spec)) recipe.precision.master_dtype = recipe.compute_dtype;
  if (has_low_masters(spec) && !spec.is_fp16()) recipe.precision.state_dtype = recipe.compute_dtype;
  recipe.precision.loss_scale = loss_scale_of(spec);
  recipe.order =
      spec.stage <= 1 ? reference::SumOrder::AddThenReduce : reference::SumOrder::ReduceThenAdd;
  if (spec.of->has(Feature::ExactSums)) recipe.order = reference::SumOrder::ExactGrid;
  recipe.absolute_sums = false;
  return recipe;
}

// The first two updates have the least rate, as with DeepSpeed's scheduler.
double scheduled_rate(const Spec& spec, int64_t updates) {
  if (is_log(spec)) return updates < 2 ? 0.0 : 0.01;  // ln 1, ln 2 and no more, over ln 2
  return 0.01 * std::min(1.0, static_cast<double>(std::max<int64_t>(updates - 1, 0)) / 4);
}

// The first two windows see 1: theta is set at a boundary, by the boundaries before it.
double layer_drop_theta(int64_t window) {
  const auto step = static_cast<double>(std::max<int64_t>(window - 1, 0));
  return 0.2 + 0.8 * std::exp(-0.7 * step);
}

// No key sets the interval of torch's scaler.
EngineConfig config_of(const Spec& spec, const std::string& text) {
  auto config = parse_config(text, spec.world);
  if (spec.of->has(Feature::GradScaler) && spec.precision == Precision::Fp16)
    config.precision.loss_scale.policy = LossScaleConfig::Policy::GradScaler;
  return config;
}

// A model with several groups goes in by the core, the others as modules.
std::unique_ptr<Engine> make_engine(const Spec& spec, reference::Model& model,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::optional<int> stage) {
  const auto text = config_json(spec, stage.value_or(spec.stage)).dump();
  if (model.groups().size() == 1 && !spec.of->has(Feature::GradScaler))
    return initialize(model, text, communicator);
  return initialize(groups_of(model), config_of(spec, text), communicator);
}

}  // namespace equigrad::conformance::contract
