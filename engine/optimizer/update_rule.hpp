// Update rules: AdamW, Adam and SGD as sequences of singly rounded operations.
//
// ATen's fused kernels round differently in the vector body and in the tail (an FMA in one, not in
// the other: 163 of 59,177 second moments of a shard differ from the whole's; measured, torch 2.11,
// AVX-512). So each rule is a sequence of operations that round once: products, sums, quotients and
// roots. Scalars are computed in fp64 and rounded once. On the CPU it is one loop
// (kernels/update.hpp); on CUDA it is ATen's operations on whole tensors, without FMA and without
// division by a scalar (CUDA multiplies by its reciprocal instead). Their bits are the same.
//
//   AdamW  p = p (1 - lr wd);  m = m b1 + g (1 - b1);  v = v b2 + (g g)(1 - b2)
//          p = p - (m / (sqrt(v) (1 / sqrt(1 - b2^t)) + eps)) (lr / (1 - b1^t))
//   Adam   g = g + p wd, then as AdamW without its first product
//   SGD    d = g + p wd;  buffer = d at t = 1, else buffer mu + d (1 - dampening)
//          p = p - d lr, where d is the buffer, or d + buffer mu with Nesterov
//
// Invariants: element i of every result depends on element i of the operands only, so a shard's
// bits are the whole's, whatever the number of threads (kernels/parallel.hpp). The rule is computed
// in fp32; numbers stored in 16 bits are widened and each rounded once to its own type at the end.
// Shapes: flat tensors of one length on one device, each in fp32, bf16 or fp16; updated in place.
// Units: `step` counts from 1.
// Errors: equigrad::Error for another dtype.
// Depends on: config's OptimizerConfig, kernels.
// Papers: Loshchilov & Hutter, arXiv 1711.05101, algorithm 2; Kingma & Ba, arXiv 1412.6980,
// algorithm 1, in the efficient form of its section 2; Sutskever et al. 2013 for momentum, as
// torch.optim.SGD states it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/config.hpp"

namespace equigrad::optimizer {

// The names of the state tensors a rule keeps, in the order update_ takes them; DeepSpeed's and
// torch's names.
std::vector<std::string> state_names(const OptimizerConfig& config);

// One step of `config`'s rule. Writes `parameter` and `state`, and may use `gradient` as scratch.
void update_(const OptimizerConfig& config, int64_t step, const at::Tensor& parameter,
             const at::Tensor& gradient, const std::vector<at::Tensor>& state);

// The same step in ATen's operations: how CUDA does it, and what the CPU's loop is compared with.
void update_by_operations_(const OptimizerConfig& config, int64_t step, const at::Tensor& parameter,
                           const at::Tensor& gradient, const std::vector<at::Tensor>& state);

}  // namespace equigrad::optimizer
