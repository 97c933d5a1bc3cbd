// CountingCommunicator: a communicator that counts what goes through it, and may be slower on
// purpose.
//
// What a rank sends, of W ranks and n elements of e bytes: all_to_all (W - 1) n e (its own part
// stays), all_gather (W - 1) n e, reduce_scatter (W - 1) n e, broadcast (W - 1) n e at the root;
// all_reduce at least 2 (W - 1) n e / W, the least that any algorithm sends (Patarasu & Yuan,
// Bandwidth optimal all-reduce algorithms for clusters of workstations, J. Parallel Distrib.
// Comput. 69, 2009).
//
// A collective is overlapped if an operator ran between its call and its wait(); operators.hpp
// counts them.
//
// Invariants: everything else is the wrapped communicator's. Faults are planted slow-downs that the
// gate must catch, never defaults.
// Units: bytes a rank; faults in microseconds a collective.
// Errors: those of the wrapped one.   Depends on: comm/communicator.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "engine/comm/communicator.hpp"

namespace equigrad::perf {

struct CommunicationCounts {
  std::map<std::string, int64_t> collectives;
  std::map<std::string, int64_t> overlapped;  // of them: operators ran before wait()
  int64_t bytes = 0;
};

struct CommunicationFault {
  int64_t sleep_us = 0;   // before each collective
  bool waits = false;     // a collective is over when its call returns: nothing overlaps
  bool copies = false;    // its input once more
  bool one_more = false;  // an exchange of one number after every all_to_all and all_reduce
};

class CountingCommunicator final : public comm::Communicator {
 public:
  CountingCommunicator(std::shared_ptr<comm::Communicator> communicator, CommunicationFault fault)
      : real_(std::move(communicator)), fault_(fault) {}

  int rank() const override { return real_->rank(); }
  int world_size() const override { return real_->world_size(); }
  c10::Device device() const override { return real_->device(); }
  comm::PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override;
  bool trades() const override { return real_->trades(); }
  comm::PendingPtr trade(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr all_reduce_sum(const at::Tensor& tensor) override;
  comm::PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr broadcast(const at::Tensor& tensor, int root) override;

  const CommunicationCounts& counts() const { return counts_; }
  void reset() { counts_ = {}; }

 private:
  at::Tensor counted(const char* name, const at::Tensor& input, int64_t bytes);
  comm::PendingPtr started(const char* name, comm::PendingPtr pending);

  std::shared_ptr<comm::Communicator> real_;
  CommunicationFault fault_;
  CommunicationCounts counts_;
};

}  // namespace equigrad::perf
