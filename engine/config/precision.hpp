// Config precision: the types that an engine computes, keeps and sends in, and its loss scale.
//
//            parameters  masters  window and     optimizer  loss scale
//            of model             average        state
//   fp32     fp32        fp32     fp32           fp32       none
//   bf16     bf16        fp32     bf16 or fp32   fp32       none
//   fp16     fp16        fp32     fp16 or fp32   fp32       static, dynamic
//   ... with low-precision masters (bf16: stages 1-3): masters, window and average in the type of
//   the parameters; bf16 optimizer state is a choice, fp32 state with bf16 masters is offloaded.
//   torch_autocast goes with fp32 and with its own type; with fp16 it scales the loss.
//
// Invariants: names and defaults are DeepSpeed's; a static loss scale is a power of two, so that it
// only moves exponents.
// Units: loss_scale_window counts applied steps.
// Errors: none here; config.hpp validates.
// Depends on: the C++ standard library only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace equigrad {

enum class DataType { Fp32, Bf16, Fp16 };

struct LossScaleConfig {
  // DeepSpeed: the dynamic scale of the fp16 section. GradScaler: torch's, for autocast in fp16.
  enum class Policy { None, Static, DeepSpeed, GradScaler };
  Policy policy = Policy::None;
  double static_scale = 1.0;              // Static
  std::int64_t initial_scale_power = 16;  // DeepSpeed, GradScaler: it starts at 2^this
  std::int64_t loss_scale_window = 1000;  // DeepSpeed; GradScaler's growth interval is 2000
  std::int64_t hysteresis = 2;            // DeepSpeed
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1.0;
  bool operator==(const LossScaleConfig&) const = default;
};

struct AutocastConfig {
  bool enabled = false;
  DataType dtype = DataType::Bf16;
  // Their parameters are sent in `dtype`, gradients and weights; and the model sees the weights so
  // rounded, at every stage alike. Full names, such as torch.nn.Linear.
  std::vector<std::string> lower_precision_safe_modules{"torch.nn.Linear", "torch.nn.Conv1d",
                                                        "torch.nn.Conv2d", "torch.nn.Conv3d"};
  bool operator==(const AutocastConfig&) const = default;
};

// When a gradient is divided by the number of ranks. AfterSum: with 1/accumulation_steps, in one
// factor. BeforeSum: prescale_gradients. Around: by gradient_predivide_factor before, the rest
// after. Never: gradient_allreduce_op = "sum".
struct AveragingConfig {
  enum class Kind { AfterSum, BeforeSum, Around, Never };
  Kind kind = Kind::AfterSum;
  double predivide_factor = 1.0;  // Around
  bool operator==(const AveragingConfig&) const = default;
};

struct OffloadOptimizerConfig {
  bool to_cpu = false;
  bool pin_memory = true;
  bool operator==(const OffloadOptimizerConfig&) const = default;
};

enum class NormType { Two, Infinity };

struct PrecisionConfig {
  DataType param = DataType::Fp32;
  DataType accumulate = DataType::Fp32;  // data_types.grad_accum_dtype
  DataType master = DataType::Fp32;      // of master weights and of the average
  DataType optimizer_state = DataType::Fp32;
  std::optional<DataType> communication;  // nothing: gradients are sent in the type they have
  bool check_grad_overflow = true;        // bf16 only: skip the step; fp32 always throws
  LossScaleConfig loss_scale;
  AutocastConfig autocast;
  bool operator==(const PrecisionConfig&) const = default;
};

}  // namespace equigrad
