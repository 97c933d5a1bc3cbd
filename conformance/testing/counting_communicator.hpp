// CountingCommunicator: a communicator that counts what goes through it.
//
// What a rank sends, of W ranks and n elements of e bytes: all_to_all (W - 1) n e (its own part
// stays), all_gather (W - 1) n e, reduce_scatter (W - 1) n e, broadcast (W - 1) n e at the root,
// send n e; all_reduce at least 2 (W - 1) n e / W, the least that any algorithm sends (Patarasu &
// Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, J. Parallel Distrib.
// Comput. 69, 2009).
//
// Invariants: everything goes to the wrapped communicator in its order; a derived class may hand on
// another input, or wait. A trade counts as the all_to_all that it is.
// Units: bytes a rank.
// Errors: the wrapped one's.   Depends on: engine/comm/communicator.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/comm/communicator.hpp"

namespace equigrad::conformance {

struct CommunicationCounts {
  std::map<std::string, int64_t> collectives;  // by name
  int64_t messages = 0;                        // of them: all_gathers of int64, the ranks' words
  int64_t bytes = 0;

  int64_t gathers() const {  // of anything else than messages
    const auto found = collectives.find("all_gather");
    return found == collectives.end() ? 0 : found->second - messages;
  }
};

class CountingCommunicator : public comm::Communicator {
 public:
  explicit CountingCommunicator(std::shared_ptr<comm::Communicator> communicator)
      : real_(std::move(communicator)) {}

  const CommunicationCounts& counts() const { return counts_; }
  virtual void reset() { counts_ = {}; }

  int rank() const override { return real_->rank(); }
  int world_size() const override { return real_->world_size(); }
  c10::Device device() const override { return real_->device(); }
  bool trades() const override { return real_->trades(); }

  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    const auto sent = count("all_to_all", input, bytes_of(input) / world_size() * others());
    return started("all_to_all", real_->all_to_all(output, sent));
  }
  comm::PendingPtr trade(const at::Tensor& output, const at::Tensor& input) override {
    const auto sent = count("all_to_all", input, bytes_of(input));
    return started("all_to_all", real_->trade(output, sent));
  }
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    counts_.messages += input.scalar_type() == at::kLong ? 1 : 0;
    const auto sent = count("all_gather", input, bytes_of(input) * others());
    return started("all_gather", real_->all_gather(output, sent));
  }
  comm::PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    count("all_reduce", tensor, 2 * bytes_of(tensor) * others() / world_size());
    return started("all_reduce", real_->all_reduce_sum(tensor));
  }
  comm::PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    const auto sent = count("reduce_scatter", input, bytes_of(input) / world_size() * others());
    return started("reduce_scatter", real_->reduce_scatter_sum(output, sent));
  }
  comm::PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    count("broadcast", tensor, rank() == root ? bytes_of(tensor) * others() : 0);
    return started("broadcast", real_->broadcast(tensor, root));
  }
  comm::PendingPtr send(const at::Tensor& tensor, int to, int tag) override {
    const auto sent = count("send", tensor, bytes_of(tensor));
    return started("send", real_->send(sent, to, tag));
  }
  comm::PendingPtr receive(const at::Tensor& tensor, int from, int tag) override {
    return started("receive", real_->receive(tensor, from, tag));
  }

 protected:
  // What is sent instead of `input`.
  virtual at::Tensor sent_for(const at::Tensor& input) { return input; }
  virtual comm::PendingPtr started(const char*, comm::PendingPtr pending) { return pending; }

 private:
  static int64_t bytes_of(const at::Tensor& tensor) {
    return static_cast<int64_t>(tensor.nbytes());
  }
  int64_t others() const { return world_size() - 1; }
  at::Tensor count(const char* name, const at::Tensor& input, int64_t bytes) {
    ++counts_.collectives[name];
    counts_.bytes += bytes;
    return sent_for(input);
  }

  std::shared_ptr<comm::Communicator> real_;
  CommunicationCounts counts_;
};

}  // namespace equigrad::conformance
