// Configuration: what a DeepSpeed JSON file means to this engine, as one checked value.
//
// Names and defaults are DeepSpeed's, with three differences on purpose: `gradient_clipping` is off
// unless it is given, an unknown key is an error at every level, and "auto" is explained instead of
// dropped. Three keys are our own: `reduction`, `communication_timeout_s`, `gradient_norm_type`.
//
// Invariants: an EngineConfig that came from parse_config or passed validate has train_batch_size =
// micro x accumulation x data_parallel_size(world_size); nothing in the text was silently ignored
// (explain_config lists every key with its origin, and why a key has no effect here).
// Units: *_size, *_parameters, *_distance and *_threshold count elements; *_s is seconds; *_steps,
// *_step_size, *_iteration and profile_step count applied updates; *_stair_count counts stairs.
// Errors: ConfigError, which carries every problem at once, each with the JSON path of its key.
// Depends on: the C++ standard library (nlohmann-json in the sources only), engine/error.hpp,
// engine/config/precision.hpp, engine/config/parallel.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/parallel.hpp"
#include "engine/config/precision.hpp"
#include "engine/error.hpp"

namespace equigrad {

// Pinned: the documented tree over ranks in fp32. Native: whatever the backend's collective does.
// Exact: sums that no order changes (kernels/exact_sum.hpp), so that stage, number of ranks and
// their order, bucket size, and how micro-batches are split into ranks and passes do not either.
enum class ReductionOrder { Pinned, Native, Exact };

struct OptimizerConfig {
  enum class Kind { Sgd, Adam, AdamW };
  Kind kind = Kind::AdamW;
  double lr = 1e-3;
  double weight_decay = 0.0;
  double beta1 = 0.9;  // Adam, AdamW
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0.0;  // Sgd
  double dampening = 0.0;
  bool nesterov = false;
  bool operator==(const OptimizerConfig&) const = default;
};

// Modules whose parameters come and go together at stage 3 (leaf_modules.hpp). The classes by
// default are DeepSpeed's; a class of that name in any namespace is meant. That list may match
// nothing; every entry of another list must match a module.
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

struct ZeroConfig {
  int stage = 0;
  // Of a bucket of gradients, at most; stages 2, 3 cut smaller ones (layout::bucket_size), and
  // large parameters have their own (layout::kAloneNumel).
  std::int64_t reduce_bucket_size = 500'000'000;
  // Of the weights that one gather copies out after an update, at most; large ones go alone.
  std::int64_t allgather_bucket_size = 500'000'000;
  // Stage 3: gathered ahead of their operators, at most, by the trace of the step before.
  std::int64_t stage3_prefetch_bucket_size = 50'000'000;
  // Parameters up to this size stay whole, and operators that read no others cost nothing.
  std::int64_t stage3_param_persistence_threshold = 100'000;
  // Whole at a time, those that stay included. What is kept for its next use is what makes the
  // fewest gathers of all schedules (parameter/paging_plan.hpp).
  std::int64_t stage3_max_live_parameters = 1'000'000'000;
  // Nothing is kept past so many elements of other uses, even where that would save a gather; what
  // stays whole is no use.
  std::int64_t stage3_max_reuse_distance = 1'000'000'000;
  // Gathers (stage 3) and reductions go on while operators run (at 0, 1 those of a window's only
  // pass); if not, they are over before the next operator begins, the least is under way, and a
  // pass of stages 0, 1 waits for no other rank.
  bool overlap_comm = true;
  LeafModuleConfig leaf_module;
  OffloadParamConfig offload_param;  // shards, stage 3
  // Stage 3: whether save_16bit_model(), of Python, gathers the weights, or saves nothing.
  bool stage3_gather_16bit_weights_on_model_save = false;
  bool operator==(const ZeroConfig&) const = default;
};

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

// DeepSpeed fails without theta and gamma; their defaults are the values that it recommends.
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

// The value of "scheduler.type".
const char* name_of(SchedulerConfig::Kind kind);

struct EngineConfig {
  std::int64_t train_batch_size = 1;
  std::int64_t train_micro_batch_size_per_gpu = 1;
  std::int64_t gradient_accumulation_steps = 1;
  // false: every step() ends the window, however many passes it has; gradient_accumulation_steps is
  // what passes are divided by, and nothing else.
  bool managed_gradient_accumulation = true;
  PrecisionConfig precision;
  AveragingConfig averaging;
  double gradient_clipping = 0.0;            // 0 is off
  NormType gradient_norm = NormType::Two;    // of get_global_grad_norm and of clipping
  OffloadOptimizerConfig offload_optimizer;  // masters and optimizer state
  OptimizerConfig optimizer;
  std::optional<SchedulerConfig> scheduler;  // nothing: the learning rate is constant
  ZeroConfig zero;
  ReductionOrder reduction = ReductionOrder::Pinned;
  double communication_timeout_s = 1800.0;
  bool dataloader_drop_last = false;  // of the loader that Python makes
  ProgressiveLayerDropConfig progressive_layer_drop;
  FlopsProfilerConfig flops_profiler;
  TensorParallelConfig tensor_parallel;
  std::int64_t sequence_parallel_size = 1;
  std::int64_t tensor_parallel_size() const { return tensor_parallel.size(); }
  // Ranks with samples of their own, of a world that both other sizes divide.
  std::int64_t data_parallel_size(std::int64_t world_size) const {
    return world_size / (tensor_parallel_size() * sequence_parallel_size);
  }
  // Whether a window has one pass, if each micro-batch has one.
  bool expects_one_pass() const {
    return managed_gradient_accumulation && gradient_accumulation_steps == 1;
  }
  // Stages 0, 1: whether the only pass of a window may begin its reduction (window.hpp).
  bool reduces_eagerly(int world_size) const {
    return zero.stage <= 1 && expects_one_pass() && zero.overlap_comm &&
           reduction == ReductionOrder::Pinned && world_size > 1;
  }
  bool operator==(const EngineConfig&) const = default;
};

class ConfigError : public Error {
 public:
  ConfigError(const std::string& where, std::vector<std::string> problems);
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

// One line of the effective configuration.
struct Setting {
  enum class Origin { File, Default, Derived, NoEffect };
  std::string key;    // JSON path, such as "zero_optimization.stage"
  std::string value;  // as JSON
  Origin origin;
  std::string note;  // how it was derived, how the default differs, or why it has no effect
  bool operator==(const Setting&) const = default;
};

struct EffectiveConfig {
  EngineConfig config;
  std::vector<Setting> settings;
};

// `text` is JSON; // and /* */ comments are allowed.
EngineConfig parse_config(const std::string& text, int world_size);

// Text if its first character other than white space is '{', otherwise the path of a file.
EngineConfig load_config(const std::string& text_or_path, int world_size);

// As load_config, with every value's origin.
EffectiveConfig explain_config(const std::string& text_or_path, int world_size);

// The table that `equigrad config check` prints.
std::string describe(const EffectiveConfig& effective);

// For a configuration that was built in code: throws ConfigError with every problem.
void validate(const EngineConfig& config, int world_size);

}  // namespace equigrad
