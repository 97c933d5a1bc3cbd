#include "conformance/recipe.hpp"

#include <nlohmann/json.hpp>

namespace equigrad::conformance {
namespace {

bool small_buckets(const CaseSpec& spec) {
  return (static_cast<std::size_t>(spec.world + spec.accumulation) + spec.model.size()) % 2 == 0;
}

// A size that some parameter has exactly.
int64_t small_bucket_size(const reference::Model& model) {
  for (const auto& [name, parameter] : reference::unique_parameters(model))
    if (parameter.requires_grad() && parameter.numel() >= 90 && parameter.numel() <= 600)
      return parameter.numel();
  return 300;
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
  if ((spec.world + spec.accumulation) % 2 == 1) optimizer.momentum = 0.9;
  return optimizer;
}

at::ScalarType dtype_of(const CaseSpec& spec) {
  return spec.precision == Precision::Fp32 ? at::kFloat : at::kBFloat16;
}

// bf16 accumulates in bf16 unless it is told otherwise; both are worth a look.
at::ScalarType accumulate_dtype_of(const CaseSpec& spec) {
  return spec.precision == Precision::Bf16 && spec.accumulation != 3 ? at::kBFloat16 : at::kFloat;
}

reference::Order order_of(int stage) {
  return stage <= 1 ? reference::Order::AddThenReduce : reference::Order::ReduceThenAdd;
}

reference::Recipe recipe_of(const CaseSpec& spec, uint64_t seed, double threshold,
                            reference::Order order) {
  reference::Recipe recipe;
  recipe.model = spec.model;
  recipe.seed = seed;
  recipe.world = spec.world;
  recipe.accumulation_steps = spec.accumulation;
  recipe.steps = kSteps;
  recipe.optimizer = optimizer_of(spec);
  recipe.gradient_clipping = threshold;
  recipe.compute_dtype = dtype_of(spec);
  recipe.accumulate_dtype = accumulate_dtype_of(spec);
  recipe.order = order;
  recipe.absolute_sums = false;
  return recipe;
}

std::string config_text(const CaseSpec& spec, double threshold, const reference::Model& model) {
  nlohmann::json config;
  config["train_micro_batch_size_per_gpu"] = 1;
  config["gradient_accumulation_steps"] = spec.accumulation;
  if (spec.clip != Clip::Off) config["gradient_clipping"] = threshold;
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
  if (spec.precision == Precision::Bf16) {
    config["bf16"]["enabled"] = true;
    if (accumulate_dtype_of(spec) == at::kFloat) config["data_types"]["grad_accum_dtype"] = "fp32";
  }
  const int64_t bucket = small_buckets(spec) ? small_bucket_size(model) : 5000;
  auto& zero = config["zero_optimization"];
  zero["stage"] = spec.stage;
  zero["reduce_bucket_size"] = bucket;
  zero["allgather_bucket_size"] = bucket;
  if (spec.stage == 3) {  // page everything, all the time
    zero["stage3_param_persistence_threshold"] = 0;
    zero["stage3_max_reuse_distance"] = 0;
    zero["stage3_prefetch_bucket_size"] = bucket;
  }
  return config.dump(1);
}

reference::Recipe recipe_of(const EngineConfig& config, int world, uint64_t seed) {
  reference::Recipe recipe;
  recipe.seed = seed;
  recipe.world = world;
  recipe.accumulation_steps = config.gradient_accumulation_steps;
  auto& optimizer = recipe.optimizer;
  using Kind = OptimizerConfig::Kind;
  const auto& from = config.optimizer;
  optimizer.rule = from.kind == Kind::Sgd    ? reference::Rule::Sgd
                   : from.kind == Kind::Adam ? reference::Rule::Adam
                                             : reference::Rule::AdamW;
  optimizer.lr = from.lr;
  optimizer.weight_decay = from.weight_decay;
  optimizer.beta1 = from.beta1;
  optimizer.beta2 = from.beta2;
  optimizer.eps = from.eps;
  optimizer.momentum = from.momentum;
  optimizer.dampening = from.dampening;
  optimizer.nesterov = from.nesterov;
  recipe.gradient_clipping = config.gradient_clipping;
  recipe.compute_dtype = config.precision.param == DataType::Bf16 ? at::kBFloat16 : at::kFloat;
  recipe.accumulate_dtype =
      config.precision.accumulate == DataType::Bf16 ? at::kBFloat16 : at::kFloat;
  recipe.order = order_of(config.zero.stage);
  recipe.absolute_sums = false;
  return recipe;
}

}  // namespace equigrad::conformance
