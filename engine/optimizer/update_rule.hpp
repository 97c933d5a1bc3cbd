// Update rules: AdamW, Adam and SGD as sequences of singly rounded operations.
//
// ATen's fused kernels round differently in the vector body and in the tail (an FMA in one, not in
// the other: 163 of 59,177 second moments of a shard differ from the whole's; measured, torch 2.11,
// AVX-512). So each rule is written in ATen operations that round once: products, sums, quotients
// and roots of tensors, products and sums with a scalar. Scalars are computed in fp64 and rounded
// once. No FMA, no division by a scalar (CUDA multiplies by its reciprocal instead).
//
//   AdamW  p = p (1 - lr wd);  m = m b1 + g (1 - b1);  v = v b2 + (g g)(1 - b2)
//          p = p - (m / (sqrt(v) (1 / sqrt(1 - b2^t)) + eps)) (lr / (1 - b1^t))
//   Adam   g = g + p wd, then as AdamW without its first product
//   SGD    d = g + p wd;  buffer = d at t = 1, else buffer mu + d (1 - dampening);  p = p - d lr,
//   where d is the buffer,
//          or d + buffer mu with Nesterov
//
// Invariants: element i of every result depends on element i of the operands only, so a shard's
// bits are the whole's.
// Shapes: flat fp32 tensors of one length; updated in place.
// Units: `step` counts from 1.
// Errors: none.
// Depends on: config's OptimizerConfig.
// Papers: Loshchilov & Hutter, arXiv 1711.05101, algorithm 2; Kingma & Ba, arXiv 1412.6980,
// algorithm 1, in the efficient form of its section 2; Sutskever et al. 2013 for momentum, as
// torch.optim.SGD states it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config.hpp"

namespace equigrad::optimizer {

// The names of the state tensors a rule keeps, in the order update_ takes them; DeepSpeed's and
// torch's names.
std::vector<std::string> state_names(const OptimizerConfig& config);

// One step of `config`'s rule. Writes `parameter`, `state` and, as scratch, `gradient`.
void update_(const OptimizerConfig& config, int64_t step, const at::Tensor& parameter,
             const at::Tensor& gradient, const std::vector<at::Tensor>& state);

}  // namespace equigrad::optimizer
