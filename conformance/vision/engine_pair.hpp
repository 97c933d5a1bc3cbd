// EnginePair: what one rank has of the two engines: both of them, or one.
//
// Invariants: the engine of the encoder never sees a loss, and the other never sees an image. Every
//   rank calls step() of what it has once per micro-batch.
// Shapes: features and their gradient are [N, 4, 32], in the compute dtype.
// Errors: those of the engines, of the bridge and of the communicators.
// Depends on: setting.hpp, album.hpp, models.hpp, reference_pair.hpp, engine/engine.hpp,
// engine/parallel/bridge.hpp, lane_tally.hpp, ranks/rank_context.hpp.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "conformance/ranks/rank_context.hpp"
#include "conformance/verdict/lane_tally.hpp"
#include "conformance/vision/album.hpp"
#include "conformance/vision/models.hpp"
#include "conformance/vision/reference_pair.hpp"
#include "conformance/vision/setting.hpp"
#include "engine/engine.hpp"
#include "engine/parallel/bridge.hpp"

namespace equigrad::conformance::vision {

class EnginePair {
 public:
  // `context` and `album` outlive it.
  EnginePair(const Setting& setting, ranks::RankContext& context, const Album& album);

  void step();
  // Of the last step's micro-batches; empty where there is no language model.
  const std::vector<at::Tensor>& losses() const { return losses_; }
  // All that this rank holds after the last step. Collective at stage 3.
  void compare(const PairRecord& want, LaneTally& encoder, LaneTally& language);
  // What the language model writes to images that it has not seen, one of this rank's after
  // another; undefined where there is none. The other ranks have as many, of two groups all
  // together.
  at::Tensor write(const at::Tensor& images);
  // The rank's place among those of its engine, and how many there are.
  int group_rank() const {
    return reads_only() ? context_.rank() - setting_.ranks : context_.rank();
  }
  int group_size() const { return reads_only() ? setting_.language_ranks() : setting_.ranks; }

 private:
  struct Half {
    std::shared_ptr<reference::Model> model;
    std::unique_ptr<Engine> engine;
    std::map<std::string, at::Tensor> gradients;  // of the last update, this rank's slices
  };

  void micro_batch(int64_t index);
  void in_one_graph(const reference::Batch& batch);
  void by_gradient(const reference::Batch& batch);
  void over_the_bridge(const reference::Batch& batch);
  at::Tensor read(const at::Tensor& input, const reference::Batch& batch, bool retain_graph);
  at::Tensor handed(const at::Tensor& gradient);
  at::Tensor of_rank(int from, const at::Tensor& mine);
  std::unique_ptr<parallel::Bridge> make_bridge(int64_t rows, bool gradients) const;
  bool reads_only() const { return context_.rank() >= setting_.ranks; }
  void backward(const at::Tensor& logits, const reference::Batch& batch, bool retain_graph);
  void compare_half(const Half& half, const reference::StepRecord& want, LaneTally& tally) const;
  Encoder& encoder() const { return static_cast<Encoder&>(*encoder_->model); }
  Captioner& captioner() const { return static_cast<Captioner&>(*language_->model); }

  Setting setting_;
  ranks::RankContext& context_;
  const Album& album_;
  std::shared_ptr<comm::Communicator> all_, group_;
  std::unique_ptr<Half> encoder_, language_;  // null: on other ranks
  std::vector<at::Tensor> losses_;
  std::unique_ptr<parallel::Bridge> bridge_;  // of two groups
  at::Tensor handed_before_;
  int64_t step_ = 0;
};

}  // namespace equigrad::conformance::vision
