#include <cmath>
#include <limits>

#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

void check_beta(int index, double value, Checks& checks) {
  if (!(value >= 0.0 && value < 1.0))
    checks.problem("optimizer.params.betas", "expected number " + std::to_string(index) +
                                                 " to be at least 0 and below 1, got " +
                                                 text_of(value) + ". Write [0.9, 0.999].");
}

void check_batch(const EngineConfig& config, int world_size, Checks& checks) {
  const std::int64_t micro = config.train_micro_batch_size_per_gpu;
  const std::int64_t accumulation = config.gradient_accumulation_steps;
  checks.at_least("train_batch_size", config.train_batch_size, 1);
  checks.at_least("train_micro_batch_size_per_gpu", micro, 1);
  checks.at_least("gradient_accumulation_steps", accumulation, 1);
  std::int64_t product = 0;
  const bool fits = multiply(micro, accumulation, world_size, product);
  if (fits && product == config.train_batch_size) return;
  checks.problems.push_back(
      "train_batch_size: expected micro x accumulation x world = " + std::to_string(micro) + " x " +
      std::to_string(accumulation) + " x " + std::to_string(world_size) + " = " +
      (fits ? std::to_string(product) : std::string("more than 64 bits hold")) + ", got " +
      std::to_string(config.train_batch_size) + ". Drop one of the three keys to have it derived.");
}

void check_optimizer(const OptimizerConfig& optimizer, Checks& checks) {
  const std::string params = "optimizer.params.";
  checks.not_negative(params + "lr", optimizer.lr);
  checks.not_negative(params + "weight_decay", optimizer.weight_decay);
  checks.not_negative(params + "eps", optimizer.eps);
  check_beta(1, optimizer.beta1, checks);
  check_beta(2, optimizer.beta2, checks);
  checks.not_negative(params + "momentum", optimizer.momentum);
  checks.finite(params + "dampening", optimizer.dampening);
  if (optimizer.nesterov && (optimizer.momentum <= 0.0 || optimizer.dampening != 0.0))
    checks.problems.push_back(params +
                              "nesterov: expected a momentum above 0 and no dampening, got "
                              "momentum " +
                              text_of(optimizer.momentum) + " and dampening " +
                              text_of(optimizer.dampening) + ". Set it to false, or them.");
}

void check_zero(const ZeroConfig& zero, Checks& checks) {
  const std::string section = "zero_optimization.";
  if (zero.stage < 0 || zero.stage > 3)
    checks.problems.push_back(section + "stage: expected 0, 1, 2 or 3, got " +
                              std::to_string(zero.stage) + ". Use 0 for plain data parallelism.");
  checks.at_least(section + "reduce_bucket_size", zero.reduce_bucket_size, 1);
  checks.at_least(section + "allgather_bucket_size", zero.allgather_bucket_size, 1);
  checks.at_least(section + "stage3_prefetch_bucket_size", zero.stage3_prefetch_bucket_size, 0);
  checks.at_least(section + "stage3_param_persistence_threshold",
                  zero.stage3_param_persistence_threshold, 0);
  checks.at_least(section + "stage3_max_live_parameters", zero.stage3_max_live_parameters, 0);
  checks.at_least(section + "stage3_max_reuse_distance", zero.stage3_max_reuse_distance, 0);
  if (zero.offload_param.to_cpu && zero.stage != 3)
    checks.problem(section + "offload_param.device",
                   "expected \"none\" below stage 3, got \"cpu\". Parameters are whole on every "
                   "rank there; set stage 3, or drop the section.");
}

}  // namespace

std::string text_of(double value) {
  return std::isfinite(value) ? Json(value).dump() : std::to_string(value);
}

void Checks::problem(const std::string& path, const std::string& text) {
  problems.push_back(path + ": " + text);
}

void Checks::at_least(const std::string& path, std::int64_t value, std::int64_t least) {
  if (value < least)
    problem(path, "expected at least " + std::to_string(least) + ", got " + std::to_string(value) +
                      ". Give a larger whole number.");
}

void Checks::finite(const std::string& path, double value) {
  if (!std::isfinite(static_cast<float>(value)))
    problem(path, "expected a number that fp32 can hold, got " + text_of(value) +
                      ". Give a finite number.");
}

void Checks::not_negative(const std::string& path, double value) {
  if (value < 0.0)
    problem(path, "expected at least 0, got " + text_of(value) + ". Give a positive number, or 0.");
  finite(path, value);
}

bool multiply(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t& product) {
  return !__builtin_mul_overflow(a, b, &product) && !__builtin_mul_overflow(product, c, &product);
}

void check_world_size(const std::string& where, int world_size) {
  if (world_size < 1)
    throw ConfigError(where, {"world_size: expected at least 1 rank, got " +
                              std::to_string(world_size) + ". Give the number of ranks."});
}

std::vector<std::string> problems_of(const EngineConfig& config, int world_size) {
  Checks checks;
  check_batch(config, world_size, checks);
  check_optimizer(config.optimizer, checks);
  check_zero(config.zero, checks);
  checks.not_negative("gradient_clipping", config.gradient_clipping);
  check_precision(config, checks);
  // Waits are counted in whole milliseconds; 1e9 s in ns still fits in 64 bits.
  const double timeout_s = config.communication_timeout_s;
  if (!(timeout_s >= 1e-3 && timeout_s <= 1e9))
    checks.problems.push_back("communication_timeout_s: expected seconds from 0.001 to 1e9, got " +
                              text_of(timeout_s) + ". Write 1800 for half an hour.");
  check_features(config, checks);
  return checks.problems;
}

}  // namespace equigrad
