// RecordedWire: writes down every call that goes through a communicator, in order.
//
// A call is ["all_to_all", b]: b bytes to every other rank. So are "all_gather", the "words" of
// exchange() and "broadcast" (at the root; elsewhere b is 0). ["send", b, to another host?] is of
// one message, its receipt is not written down.
// ["all_reduce", b] and ["reduce_scatter", b] are the backend's own, of b bytes of this rank's
// buffer. What is under way is what rows are received into, until they are waited for.
//
// Invariants: everything goes to the wrapped communicator in its order. A trade is the all_to_all
// that it stands for.
// Units: bytes.
// Errors: the wrapped one's.
// Depends on: engine/comm/communicator.hpp, nlohmann json.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/comm/communicator.hpp"

namespace equigrad::perf {

class RecordedWire final : public comm::Communicator {
 public:
  // Whose hosts have so many ranks, it says; 0: as the wrapped one says.
  explicit RecordedWire(std::shared_ptr<comm::Communicator> real, int local_ranks = 0)
      : real_(std::move(real)), local_ranks_(local_ranks) {}

  const nlohmann::json& calls() const { return calls_; }
  int64_t most_under_way_bytes() const { return under_way_->most_bytes; }
  void forget();

  int rank() const override { return real_->rank(); }
  int world_size() const override { return real_->world_size(); }
  c10::Device device() const override { return real_->device(); }
  bool trades() const override { return real_->trades(); }

  int local_ranks() const override {
    return local_ranks_ == 0 ? real_->local_ranks() : local_ranks_;
  }

  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr trade(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr gather_words(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr all_reduce_sum(const at::Tensor& tensor) override;
  comm::PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr broadcast(const at::Tensor& tensor, int root) override;
  comm::PendingPtr send(const at::Tensor& tensor, int to, int tag) override;
  comm::PendingPtr receive(const at::Tensor& tensor, int from, int tag) override;

 private:
  struct UnderWay {
    int64_t bytes = 0, most_bytes = 0;
  };
  class Received;
  comm::PendingPtr received(comm::PendingPtr pending, const at::Tensor& into);
  void note(const char* what, const at::Tensor& sent, int64_t parts = 1);

  std::shared_ptr<comm::Communicator> real_;
  int local_ranks_;
  std::shared_ptr<UnderWay> under_way_ = std::make_shared<UnderWay>();
  nlohmann::json calls_ = nlohmann::json::array();
};

}  // namespace equigrad::perf
