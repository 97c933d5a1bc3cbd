#include "perf/worker/counting_communicator.hpp"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "perf/worker/operators.hpp"

namespace equigrad::perf {
namespace {

class Watched final : public comm::Pending {
 public:
  Watched(const char* name, comm::PendingPtr pending, CommunicationCounts& counts)
      : name_(name), pending_(std::move(pending)), counts_(counts), began_(operators()) {}

  void wait() override {
    if (began_ && operators() != *began_) ++counts_.overlapped[name_];
    began_.reset();
    pending_->wait();
  }

 private:
  const char* name_;
  comm::PendingPtr pending_;
  CommunicationCounts& counts_;
  std::optional<int64_t> began_;  // none once it was waited for
};

}  // namespace

at::Tensor CountingCommunicator::counted(const char* name, const at::Tensor& input, int64_t bytes) {
  ++counts_.collectives[name];
  counts_.bytes += bytes;
  if (fault_.sleep_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(fault_.sleep_us));
  return fault_.copies ? input.clone() : input;
}

comm::PendingPtr CountingCommunicator::started(const char* name, comm::PendingPtr pending) {
  auto watched = std::make_unique<Watched>(name, std::move(pending), counts_);
  if (fault_.waits) watched->wait();
  return watched;
}

comm::PendingPtr CountingCommunicator::all_to_all(const at::Tensor& output,
                                                  const at::Tensor& input) {
  const int64_t others = world_size() - 1;
  const auto sent =
      counted("all_to_all", input, static_cast<int64_t>(input.nbytes()) / world_size() * others);
  auto pending = started("all_to_all", real_->all_to_all(output, sent));
  if (fault_.one_more) comm::exchange(*this, at::zeros({1}, at::kLong));
  return pending;
}

comm::PendingPtr CountingCommunicator::trade(const at::Tensor& output, const at::Tensor& input) {
  const auto sent = counted("all_to_all", input, static_cast<int64_t>(input.nbytes()));
  auto pending = started("all_to_all", real_->trade(output, sent));
  if (fault_.one_more) comm::exchange(*this, at::zeros({1}, at::kLong));
  return pending;
}

comm::PendingPtr CountingCommunicator::all_gather(const at::Tensor& output,
                                                  const at::Tensor& input) {
  const int64_t others = world_size() - 1;
  const auto sent = counted("all_gather", input, static_cast<int64_t>(input.nbytes()) * others);
  return started("all_gather", real_->all_gather(output, sent));
}

comm::PendingPtr CountingCommunicator::all_reduce_sum(const at::Tensor& tensor) {
  const int64_t others = world_size() - 1;
  counted("all_reduce", tensor, 2 * static_cast<int64_t>(tensor.nbytes()) * others / world_size());
  auto pending = started("all_reduce", real_->all_reduce_sum(tensor));
  if (fault_.one_more) comm::exchange(*this, at::zeros({1}, at::kLong));
  return pending;
}

comm::PendingPtr CountingCommunicator::reduce_scatter_sum(const at::Tensor& output,
                                                          const at::Tensor& input) {
  const int64_t others = world_size() - 1;
  const auto sent = counted("reduce_scatter", input,
                            static_cast<int64_t>(input.nbytes()) / world_size() * others);
  return started("reduce_scatter", real_->reduce_scatter_sum(output, sent));
}

comm::PendingPtr CountingCommunicator::broadcast(const at::Tensor& tensor, int root) {
  const int64_t others = rank() == root ? world_size() - 1 : 0;
  counted("broadcast", tensor, static_cast<int64_t>(tensor.nbytes()) * others);
  return started("broadcast", real_->broadcast(tensor, root));
}

}  // namespace equigrad::perf
