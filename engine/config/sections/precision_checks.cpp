#include <algorithm>
#include <cmath>

#include "engine/config/sections/sections.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

using Policy = LossScaleConfig::Policy;

const std::string kFp16 = "fp16.";
const std::string kBf16 = "bf16.";
const std::string kTorch = "torch.nn.";
constexpr int kMostPower = 126;  // 2^126, and one over it, are normal numbers of fp32

// The modules of torch::nn that hold parameters.
const std::vector<std::string>& torch_modules() {
  static const std::vector<std::string> names{"Linear",
                                              "Bilinear",
                                              "Conv1d",
                                              "Conv2d",
                                              "Conv3d",
                                              "ConvTranspose1d",
                                              "ConvTranspose2d",
                                              "ConvTranspose3d",
                                              "Embedding",
                                              "EmbeddingBag",
                                              "LayerNorm",
                                              "GroupNorm",
                                              "BatchNorm1d",
                                              "BatchNorm2d",
                                              "BatchNorm3d",
                                              "InstanceNorm1d",
                                              "InstanceNorm2d",
                                              "InstanceNorm3d",
                                              "RNN",
                                              "LSTM",
                                              "GRU",
                                              "RNNCell",
                                              "LSTMCell",
                                              "GRUCell",
                                              "MultiheadAttention",
                                              "Transformer",
                                              "TransformerEncoder",
                                              "TransformerDecoder",
                                              "TransformerEncoderLayer",
                                              "TransformerDecoderLayer",
                                              "PReLU"};
  return names;
}

void check_power(const std::string& path, std::int64_t power, Checks& checks) {
  checks.at_least(path, power, 0);
  if (power > kMostPower)
    checks.problem(path, "expected at most " + std::to_string(kMostPower) + ", got " +
                             std::to_string(power) + ". Write 16.");
}

void check_loss_scale(const PrecisionConfig& precision, Checks& checks) {
  const LossScaleConfig& scale = precision.loss_scale;
  const std::string path = kFp16 + "loss_scale";
  const bool casts = precision.param == DataType::Fp32 && precision.autocast.enabled;
  const bool is_fp16 = (casts ? precision.autocast.dtype : precision.param) == DataType::Fp16;
  if (is_fp16 && scale.policy == Policy::None)
    checks.problem(path, "expected a static or dynamic loss scale for fp16, got none. Choose one.");
  if (!is_fp16 && scale.policy != Policy::None)
    checks.problem(path, "expected no loss scale without fp16, got one. Drop it, or enable fp16.");
  if (scale.policy == Policy::Static) {
    const std::string wrong = problem_of_scale(scale.static_scale);
    if (!wrong.empty()) checks.problem(path, wrong);
  }
  if (scale.policy != Policy::DeepSpeed && scale.policy != Policy::GradScaler) return;
  check_power(kFp16 + "initial_scale_power", scale.initial_scale_power, checks);
  checks.at_least(kFp16 + "loss_scale_window", scale.loss_scale_window, 1);
  if (scale.policy == Policy::GradScaler) return;
  checks.at_least(kFp16 + "hysteresis", scale.hysteresis, 1);
  const std::string wrong = problem_of_scale(scale.min_loss_scale);
  if (!wrong.empty())
    checks.problem(kFp16 + "min_loss_scale", wrong);
  else if (std::ilogb(scale.min_loss_scale) > scale.initial_scale_power)
    checks.problem(kFp16 + "min_loss_scale",
                   "expected at most 2^initial_scale_power, got " + text_of(scale.min_loss_scale) +
                       " and a power of " + std::to_string(scale.initial_scale_power) +
                       ". Lower it, or raise the power.");
}

// The key that asks for 16-bit masters of parameters of this type.
std::string masters_key(DataType param) {
  return param == DataType::Fp16 ? kFp16 + "fp16_master_weights_and_grads"
                                 : kBf16 + "bf16_master_weights_and_grads";
}

void check_masters(const EngineConfig& config, Checks& checks) {
  const PrecisionConfig& precision = config.precision;
  const std::string path = masters_key(precision.master);
  const std::string states = kBf16 + "bf16_optimizer_states";
  if (precision.master != DataType::Fp32 && precision.master != precision.param) {
    checks.problem(path, "expected master weights in fp32 or in the type of the parameters, " +
                             std::string(name_of(precision.param)) + ", got " +
                             name_of(precision.master) + ". Choose one of the two.");
    return;
  }
  if (precision.optimizer_state == DataType::Fp16)
    checks.problem(kFp16 + "enabled",
                   "expected optimizer state in fp32 or bf16, got fp16. Keep it in fp32.");
  if (precision.optimizer_state == DataType::Bf16 && precision.master != DataType::Bf16)
    checks.problem(states,
                   "expected false without bf16_master_weights_and_grads, got true. Set "
                   "bf16_master_weights_and_grads to true, or drop the key.");
  if (precision.master != DataType::Bf16) return;
  if (config.zero.stage < 1)
    checks.problem(path, "expected ZeRO stage 1, 2 or 3 with bf16 master weights, got stage " +
                             std::to_string(config.zero.stage) +
                             ". Set zero_optimization.stage, or drop the key.");
  if (precision.optimizer_state == DataType::Fp32 && !config.offload_optimizer.to_cpu)
    checks.problem(path,
                   "expected bf16_optimizer_states, or zero_optimization.offload_optimizer with "
                   "device \"cpu\", beside bf16 master weights, got neither. Add one of them.");
}

