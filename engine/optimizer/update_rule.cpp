#include "engine/optimizer/update_rule.hpp"

#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <cmath>

#include "engine/kernels/square_root.hpp"

namespace equigrad::optimizer {
namespace {

// A chunk's operands stay in the second-level cache from one operation to the next: one pass over
// memory, not twelve.
constexpr int64_t kChunkNumel = int64_t{1} << 15;

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

}  // namespace

std::vector<std::string> state_names(const OptimizerConfig& config) {
  if (config.kind != OptimizerConfig::Kind::Sgd) return {"exp_avg", "exp_avg_sq"};
  if (config.momentum != 0) return {"momentum_buffer"};
  return {};
}

void update_(const OptimizerConfig& config, int64_t step, const at::Tensor& parameter,
             const at::Tensor& gradient, const std::vector<at::Tensor>& state) {
  const int64_t chunk_numel = parameter.is_cuda() ? parameter.numel() : kChunkNumel;
  auto scratch = at::empty({std::min(chunk_numel, parameter.numel())}, parameter.options());
  for (int64_t start = 0; start < parameter.numel(); start += chunk_numel) {
    const int64_t numel = std::min(chunk_numel, parameter.numel() - start);
    const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(0, start, numel); };
    auto p = part(parameter);
    auto g = part(gradient);
    auto room = scratch.narrow(0, 0, numel);
    if (config.kind != OptimizerConfig::Kind::Sgd) {
      adam_chunk(config, step, p, g, part(state[0]), part(state[1]), room);
    } else if (!state.empty()) {
      const auto buffer = part(state[0]);
      sgd_chunk(config, step, p, g, &buffer, room);
    } else {
      sgd_chunk(config, step, p, g, nullptr, room);
    }
  }
}

}  // namespace equigrad::optimizer
