#include "conformance/cases/recipe.hpp"

#include <nlohmann/json.hpp>

#include "conformance/cases/mode_columns.hpp"

namespace equigrad::conformance {
namespace {

// Models of text and of images take small buckets in opposite halves of the tuples, so small
// buckets meet optimizers with momentum (optimizer_of) and without.
bool small_buckets(const CaseSpec& spec) {
  const bool is_even = (spec.world + spec.accumulation) % 2 == 0;
  return reference::reads_images(spec.model) ? is_even : !is_even;
}

// A size that some parameter has exactly.
int64_t small_bucket_size(const reference::Model& model) {
  for (const auto& [name, parameter] : reference::unique_parameters(model))
    if (parameter.requires_grad() && parameter.numel() >= 90 && parameter.numel() <= 600)
      return parameter.numel();
  return 300;
}

// Biases have fewer elements, weights more.
constexpr int64_t kSmallNumel = 50;

const ReferenceMode& mode_of(const CaseSpec& spec) {
  return reference_mode(spec.precision, spec.accumulation);
}

reference::PrecisionSpec precision_of(const CaseSpec& spec) {
  const auto& mode = mode_of(spec);
  reference::PrecisionSpec precision;
  precision.master_dtype = mode.master;
  precision.state_dtype = mode.state;
  precision.communication_dtype = mode.communication;
  if (mode.autocast) precision.autocast.emplace().dtype = *mode.autocast;
  precision.loss_scale = mode.loss_scale;
  precision.averaging = mode.averaging;
  precision.predivide_factor = mode.predivide_factor;
  precision.infinity_norm = spec.clip == Clip::AboveInf;
  return precision;
}

}  // namespace

reference::OptimizerSpec optimizer_of(const CaseSpec& spec) {
  reference::OptimizerSpec optimizer;
  if (spec.optimizer == Rule::AdamW) {
    optimizer.rule = reference::Rule::AdamW;
    optimizer.lr = 1e-2;
    optimizer.weight_decay = 0.01;
    return optimizer;
  }
  optimizer.rule = reference::Rule::Sgd;
  optimizer.lr = 0.1;
  // Without momentum there is no state at all, which is a case of its own.
  if ((spec.world + spec.accumulation) % 2 == 1) {
    optimizer.momentum = 0.9;
    optimizer.weight_decay = 0.02;
  }
  return optimizer;
}

at::ScalarType dtype_of(const CaseSpec& spec) { return mode_of(spec).param; }

// 16 bits accumulate in 16 bits unless they are told otherwise; both are worth a look. With masters
// in 16 bits there is no choice.
at::ScalarType accumulate_dtype_of(const CaseSpec& spec) {
  const auto& mode = mode_of(spec);
  if (mode.master != at::kFloat) return mode.param;
  return mode.exact_sums || spec.accumulation == 3 ? at::kFloat : mode.param;
}

std::optional<at::ScalarType> autocast_dtype_of(const CaseSpec& spec) {
  return mode_of(spec).autocast;
}

std::optional<OverflowingBatch> overflowing_batch(const CaseSpec& spec) {
  using LossScale = reference::LossScaleSpec::Policy;
  const auto policy = mode_of(spec).loss_scale.policy;
  if (policy == LossScale::None || policy == LossScale::Static) return std::nullopt;
  const int kind = (spec.world + 2 * spec.accumulation + (spec.clip == Clip::Off ? 1 : 0)) % 3;
  if (kind == 0) return std::nullopt;
  return OverflowingBatch{kind, spec.data() - 1, spec.accumulation / 2};
}

reference::SumOrder order_of(int stage) {
  return stage <= 1 ? reference::SumOrder::AddThenReduce : reference::SumOrder::ReduceThenAdd;
}

reference::SumOrder order_of(const CaseSpec& spec) {
  return sums_exactly(spec.precision) ? reference::SumOrder::ExactGrid : order_of(spec.stage);
}

reference::Recipe recipe_of(const CaseSpec& spec, uint64_t seed, double threshold,
                            reference::SumOrder order) {
  reference::Recipe recipe;
  recipe.model = spec.model;
  recipe.seed = seed;
  recipe.world = spec.zero();
  recipe.sequence = spec.sequence();
  recipe.accumulation_steps = spec.accumulation;
  recipe.steps = kSteps;
  recipe.optimizer = optimizer_of(spec);
  recipe.gradient_clipping = threshold;
  recipe.compute_dtype = dtype_of(spec);
  recipe.accumulate_dtype = accumulate_dtype_of(spec);
  recipe.order = order;
  recipe.precision = precision_of(spec);
  recipe.absolute_sums = false;
  return recipe;
}

std::string config_text(const CaseSpec& spec, double threshold, const reference::Model& model) {
  nlohmann::json config;
  config["train_micro_batch_size_per_gpu"] = 1;
  config["gradient_accumulation_steps"] = spec.accumulation;
  if (spec.clip != Clip::Off) config["gradient_clipping"] = threshold;
  if (spec.tensor() > 1) config["tensor_parallel"]["autotp_size"] = spec.tensor();
  if (spec.sequence() > 1) config["sequence_parallel_size"] = spec.sequence();
  const auto optimizer = optimizer_of(spec);
  auto& params = config["optimizer"]["params"];
  params["lr"] = optimizer.lr;
  params["weight_decay"] = optimizer.weight_decay;
  if (spec.optimizer == Rule::AdamW) {
    config["optimizer"]["type"] = "AdamW";
    params["betas"] = {optimizer.beta1, optimizer.beta2};
    params["eps"] = optimizer.eps;
  } else {
    config["optimizer"]["type"] = "SGD";
    params["momentum"] = optimizer.momentum;
  }
  config.merge_patch(engine_keys(spec.precision, spec.accumulation));
  if (spec.clip == Clip::AboveInf) config["gradient_norm_type"] = "inf";
  const int64_t bucket = small_buckets(spec) ? small_bucket_size(model) : 5000;
  auto& zero = config["zero_optimization"];
  zero["stage"] = spec.stage;
  zero["reduce_bucket_size"] = bucket;
  zero["allgather_bucket_size"] = bucket;
  if (spec.stage == 3) {  // page everything, all the time, but for what may stay whole
    zero["stage3_param_persistence_threshold"] = spec.accumulation == 3 ? kSmallNumel : 0;
    zero["stage3_max_reuse_distance"] = 0;
    zero["stage3_prefetch_bucket_size"] = bucket;
  }
  return config.dump(1);
}

std::string with_knobs(const std::string& config_text, const nlohmann::json& knobs) {
  auto config = nlohmann::json::parse(config_text);
  config.merge_patch(knobs);
  return config.dump(1);
}

}  // namespace equigrad::conformance
