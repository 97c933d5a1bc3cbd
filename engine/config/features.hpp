// Config features: the values of the optional sections scheduler, progressive_layer_drop and
// flops_profiler, and of zero_optimization's leaf_module and offload_param.
//
// Invariants: names and defaults are DeepSpeed's, except that a default of
// progressive_layer_drop.theta and .gamma exists (DeepSpeed fails without the keys; these are the
// values it recommends).
// Units: *_steps, *_step_size, *_iteration and profile_step count applied updates; *_stair_count
// counts stairs; rates and ratios have no unit.
// Errors: none here; config.hpp validates.
// Depends on: the C++ standard library only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace equigrad {

struct SchedulerConfig {
  enum class Kind { WarmupLr, WarmupDecayLr, WarmupCosineLr, OneCycle, LrRangeTest };
  enum class WarmupType { Log, Linear };
  using PerGroup = std::vector<double>;  // one value for all parameter groups, or one for each

  Kind kind = Kind::WarmupLr;
  // WarmupLR, WarmupDecayLR; what begins with warmup_ but the rates: WarmupCosineLR too
  PerGroup warmup_min_lr{0.0};
  PerGroup warmup_max_lr;  // empty: each group's own lr
  std::int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::Log;
  std::int64_t total_num_steps = 0;  // must be given
  double warmup_min_ratio = 0.0;     // WarmupCosineLR, of each group's own lr
  double cos_min_ratio = 1e-4;
  // OneCycle
  PerGroup cycle_min_lr;  // must be given
  PerGroup cycle_max_lr;  // must be given
  double decay_lr_rate = 0.0;
  std::int64_t cycle_first_step_size = 2000;
  std::optional<std::int64_t> cycle_second_step_size;  // nothing: as the first
  std::int64_t cycle_first_stair_count = 0;
  std::optional<std::int64_t> cycle_second_stair_count;  // nothing: as the first
  std::int64_t decay_step_size = 0;                      // 0: no decay after the cycle
  bool cycle_momentum = true;                            // Adam's beta1; false for SGD
  PerGroup cycle_min_mom{0.8};
  PerGroup cycle_max_mom{0.9};
  double decay_mom_rate = 0.0;
  // LRRangeTest
  PerGroup lr_range_test_min_lr{1e-3};
  std::int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  bool lr_range_test_staircase = false;
  // All: the iteration to go on from; -1 is the beginning.
  std::int64_t last_batch_iteration = -1;

  bool operator==(const SchedulerConfig&) const = default;
};

struct ProgressiveLayerDropConfig {
  bool enabled = false;
  double theta = 0.5;    // what theta(t) falls to
  double gamma = 0.001;  // how fast, for each global step
  bool operator==(const ProgressiveLayerDropConfig&) const = default;
};

struct FlopsProfilerConfig {
  bool enabled = false;
  double recompute_fwd_factor = 0.0;  // forward passes repeated by activation checkpointing
  std::int64_t profile_step = 1;
  std::int64_t module_depth = -1;  // -1: the innermost modules
  std::int64_t top_modules = 1;
  bool detailed = true;
  std::string output_file;  // empty: standard output
  bool operator==(const FlopsProfilerConfig&) const = default;
};

// Modules whose parameters come and go together at stage 3 (leaf_modules.hpp). The classes by
// default are DeepSpeed's: they may match nothing, and a class of that name in any namespace is
// meant. Every other entry must match a module.
struct LeafModuleConfig {
  std::vector<std::string> classes{
      "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
      "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
      "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock"};
  std::vector<std::string> names;
  std::vector<std::string> name_suffixes;
  bool operator==(const LeafModuleConfig&) const = default;
};

struct OffloadParamConfig {
  bool to_cpu = false;
  bool pin_memory = true;
  bool operator==(const OffloadParamConfig&) const = default;
};

// The value of "scheduler.type".
const char* name_of(SchedulerConfig::Kind kind);

}  // namespace equigrad
