// PlainUpdate: the optimizers' documented sequences of fp32 operations, written once more, for
// tests of the bound on an update.
//
// Invariants: a variable for every operation, so that nothing is fused.
// Shapes: [kNumel] each.   Errors: none.
// Depends on: update_bound.hpp, ATen.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <vector>

#include "conformance/oracle/update_bound.hpp"

namespace equigrad::conformance::oracle {

inline constexpr int64_t kNumel = 500;

inline float f(double value) { return static_cast<float>(value); }

// The documented sequence of fp32 operations. A variable for every operation: nothing is fused.
inline Weights fp32_update(const UpdateSpec& s, const Weights& before, const at::Tensor& gradient) {
  Weights after{before.master.clone(), {}};
  for (const auto& [name, state] : before.state) after.state[name] = state.clone();
  auto* p = after.master.data_ptr<float>();
  const auto* g = gradient.const_data_ptr<float>();
  const auto t = static_cast<double>(s.step);
  for (int64_t i = 0; i < after.master.numel(); ++i) {
    float d = g[i];
    if (s.rule == UpdateRule::Sgd) {
      if (s.weight_decay != 0) d = d + p[i] * f(s.weight_decay);
      if (s.momentum != 0) {
        float& b = after.state.at("momentum_buffer").data_ptr<float>()[i];
        b = s.step == 1 ? d : b * f(s.momentum) + d * f(1 - s.dampening);
        d = s.nesterov ? d + b * f(s.momentum) : b;
      }
      p[i] = p[i] - d * f(s.lr);
      continue;
    }
    float& m = after.state.at("exp_avg").data_ptr<float>()[i];
    float& v = after.state.at("exp_avg_sq").data_ptr<float>()[i];
    if (s.weight_decay != 0 && s.rule == UpdateRule::Adam) d = d + p[i] * f(s.weight_decay);
    if (s.weight_decay != 0 && s.rule == UpdateRule::AdamW) p[i] *= f(1 - s.lr * s.weight_decay);
    m = m * f(s.beta1) + d * f(1 - s.beta1);
    v = v * f(s.beta2) + (d * d) * f(1 - s.beta2);
    const float denominator = std::sqrt(v) * f(1 / std::sqrt(1 - std::pow(s.beta2, t))) + f(s.eps);
    p[i] = p[i] - (m / denominator) * f(s.lr / (1 - std::pow(s.beta1, t)));
  }
  return after;
}

inline Weights start(const UpdateSpec& spec) {
  Weights weights{at::randn({kNumel}), {}};
  if (spec.rule != UpdateRule::Sgd) {
    weights.state = {{"exp_avg", at::zeros({kNumel})}, {"exp_avg_sq", at::zeros({kNumel})}};
  } else if (spec.momentum != 0) {
    weights.state = {{"momentum_buffer", at::zeros({kNumel})}};
  }
  return weights;
}

inline std::vector<UpdateSpec> specs() {
  std::vector<UpdateSpec> all;
  for (const double weight_decay : {0.0, 0.01}) {
    UpdateSpec spec;
    spec.lr = 1e-2;
    spec.weight_decay = weight_decay;
    all.push_back(spec);
    spec.rule = UpdateRule::Adam;
    all.push_back(spec);
    spec.rule = UpdateRule::Sgd;
    spec.lr = 0.1;
    all.push_back(spec);
    spec.momentum = 0.9;
    all.push_back(spec);
    spec.dampening = 0.3;
    all.push_back(spec);
    spec.dampening = 0, spec.nesterov = true;
    all.push_back(spec);
  }
  return all;
}

inline std::string name_of(const UpdateSpec& s) {
  const char* rule = s.rule == UpdateRule::Sgd    ? "sgd"
                     : s.rule == UpdateRule::Adam ? "adam"
                                                  : "adamw";
  return std::string(rule) + " decay " + std::to_string(s.weight_decay) + " momentum " +
         std::to_string(s.momentum) + (s.nesterov ? " nesterov" : "") + " step " +
         std::to_string(s.step);
}

}  // namespace equigrad::conformance::oracle
