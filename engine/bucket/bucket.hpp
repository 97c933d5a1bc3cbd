// Bucket: one contiguous communication buffer, filled parameter by parameter.
//
// Invariants: padding and the columns of parameters that contributed nothing are zero when they are
// seen; a second contribution to a slot is added to the first, rounded to the buffer's dtype; a
// buffer of exact sums (kernels/exact_tensor.hpp) rounds nothing. A bucket of one parameter takes
// over its gradient's memory where nobody else has it: move the tensor in.
// Shapes: [shards, shard_numel] as layout/bucket_plan.hpp draws it, followed by zeros up to a
// multiple of `multiple_numel` (an all-reduce cuts the buffer into that many slices).
// Errors: none.
// Depends on: layout/bucket_plan, kernels/copy_rows, kernels/exact_tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "engine/layout/bucket_plan.hpp"

namespace equigrad::bucket {

class Bucket {
 public:
  Bucket(const layout::Bucket& place, int shards, int multiple_numel, at::TensorOptions options);

  // Adds a parameter's gradient, any shape, weight * gradient if weight is not 1.
  void copy_in(std::size_t slot, at::Tensor gradient, double weight);
  // From contributions to exact sums of them.
  void to_exact_sums();
  bool holds_exact_sums() const;
  bool holds(std::size_t slot) const { return filled_[slot]; }
  bool full() const { return filled_numel_ == filled_.size(); }
  const at::Tensor& buffer();
  int64_t bytes() const;
  // A view of what was copied in: [shards, shard_numel of the slot].
  at::Tensor columns_of(std::size_t slot);

 private:
  void allocate();
  bool keep(at::Tensor& gradient);
  bool copy_few(std::size_t slot, const at::Tensor& gradient);
  void view();
  at::Tensor columns(std::size_t slot) const;
  void clear(std::size_t slot);
  void clear_padding(std::size_t slot);

  const layout::Bucket& place_;
  int shards_;
  int64_t numel_;  // of the buffer
  at::TensorOptions options_;
  at::Tensor buffer_;  // flat; undefined while a gradient may become it
  at::Tensor matrix_;  // [shards, shard_numel], a view of buffer_
  std::vector<bool> filled_;
  std::vector<bool> written_;     // a contribution, or zeros: clearing all costs a pass
  std::size_t filled_numel_ = 0;  // slots that hold a contribution
};

}  // namespace equigrad::bucket
