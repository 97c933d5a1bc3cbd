// Training: a run of a small network that is saved, lost and resumed, on one rank.
//
//   w1 [96, 40]  b1 [96]  w2 [5, 96]  b2 [5]  unused [7]  frozen [5]  and a buffer, mean [5]
//   tiny: w1 [2, 3]  b1 [2]  w2 [1, 2] ...
//
// On a tensor group w1 and b1 are a column's, w2 a row's, all packed as two matrices, and there is
// frozen_part [96], which is split as b1 is; on a sequence group each rank has some rows of a
// batch.
//
// Every step draws from the rank's generator and takes data by the engine's own counters: who
// loads a checkpoint and goes on needs nothing else. Adam's states, a warm-up of the rate, and
// in fp16 a loss scale that moves in every other step.
//
// Invariants: two runs of one setting are equal in every bit.
// Shapes: what a rank saves is several pages of 4 KiB.
// Errors: those of the engine.
// Depends on: engine, engine/parallel in the source, conformance/faults/forwarding_communicator,
// ranks, setting.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/crash/setting.hpp"
#include "conformance/faults/forwarding_communicator.hpp"
#include "conformance/ranks/rank_context.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::crash {

// Counts the collective calls of all ranks that this one has entered and left since begin().
class CallCounter : public faults::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void begin();
  std::pair<std::int64_t, std::int64_t> counts() const { return {entered_, left_}; }
  const std::vector<int>& roots() const { return roots_; }  // by call; or kAllWait
  void leave(std::int64_t call);                            // an error where it is lost
  // The other ranks hear all of this call; here it ends as if a peer were gone.
  void lose(std::int64_t call) { lost_ = call; }

  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr all_reduce_sum(const at::Tensor& tensor) override;
  comm::PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override;
  comm::PendingPtr broadcast(const at::Tensor& tensor, int root) override;

 protected:
  comm::PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override;

 private:
  std::int64_t enter(int root);

  std::vector<int> roots_;
  std::atomic<std::int64_t> entered_ = 0, left_ = 0;  // a save beside the training reads them
  std::int64_t lost_ = -1;
};

enum class Weights { AsRun, Others };  // Others: of an engine that is to load
enum class Size { Pages, Tiny };

class Training {
 public:
  Training(ranks::RankContext& context, const Setting& setting, Weights weights,
           Size size = Size::Pages);

  void step();
  // Of every bit that this rank holds and the next step depends on. Collective.
  std::string digest();
  void save(const std::string& directory, const std::string& tag,
            std::shared_ptr<checkpoint::Storage> storage = nullptr);
  // Of a save beside the training. Collective.
  void finish() { engine_->finish_checkpoint(); }
  // What the save was told; nothing where there is no `latest`.
  std::optional<std::string> load(const std::string& directory, const std::string& tag);
  CallCounter& calls() { return *calls_; }

 private:
  at::Tensor loss();
  at::Tensor output(const at::Tensor& input) const;
  int data_rank() const;
  const at::Tensor& tensor(const std::string& name) const;

  bool beside_;
  int64_t inputs_;
  at::ScalarType dtype_;
  std::shared_ptr<CallCounter> calls_;  // of the world's
  comm::Mesh mesh_;
  std::vector<NamedParameter> parameters_;
  at::Tensor mean_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace equigrad::conformance::crash
