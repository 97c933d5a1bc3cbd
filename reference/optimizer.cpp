#include "reference/optimizer.hpp"

#include <cmath>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

namespace equigrad::reference {
namespace {

// theta = p, m, v and g as in the papers. The bias corrections 1 - beta^t are folded into two
// factors: m^ / (sqrt(v^) + eps) * lr = m / (sqrt(v) / sqrt(1 - beta2^t) + eps) * lr / (1 -
// beta1^t).
template <class Real>
void adam(const OptimizerSpec& spec, int64_t step, int64_t numel, Real* p, Real* m, Real* v,
          const Real* gradient) {
  const double t = static_cast<double>(step);
  const Real beta1 = Real(spec.beta1), one_minus_beta1 = Real(1 - spec.beta1);
  const Real beta2 = Real(spec.beta2), one_minus_beta2 = Real(1 - spec.beta2);
  const Real keep = Real(1 - spec.lr * spec.weight_decay);
  const Real decay = Real(spec.weight_decay);
  const Real eps = Real(spec.eps);
  const Real corrected_lr = Real(spec.lr / (1 - std::pow(spec.beta1, t)));
  const Real root_factor = Real(1 / std::sqrt(1 - std::pow(spec.beta2, t)));
  const bool decoupled = spec.rule == Rule::AdamW && spec.weight_decay != 0;
  const bool coupled = spec.rule == Rule::Adam && spec.weight_decay != 0;
  for (int64_t i = 0; i < numel; ++i) {
    Real g = gradient[i];
    if (coupled) g = g + p[i] * decay;                // Adam with L2: g_t + lambda theta_t-1
    if (decoupled) p[i] = p[i] * keep;                // AdamW line 12: theta - lr lambda theta
    m[i] = m[i] * beta1 + g * one_minus_beta1;        // m_t = beta1 m_t-1 + (1 - beta1) g_t
    v[i] = v[i] * beta2 + (g * g) * one_minus_beta2;  // v_t = beta2 v_t-1 + (1 - beta2) g_t^2
    const Real denominator = std::sqrt(v[i]) * root_factor + eps;  // sqrt(v^_t) + eps
    p[i] = p[i] - (m[i] / denominator) * corrected_lr;  // theta_t = theta_t-1 - lr m^_t / ...
  }
}

template <class Real>
void sgd(const OptimizerSpec& spec, int64_t step, int64_t numel, Real* p, Real* buffer,
         const Real* gradient) {
  const Real lr = Real(spec.lr), decay = Real(spec.weight_decay);
  const Real momentum = Real(spec.momentum), fresh = Real(1 - spec.dampening);
  for (int64_t i = 0; i < numel; ++i) {
    Real d = gradient[i];
    if (spec.weight_decay != 0) d = d + p[i] * decay;
    if (spec.momentum != 0) {
      // The first step takes the gradient as it is; later b_t = mu b_t-1 + (1 - tau) d_t.
      buffer[i] = step == 1 ? d : buffer[i] * momentum + d * fresh;
      d = spec.nesterov ? d + buffer[i] * momentum : buffer[i];
    }
    p[i] = p[i] - d * lr;
  }
}

}  // namespace

std::vector<std::string> state_names(const OptimizerSpec& spec) {
  if (spec.rule != Rule::Sgd) return {"exp_avg", "exp_avg_sq"};
  if (spec.momentum != 0) return {"momentum_buffer"};
  return {};
}

template <class Real>
void update(const OptimizerSpec& spec, int64_t step, int64_t numel, Real* parameter,
            const std::vector<Real*>& states, const Real* gradient) {
  if (spec.rule == Rule::Sgd) {
    sgd(spec, step, numel, parameter, states.empty() ? nullptr : states[0], gradient);
  } else {
    adam(spec, step, numel, parameter, states[0], states[1], gradient);
  }
}

template void update<float>(const OptimizerSpec&, int64_t, int64_t, float*,
                            const std::vector<float*>&, const float*);
template void update<double>(const OptimizerSpec&, int64_t, int64_t, double*,
                             const std::vector<double*>&, const double*);

}  // namespace equigrad::reference
