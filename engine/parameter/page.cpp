#include "engine/parameter/page.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <limits>
#include <utility>

namespace equigrad::parameter {

PageGather::PageGather(const std::vector<at::Tensor>& shards, comm::Communicator& communicator,
                       trace::Ledger& ledger)
    : world_size_(communicator.world_size()),
      mine_((shards.size() == 1 ? shards.front() : at::cat(shards)).to(communicator.device())),
      rows_(at::empty({world_size_ * mine_.numel()}, mine_.options())),
      pending_(communicator.all_gather(rows_, mine_)),
      ledger_(ledger),
      bytes_(static_cast<int64_t>(rows_.nbytes())) {
  ledger_.charge(trace::Category::Gathered, bytes_);
}

PageGather::~PageGather() { ledger_.credit(trace::Category::Gathered, bytes_); }

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

void Page::arrive(trace::Ledger& ledger) {
  if (state != State::Arriving) return;
  gather->wait();
  const auto whole = gather->take(offset, shard.numel());
  gather.reset();
  fill(whole.to(tensor.scalar_type()), ledger);
}

void Page::poison(trace::Ledger& ledger) {
  if (state == State::Live) return;
  gather.reset();
  const auto numel = bytes / static_cast<int64_t>(tensor.element_size());
  const auto nothing = at::empty({numel}, tensor.options().requires_grad(false));
  if (nothing.is_floating_point()) nothing.fill_(std::numeric_limits<double>::quiet_NaN());
  fill(nothing, ledger);
}

void Page::fill(const at::Tensor& whole, trace::Ledger& ledger) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      whole.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, tensor.device())));
  ledger.charge(trace::Category::Gathered, bytes);
  state = State::Live;
}

void Page::drop(trace::Ledger& ledger) {
  disown();
  ledger.credit(trace::Category::Gathered, bytes);
  state = State::Released;
}

void Page::disown() {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(nullptr, tensor.device()));
}

}  // namespace equigrad::parameter
