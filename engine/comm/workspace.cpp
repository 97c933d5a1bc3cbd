#include "engine/comm/workspace.hpp"

#include <ATen/ops/empty.h>

#include <utility>

namespace equigrad::comm {

void Workspace::Room::give_back() {
  tensor_.reset();
  if (workspace_ != nullptr && bytes_.defined()) workspace_->keep(std::move(bytes_));
  bytes_.reset();
  workspace_ = nullptr;
}

Workspace::Room Workspace::take(int64_t numel, const at::TensorOptions& options) {
  Room room;
  if (options.device().is_cuda()) {
    room.tensor_ = at::empty({numel}, options);
    return room;
  }
  const int64_t bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
  at::Tensor found;
  for (auto& block : free_) {
    const int64_t size = block.numel();
    if (size < bytes || size > 2 * bytes + 4096) continue;  // a much larger one stays for its like
    found = std::exchange(block, free_.back());
    free_.pop_back();
    kept_bytes_ -= size;
    break;
  }
  if (!found.defined()) found = at::empty({bytes}, options.dtype(at::kByte));
  room.workspace_ = this;
  room.tensor_ = found.narrow(0, 0, bytes).view(c10::typeMetaToScalarType(options.dtype()));
  room.bytes_ = std::move(found);
  return room;
}

void Workspace::keep(at::Tensor bytes) {
  if (kept_bytes_ + bytes.numel() > kKeptBytes) return;
  kept_bytes_ += bytes.numel();
  free_.push_back(std::move(bytes));
}

}  // namespace equigrad::comm