void check_window(const EngineConfig& config, Checks& checks) {
  const PrecisionConfig& precision = config.precision;
  const std::string path = "data_types.grad_accum_dtype";
  const std::string param = name_of(precision.param), got = name_of(precision.accumulate);
  if (config.reduction == ReductionOrder::Exact) {
    if (precision.accumulate != DataType::Fp32)
      checks.problem(
          path, "expected fp32 with \"reduction\": \"exact\", whose sums are rounded once, got \"" +
                    got + "\". Drop one of the keys.");
  } else if (precision.master != DataType::Fp32 && precision.master == precision.param) {
    if (precision.accumulate != precision.master)
      checks.problem(path,
                     "expected " + std::string(name_of(precision.master)) + " with " +
                         masters_key(precision.master) + ", got \"" + got +
                         "\". Gradients have the master weights' type; drop one of the keys.");
  } else if (precision.accumulate != DataType::Fp32 && precision.accumulate != precision.param) {
    const bool is_fp32 = precision.param == DataType::Fp32;
    checks.problem(path, "expected fp32 " + (is_fp32 ? "" : "or " + param + " ") + "for " + param +
                             " parameters, got \"" + got + "\". " +
                             (is_fp32 ? "Enable " + got + ", or drop the key." : "Drop the key."));
  }
}

void check_autocast(const PrecisionConfig& precision, Checks& checks) {
  const AutocastConfig& autocast = precision.autocast;
  const std::string path = "torch_autocast.dtype";
  if (!autocast.enabled) return;
  if (autocast.dtype == DataType::Fp32)
    checks.problem(path, "expected bf16 or fp16, got fp32. Use one of the two.");
  else if (precision.param != DataType::Fp32 && autocast.dtype != precision.param)
    checks.problem(path, "expected the type of the parameters, " +
                             std::string(name_of(precision.param)) + ", got " +
                             name_of(autocast.dtype) + ". Drop the key, or the other section.");
  for (const std::string& name : autocast.lower_precision_safe_modules) {
    const std::string wrong = problem_of_module_class(name);
    if (!wrong.empty()) checks.problem("torch_autocast.lower_precision_safe_modules", wrong);
  }
}

void check_averaging(const AveragingConfig& averaging, Checks& checks) {
  const std::string path = "gradient_predivide_factor";
  const float factor = static_cast<float>(averaging.predivide_factor);
  const std::string got = text_of(averaging.predivide_factor);
  if (!(factor > 0.0F) || !std::isfinite(factor) || !std::isfinite(1.0F / factor))
    checks.problem(path, "expected a number above 0 that fp32 can hold and divide by, got " + got +
                             ". Write 1.");
  else if (averaging.kind != AveragingConfig::Kind::Around && averaging.predivide_factor != 1.0)
    checks.problem(
        path, "expected 1 unless gradients are divided around the sum, got " + got + ". Write 1.");
}

}  // namespace

std::string problem_of_scale(double value) {
  const std::string most = "2^" + std::to_string(kMostPower);
  if (!std::isfinite(value) || value <= 0.0 || value < std::ldexp(1.0, -kMostPower) ||
      value > std::ldexp(1.0, kMostPower))
    return "expected a power of two from 2^-" + std::to_string(kMostPower) + " to " + most +
           ", got " + text_of(value) + ". Write 128.";
  const double below = std::ldexp(1.0, std::ilogb(value));
  if (below == value) return "";
  return "expected a power of two, which changes exponents only, got " + text_of(value) +
         ". Write " + text_of(below) + " or " + text_of(2.0 * below) + ".";
}

std::string module_class(const std::string& written) {
  const std::size_t dot = written.rfind('.');
  const bool is_short = dot == std::string::npos && written.find("::") == std::string::npos;
  if (is_short) return kTorch + written;
  // Where torch defines them: torch.nn.modules.linear.Linear.
  return written.rfind("torch.nn.modules.", 0) == 0 ? kTorch + written.substr(dot + 1) : written;
}

std::string problem_of_module_class(const std::string& name) {
  const std::vector<std::string>& known = torch_modules();
  const bool is_full = name.find('.') != std::string::npos || name.find("::") != std::string::npos;
  const bool is_torch = name.rfind(kTorch, 0) == 0;
  if (is_full && !is_torch) return "";  // a class of the user, checked against the model
  const std::string last = is_torch ? name.substr(kTorch.size()) : name;
  if (is_torch && std::find(known.begin(), known.end(), last) != known.end()) return "";
  const std::string nearest = nearest_name(last, known);
  return "expected modules of torch.nn that hold parameters, or full names of other classes, got "
         "\"" +
         name + "\"." +
         (nearest.empty() ? " Write torch.nn.Linear, or package.Class."
                          : " Did you mean \"" + kTorch + nearest + "\"?");
}

void check_precision(const EngineConfig& config, Checks& checks) {
  check_loss_scale(config.precision, checks);
  check_masters(config, checks);
  check_window(config, checks);
  check_autocast(config.precision, checks);
  check_averaging(config.averaging, checks);
  if (config.offload_optimizer.to_cpu && config.zero.stage < 1)
    checks.problem("zero_optimization.offload_optimizer.device",
                   "expected ZeRO stage 1, 2 or 3 with \"cpu\", got stage " +
                       std::to_string(config.zero.stage) +
                       ". Set zero_optimization.stage, or \"none\".");
}

}  // namespace equigrad
