#include "conformance/on_rank/sequence_part.hpp"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <utility>

#include "conformance/cases/device.hpp"
#include "conformance/cases/linear_model.hpp"
#include "conformance/on_rank/local_attention.hpp"
#include "engine/parallel/distributed_attention.hpp"
#include "engine/parallel/sequence.hpp"

namespace equigrad::conformance {
namespace {

namespace layers = torch::nn;

constexpr int64_t kSymbols = 64, kPositions = 16, kChannels = 16;
constexpr int64_t kAsking = 8, kPerHead = 4;  // heads of queries, and the width of each

struct TiedHead : layers::Module {
  explicit TiedHead(const at::Tensor& given) : weight(register_parameter("weight", given)) {}
  at::Tensor weight;
};

struct SplitAttention : layers::Module {
  SplitAttention(int64_t heads, const parallel::Group& group)
      : shared(heads * kPerHead),
        norm(layers::LayerNormOptions({kChannels})),
        qkv(kChannels, kAsking * kPerHead + 2 * shared),
        projection(kAsking * kPerHead, kChannels),
        attention(local_attention, group) {
    register_module("norm", norm);
    register_module("qkv", qkv);
    register_module("projection", projection);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const auto pieces = qkv(norm(x)).split_with_sizes({kAsking * kPerHead, shared, shared}, 2);
    const auto heads = [](const at::Tensor& piece) { return piece.unflatten(2, {-1, kPerHead}); };
    const auto mixed = attention(heads(pieces[0]), heads(pieces[1]), heads(pieces[2]), mask);
    return x + projection(mixed.flatten(2));
  }
  int64_t shared;  // columns of keys, and of values
  layers::LayerNorm norm;
  layers::Linear qkv, projection;
  parallel::DistributedAttention<decltype(&local_attention)> attention;
};

class SequencePart : public reference::Model {
 public:
  explicit SequencePart(parallel::Group group)
      : group_(std::move(group)),
        token_(register_module("token", layers::Embedding(kSymbols, kChannels))),
        place_(register_module("place", layers::Embedding(kPositions, kChannels))),
        first_(register_module("first", std::make_shared<SplitAttention>(4, group_))),
        second_(register_module("second", std::make_shared<SplitAttention>(1, group_))),
        norm_(register_module("norm", layers::LayerNorm(layers::LayerNormOptions({kChannels})))),
        head_(register_module("head", std::make_shared<TiedHead>(token_->weight))) {}

  at::Tensor output(const reference::Batch& batch) override {
    const auto part = part_of(batch);
    const auto mask = mask_of(batch.input, /*has_padding=*/true);
    const auto x = token_(part.tokens) + place_(part.positions);
    return at::linear(norm_(second_->forward(first_->forward(x, mask), mask)), head_->weight);
  }

  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override {
    return parallel::sequence_cross_entropy(output, part_of(batch).targets, group_);
  }

 private:
  parallel::BatchPart part_of(const reference::Batch& batch) const {
    return parallel::split_batch({.tokens = batch.input, .labels = batch.target, .positions = {}},
                                 group_);
  }

  parallel::Group group_;
  layers::Embedding token_, place_;
  std::shared_ptr<SplitAttention> first_, second_;
  layers::LayerNorm norm_;
  std::shared_ptr<TiedHead> head_;
};

}  // namespace

std::shared_ptr<reference::Model> sequence_part_model(const std::string& name, uint64_t seed,
                                                      const parallel::Group& group) {
  auto model = std::make_shared<SequencePart>(group);
  const auto whole = make_case_model(name, seed);
  const auto values = whole->named_parameters();
  const at::NoGradGuard no_grad;
  for (const auto& [of, parameter] : reference::unique_parameters(*model))
    at::Tensor(parameter).copy_(values[of]);
  return on_device(model);
}

}  // namespace equigrad::conformance
