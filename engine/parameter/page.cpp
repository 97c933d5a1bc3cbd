#include "engine/parameter/page.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>

#include <limits>
#include <utility>

#include "engine/kernels/copy_rows.hpp"

namespace equigrad::parameter {

PageGather::PageGather(const std::vector<at::Tensor>& shards, comm::Communicator& communicator,
                       memory::Ledger& ledger)
    : world_size_(communicator.world_size()),
      mine_((shards.size() == 1 ? shards.front() : at::cat(shards)).to(communicator.device())),
      rows_(at::empty({world_size_ * mine_.numel()}, mine_.options())),
      pending_(communicator.all_gather(rows_, mine_)),
      ledger_(ledger),
      bytes_(static_cast<int64_t>(rows_.nbytes())) {
  ledger_.charge(memory::Category::Gathered, bytes_);
}

PageGather::~PageGather() { ledger_.credit(memory::Category::Gathered, bytes_); }

void PageGather::wait() {
  if (!pending_) return;
  pending_->wait();
  pending_.reset();
}

at::Tensor PageGather::take(int64_t offset, int64_t shard_numel) {
  if (shard_numel == mine_.numel()) return std::exchange(rows_, at::Tensor());
  return rows_.view({world_size_, mine_.numel()})
      .narrow(1, offset, shard_numel)
      .clone(at::MemoryFormat::Contiguous);
}

void PageGather::copy_to(const at::Tensor& whole, int64_t offset, int64_t shard_numel) const {
  const int64_t size = mine_.element_size();
  const auto* rows = static_cast<const char*>(rows_.const_data_ptr());
  kernels::copy_rows(whole.mutable_data_ptr(), shard_numel * size, rows + offset * size,
                     mine_.numel() * size, shard_numel * size, whole.numel() * size);
}

void Page::arrive(memory::Ledger& ledger) {
  if (state != State::Arriving) return;
  RECORD_USER_SCOPE("parameter.arrive");
  gather->wait();
  if (resident) {
    gather->copy_to(tensor, offset, shard.numel());
    gather.reset();
    state = State::Live;
    return;
  }
  if (!tensor.is_contiguous()) {
    const auto whole = laid_out(gather->take(offset, shard.numel()));
    fill(whole, ledger);
    gather.reset();
    return;
  }
  const auto whole = gather->take(offset, shard.numel());
  gather.reset();
  fill(whole.to(tensor.scalar_type()), ledger);
}

// Rows of a gather in the parameter's type and strides.
at::Tensor Page::laid_out(const at::Tensor& rows) const {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false))
      .copy_(rows.view({-1}).narrow(0, 0, tensor.numel()).view(tensor.sizes()));
}

void Page::poison(memory::Ledger& ledger) {
  if (state == State::Live) return;
  gather.reset();
  const auto numel = bytes / static_cast<int64_t>(tensor.element_size());
  const auto nothing =
      resident ? tensor.variable_data() : at::empty({numel}, tensor.options().requires_grad(false));
  if (nothing.is_floating_point()) nothing.fill_(std::numeric_limits<double>::quiet_NaN());
  if (resident)
    state = State::Live;
  else
    fill(nothing, ledger);
}

void Page::fill(const at::Tensor& whole, memory::Ledger& ledger) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      whole.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, tensor.device())));
  ledger.charge(memory::Category::Gathered, bytes);
  state = State::Live;
}

void Page::drop(memory::Ledger& ledger) {
  state = State::Released;
  if (resident) return;
  disown();
  ledger.credit(memory::Category::Gathered, bytes);
}

void Page::disown() {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(nullptr, tensor.device()));
}

}  // namespace equigrad::parameter
