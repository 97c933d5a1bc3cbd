// Configuration: what a DeepSpeed JSON file means to this engine, as one checked value.
//
// Names and defaults are DeepSpeed's, with three differences on purpose: `gradient_clipping` is off
// unless it is given, an unknown key is an error at every level, and "auto" is explained instead of
// dropped. Three keys are our own: `reduction`,
// `communication_timeout_s` and `gradient_norm_type`.
//
// Invariants: an EngineConfig that came from parse_config or passed validate has train_batch_size =
// micro x accumulation x world_size; nothing in the text was silently ignored (explain_config lists
// every key with its origin, and why a key has no effect here).
// Units: *_size, *_parameters, *_distance and *_threshold count elements; *_s is seconds.
// Errors: ConfigError, which carries every problem at once, each with the JSON path of its key.
// Depends on: the C++ standard library (nlohmann-json in the sources only), engine/error.hpp,
// engine/config/features.hpp, engine/config/precision.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/features.hpp"
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

// Sizes are elements.
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
  bool operator==(const ZeroConfig&) const = default;
};

struct EngineConfig {
  std::int64_t train_batch_size = 1;
  std::int64_t train_micro_batch_size_per_gpu = 1;
  std::int64_t gradient_accumulation_steps = 1;
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
  ProgressiveLayerDropConfig progressive_layer_drop;
  FlopsProfilerConfig flops_profiler;
  // Stages 0, 1: whether the only pass of a window may begin its reduction (window.hpp).
  bool reduces_eagerly(int world_size) const {
    return zero.stage <= 1 && gradient_accumulation_steps == 1 && zero.overlap_comm &&
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
