// Dropped out: dropouts of a half, of what every rank of a tensor group has whole and of what it
// has in parts, all of them on one device, in plain torch.
//
//   whole   by torch's generator, once: all ranks of the group have the same
//   parts   one number k of torch's generator; part t by a generator that begins with a seed of k
//           and t, so that parts have other numbers, and what is whole goes on behind k
//
// The seed of (k, t) is documented in docs/parallel.md and computed here from that page alone: the
// low half of mix(k) + t, mixed again; mix is the finalizer of splitmix64, the second that of
// MurmurHash3 (32 bits).
//
// Invariants: what is drawn is a function of the batch alone: not of the type, not of what was
// drawn before, and nobody behind a pass sees that it drew.
// Shapes: any.   Errors: none of its own.
// Depends on: torch's generator. Nothing of the engine's.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace equigrad::conformance {

// While it lives torch's generator is one of this batch; then it is as it was.
class DrawsOfBatch {
 public:
  explicit DrawsOfBatch(const at::Tensor& tokens);
  ~DrawsOfBatch();
  DrawsOfBatch(const DrawsOfBatch&) = delete;
  DrawsOfBatch& operator=(const DrawsOfBatch&) = delete;

 private:
  at::Tensor before_;
};

at::Tensor dropped_out(const at::Tensor& whole);
std::vector<at::Tensor> dropped_out_in_parts(const std::vector<at::Tensor>& parts);

}  // namespace equigrad::conformance
