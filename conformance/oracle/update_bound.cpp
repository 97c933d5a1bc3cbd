#include "conformance/oracle/update_bound.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

namespace equigrad::conformance::oracle {
namespace {

constexpr double kSingleUnit = 0x1p-24;
constexpr double kHalfSmallest = 0x1p-150;  // what underflow of an fp32 product can add

// |the fp32 computation - value| <= error.
struct Tracked {
  double value = 0;
  double error = 0;
};

// One more rounding to fp32 of a result whose operands bring `brought`, and the rounding to fp64
// of value itself; the last factor covers the arithmetic on the errors.
Tracked rounded(double value, double brought, double underflow) {
  const double own = kSingleUnit * (std::fabs(value) + brought) + kDoubleUnit * std::fabs(value);
  return {value, (brought + own + underflow) * (1 + 16 * kDoubleUnit)};
}

Tracked given(float value) { return {static_cast<double>(value), 0}; }
// A setting: combined in fp64 (`noise` roundings there), then rounded once to fp32.
Tracked setting(double value, double noise = 8) {
  return rounded(value, noise * kDoubleUnit * std::fabs(value), kHalfSmallest);
}

// Sums that are subnormal are exact, so only products, quotients and settings can underflow.
Tracked operator+(Tracked a, Tracked b) { return rounded(a.value + b.value, a.error + b.error, 0); }
Tracked operator-(Tracked a, Tracked b) { return rounded(a.value - b.value, a.error + b.error, 0); }
Tracked operator*(Tracked a, Tracked b) {
  const double brought =
      std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error;
  return rounded(a.value * b.value, brought, kHalfSmallest);
}
// |x / y - a / b| <= (|a| eb + |b| ea) / (|b| (|b| - eb))
Tracked operator/(Tracked a, Tracked b) {
  const double size = std::fabs(b.value);
  if (!(size > b.error)) return {a.value / b.value, kInfinity};
  const double brought =
      (std::fabs(a.value) * b.error + size * a.error) / (size * (size - b.error));
  return rounded(a.value / b.value, brought, kHalfSmallest);
}
// |sqrt x - sqrt a| = |x - a| / (sqrt x + sqrt a), at most ea / sqrt a and at most sqrt ea.
Tracked square_root(Tracked a) {
  const double value = std::sqrt(a.value);
  const double far = std::sqrt(a.error);
  const double brought = value > 0 ? std::min(a.error / value, far) : far;
  return rounded(value, brought, 0);
}

struct Element {
  Tracked master;
  std::vector<Tracked> states;
};

// Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019, algorithm 2, in the documented order.
// Settings are prepared once: they are the same for every element.
class AdamRule {
 public:
  explicit AdamRule(const UpdateSpec& spec)
      : coupled_(spec.rule == UpdateRule::Adam && spec.weight_decay != 0),
        decoupled_(spec.rule == UpdateRule::AdamW && spec.weight_decay != 0) {
    const auto step = static_cast<double>(spec.step);
    keep_ = setting(1 - spec.lr * spec.weight_decay);
    decay_ = setting(spec.weight_decay);
    beta1_ = setting(spec.beta1);
    beta2_ = setting(spec.beta2);
    rest1_ = setting(1 - spec.beta1);
    rest2_ = setting(1 - spec.beta2);
    eps_ = setting(spec.eps);
    // 1 - beta^step cancels: the roundings of beta^step (one each step at most) grow by 1 / rest.
    const double rest1 = 1 - std::pow(spec.beta1, step);
    const double rest2 = 1 - std::pow(spec.beta2, step);
    root_ = setting(1 / std::sqrt(rest2), (step + 8) / rest2);
    rate_ = setting(spec.lr / rest1, (step + 8) / rest1);
  }

  void operator()(Element& element, Tracked gradient) const {
    Tracked& p = element.master;
    Tracked& m = element.states[0];
    Tracked& v = element.states[1];
    if (coupled_) gradient = gradient + p * decay_;
    if (decoupled_) p = p * keep_;
    m = m * beta1_ + gradient * rest1_;
    v = v * beta2_ + (gradient * gradient) * rest2_;
    p = p - (m / (square_root(v) * root_ + eps_)) * rate_;
  }

 private:
  bool coupled_, decoupled_;
  Tracked keep_, decay_, beta1_, beta2_, rest1_, rest2_, eps_, root_, rate_;
};

// Sutskever et al. 2013 in the form of torch.optim.SGD.
class SgdRule {
 public:
  explicit SgdRule(const UpdateSpec& spec)
      : spec_(spec),
        rate_(setting(spec.lr)),
        decay_(setting(spec.weight_decay)),
        momentum_(setting(spec.momentum)),
        rest_(setting(1 - spec.dampening)) {}

