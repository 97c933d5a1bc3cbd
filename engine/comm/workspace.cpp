#include "engine/comm/workspace.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "engine/error.hpp"

namespace equigrad::comm {

void Workspace::Block::give_back() {
  tensor_.reset();
  if (workspace_ != nullptr && bytes_.defined()) workspace_->keep(std::move(bytes_));
  bytes_.reset();
  workspace_ = nullptr;
}

Workspace::Block Workspace::take(int64_t numel, const at::TensorOptions& options) {
  Block block;
  if (options.device().is_cuda()) {
    block.tensor_ = at::empty({numel}, options);
    return block;
  }
  const int64_t bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
  at::Tensor found = find(bytes);
  if (!found.defined()) found = at::empty({bytes}, options.dtype(at::kByte));
  block.workspace_ = this;
  block.tensor_ = found.narrow(0, 0, bytes).view(c10::typeMetaToScalarType(options.dtype()));
  block.bytes_ = std::move(found);
  return block;
}

// The smallest that is large enough. If none is, the smallest makes way.
at::Tensor Workspace::find(int64_t bytes) {
  const auto rank = [bytes](const at::Tensor& one) {
    return std::pair(one.numel() < bytes, one.numel());
  };
  const auto block =
      std::min_element(free_.begin(), free_.end(),
                       [&](const at::Tensor& a, const at::Tensor& b) { return rank(a) < rank(b); });
  if (block == free_.end()) return {};
  auto found = std::exchange(*block, free_.back());
  free_.pop_back();
  kept_bytes_ -= found.numel();
  return found.numel() < bytes ? at::Tensor() : found;
}

void Workspace::keep(at::Tensor bytes) {
  if (kept_bytes_ + bytes.numel() > kKeptBytes) return;
  kept_bytes_ += bytes.numel();
  EQUIGRAD_CHECK(kept_bytes_ >= bytes.numel() && kept_bytes_ <= kKeptBytes, "comm.workspace",
                 "what is kept is counted, and within the limit");
  free_.push_back(std::move(bytes));
}

}  // namespace equigrad::comm
