#include "engine/optimizer/update_rule.hpp"

#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <cmath>

#include "engine/error.hpp"
#include "engine/kernels/element_of.hpp"
#include "engine/kernels/square_root.hpp"
#include "engine/kernels/update.hpp"

namespace equigrad::optimizer {
namespace {

// On the CPU a chunk's operands stay in the second-level cache from one operation to the next; on
// CUDA a chunk bounds the memory that the operations take.
constexpr int64_t kCpuChunkNumel = int64_t{1} << 15;
constexpr int64_t kCudaChunkNumel = int64_t{1} << 24;

void exact_sqrt_out(at::Tensor& output, const at::Tensor& input) {
  if (input.is_cuda()) {
    at::sqrt_out(output, input);
  } else {
    kernels::square_root(input.const_data_ptr<float>(), input.numel(),
                         output.mutable_data_ptr<float>());
  }
}

void adam_chunk(const OptimizerConfig& config, int64_t step, const at::Tensor& p, at::Tensor& g,
                const at::Tensor& m, const at::Tensor& v, at::Tensor& scratch) {
  const auto t = static_cast<double>(step);
  if (config.weight_decay != 0 && config.kind == OptimizerConfig::Kind::AdamW) {
    p.mul_(1 - config.lr * config.weight_decay);
  } else if (config.weight_decay != 0) {
    g.add_(at::mul_out(scratch, p, at::scalar_to_tensor(config.weight_decay)));
  }
  m.mul_(config.beta1).add_(at::mul_out(scratch, g, at::scalar_to_tensor(1 - config.beta1)));
  at::mul_out(scratch, g, g).mul_(1 - config.beta2);
  v.mul_(config.beta2).add_(scratch);
  const double root_correction = 1 / std::sqrt(1 - std::pow(config.beta2, t));
  exact_sqrt_out(scratch, v);
  scratch.mul_(root_correction).add_(config.eps);
  at::div_out(g, m, scratch).mul_(config.lr / (1 - std::pow(config.beta1, t)));
  p.sub_(g);
}

void sgd_chunk(const OptimizerConfig& config, int64_t step, const at::Tensor& p, at::Tensor& d,
               const at::Tensor* buffer, at::Tensor& scratch) {
  if (config.weight_decay != 0) {
    d.add_(at::mul_out(scratch, p, at::scalar_to_tensor(config.weight_decay)));
  }
  if (buffer != nullptr) {
    if (step == 1) {
      buffer->copy_(d);
    } else {
      at::mul_out(scratch, d, at::scalar_to_tensor(1 - config.dampening));
      buffer->mul_(config.momentum).add_(scratch);
    }
    if (config.nesterov) {
      d.add_(at::mul_out(scratch, *buffer, at::scalar_to_tensor(config.momentum)));
    } else {
      d.copy_(*buffer);
    }
  }
  p.sub_(d.mul_(config.lr));
}

kernels::AdamFactors adam_factors(const OptimizerConfig& config, int64_t step) {
  const auto t = static_cast<double>(step);
  const bool decoupled = config.kind == OptimizerConfig::Kind::AdamW && config.weight_decay != 0;
  kernels::AdamFactors factors{};
  factors.keep = decoupled ? static_cast<float>(1 - config.lr * config.weight_decay) : 1.0F;
  factors.decays = config.kind == OptimizerConfig::Kind::Adam && config.weight_decay != 0;
  factors.decay = static_cast<float>(config.weight_decay);
  factors.beta1 = static_cast<float>(config.beta1);
  factors.fresh1 = static_cast<float>(1 - config.beta1);
  factors.beta2 = static_cast<float>(config.beta2);
  factors.fresh2 = static_cast<float>(1 - config.beta2);
  factors.root = static_cast<float>(1 / std::sqrt(1 - std::pow(config.beta2, t)));
  factors.eps = static_cast<float>(config.eps);
  factors.rate = static_cast<float>(config.lr / (1 - std::pow(config.beta1, t)));
  return factors;
}

kernels::SgdFactors sgd_factors(const OptimizerConfig& config, int64_t step) {
  kernels::SgdFactors factors{};
  factors.decays = config.weight_decay != 0;
  factors.decay = static_cast<float>(config.weight_decay);
  factors.first = step == 1;
  factors.momentum = static_cast<float>(config.momentum);
  factors.fresh = static_cast<float>(1 - config.dampening);
  factors.nesterov = config.nesterov;
  factors.rate = static_cast<float>(config.lr);
  return factors;
}

kernels::Stored stored(const at::Tensor& tensor) {
  const auto type = kernels::element_of(tensor.scalar_type(), "optimizer.update");
  return {tensor.mutable_data_ptr(), type};
}

}  // namespace

std::vector<std::string> state_names(const OptimizerConfig& config) {
  if (config.kind != OptimizerConfig::Kind::Sgd) return {"exp_avg", "exp_avg_sq"};
  if (config.momentum != 0) return {"momentum_buffer"};
  return {};
}

void update_(const OptimizerConfig& config, int64_t step, const at::Tensor& parameter,
             const at::Tensor& gradient, const std::vector<at::Tensor>& state) {
  const std::size_t states =
      config.kind != OptimizerConfig::Kind::Sgd ? 2U : (config.momentum != 0 ? 1U : 0U);
  EQUIGRAD_CHECK(step >= 1, "optimizer.update", "steps count from 1");
  EQUIGRAD_CHECK(gradient.numel() == parameter.numel() && state.size() == states,
                 "optimizer.update", "operands have one length, and the rule all its states");
  for (const auto& tensor : state)
    EQUIGRAD_CHECK(tensor.numel() == parameter.numel(), "optimizer.update",
                   "operands have one length");
  if (parameter.is_cuda()) return update_by_operations_(config, step, parameter, gradient, state);
  const auto p = stored(parameter);
  const kernels::StoredConst g{gradient.const_data_ptr(),
                               kernels::element_of(gradient.scalar_type(), "optimizer.update")};
  const int64_t numel = parameter.numel();
  if (config.kind != OptimizerConfig::Kind::Sgd) {
    kernels::adam(adam_factors(config, step), p, stored(state[0]), stored(state[1]), g, numel);
  } else if (!state.empty()) {
    const auto buffer = stored(state[0]);
    kernels::sgd(sgd_factors(config, step), p, &buffer, g, numel);
  } else {
    kernels::sgd(sgd_factors(config, step), p, nullptr, g, numel);
  }
}

void update_by_operations_(const OptimizerConfig& config, int64_t step, const at::Tensor& parameter,
                           const at::Tensor& gradient, const std::vector<at::Tensor>& state) {
  const int64_t chunk_numel = parameter.is_cuda() ? kCudaChunkNumel : kCpuChunkNumel;
  const auto options = parameter.options().dtype(at::kFloat);
  auto scratch = at::empty({std::min(chunk_numel, parameter.numel())}, options);
  for (int64_t start = 0; start < parameter.numel(); start += chunk_numel) {
    const int64_t numel = std::min(chunk_numel, parameter.numel() - start);
    const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(0, start, numel); };
    // In fp32 the same memory, else a copy that is rounded back.
    std::vector<at::Tensor> wide{part(parameter).to(at::kFloat)};
    for (const auto& tensor : state) wide.push_back(part(tensor).to(at::kFloat));
    auto g = part(gradient).to(at::kFloat);
    auto block = scratch.narrow(0, 0, numel);
    if (config.kind != OptimizerConfig::Kind::Sgd) {
      adam_chunk(config, step, wide[0], g, wide[1], wide[2], block);
    } else {
      sgd_chunk(config, step, wide[0], g, state.empty() ? nullptr : &wide[1], block);
    }
    if (parameter.scalar_type() != at::kFloat) part(parameter).copy_(wide[0]);
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (state[i].scalar_type() != at::kFloat) part(state[i]).copy_(wide[i + 1]);
    }
  }
}

}  // namespace equigrad::optimizer