  void operator()(Element& element, Tracked gradient) const {
    Tracked& p = element.master;
    Tracked d = gradient;
    if (spec_.weight_decay != 0) d = d + p * decay_;
    if (spec_.momentum != 0) {
      Tracked& buffer = element.states[0];
      buffer = spec_.step == 1 ? d : buffer * momentum_ + d * rest_;
      d = spec_.nesterov ? d + buffer * momentum_ : buffer;
    }
    p = p - d * rate_;
  }

 private:
  UpdateSpec spec_;
  Tracked rate_, decay_, momentum_, rest_;
};

std::vector<std::string> state_names(const UpdateSpec& spec) {
  if (spec.rule != UpdateRule::Sgd) return {"exp_avg", "exp_avg_sq"};
  if (spec.momentum != 0) return {"momentum_buffer"};
  return {};
}

bool is_stored(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

at::Tensor flat_values(const at::Tensor& tensor, int64_t numel, const std::string& what) {
  if (!tensor.defined() || !is_stored(tensor.scalar_type()) || !tensor.device().is_cpu() ||
      tensor.numel() != numel) {
    throw std::runtime_error("[oracle.check_update] expected " + std::to_string(numel) +
                             " fp32, fp16 or bf16 elements of " + what + " on the CPU.");
  }
  return tensor.detach().contiguous().flatten();
}

// What is left of a result when it has been stored.
Tracked stored(Tracked result, at::ScalarType dtype) {
  if (dtype == at::kFloat) return result;
  const double own = unit_roundoff(dtype) * (std::fabs(result.value) + result.error);
  return {result.value, (result.error + own + half_smallest(dtype)) * (1 + 16 * kDoubleUnit)};
}

void require_dtype(const at::Tensor& before, const at::Tensor& after, const std::string& what) {
  if (before.scalar_type() == after.scalar_type()) return;
  throw std::runtime_error("[oracle.check_update] expected " + what +
                           " in the dtype that they had before the update.");
}

const at::Tensor& state_of(const Weights& weights, const std::string& name) {
  const auto found = weights.state.find(name);
  if (found != weights.state.end()) return found->second;
  throw std::runtime_error("[oracle.check_update] expected the state \"" + name + "\", got none.");
}

// In fp32, which holds every value of what is stored.
std::vector<at::Tensor> widened(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& tensor : tensors) wide.push_back(tensor.to(at::kFloat));
  return wide;
}

std::vector<const float*> data_of(const std::vector<at::Tensor>& tensors) {
  std::vector<const float*> data;
  for (const at::Tensor& tensor : tensors) data.push_back(tensor.const_data_ptr<float>());
  return data;
}

template <class Rule>
BoundReport check_with(const Rule& rule, const UpdateSpec& spec, const Weights& before,
                       const at::Tensor& gradient, const Weights& after) {
  const int64_t numel = before.master.defined() ? before.master.numel() : 0;
  const std::vector<std::string> names = state_names(spec);
  std::vector<at::Tensor> inputs{flat_values(before.master, numel, "the master weights"),
                                 flat_values(gradient, numel, "the gradient")};
  std::vector<at::Tensor> outputs{flat_values(after.master, numel, "the updated weights")};
  for (const std::string& name : names) {
    const bool starts = spec.step == 1 && !before.state.contains(name);
    outputs.push_back(flat_values(state_of(after, name), numel, name));
    inputs.push_back(starts ? at::zeros_like(outputs.back())
                            : flat_values(state_of(before, name), numel, name));
    require_dtype(inputs.back(), outputs.back(), name);
  }
  require_dtype(inputs[0], outputs[0], "the master weights");
  const std::vector<at::Tensor> wide_inputs = widened(inputs), wide_outputs = widened(outputs);
  const std::vector<const float*> in = data_of(wide_inputs), got = data_of(wide_outputs);
  std::vector<BoundReport> reports(outputs.size());
  Element element;
  element.states.resize(names.size());
  for (int64_t i = 0; i < numel; ++i) {
    element.master = given(in[0][i]);
    for (size_t k = 0; k < names.size(); ++k) element.states[k] = given(in[k + 2][i]);
    rule(element, given(in[1][i]));
    for (size_t k = 0; k < outputs.size(); ++k) {
      const Tracked result =
          stored(k == 0 ? element.master : element.states[k - 1], outputs[k].scalar_type());
      see(reports[k], i, static_cast<double>(got[k][i]), result.value, result.error);
    }
  }
  BoundReport report;
  for (const BoundReport& of_output : reports) merge(report, of_output);
  return report;
}

}  // namespace

BoundReport check_update(const UpdateSpec& spec, const Weights& before, const at::Tensor& gradient,
                         const Weights& after) {
  if (spec.step < 1) throw std::runtime_error("[oracle.check_update] expected a step >= 1.");
  if (spec.rule == UpdateRule::Sgd) {
    return check_with(SgdRule(spec), spec, before, gradient, after);
  }
  return check_with(AdamRule(spec), spec, before, gradient, after);
}

}  // namespace equigrad::conformance::oracle
