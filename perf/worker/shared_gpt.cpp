#include "perf/worker/shared_gpt.hpp"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/parallel/distributed_attention.hpp"
#include "engine/parallel/layers.hpp"
#include "engine/parallel/sequence.hpp"
#include "engine/parallel/split_marks.hpp"

namespace equigrad::perf {
namespace {

namespace nn = torch::nn;

nn::LayerNorm norm_of(int64_t features) { return nn::LayerNorm(nn::LayerNormOptions({features})); }

// Of whole sequences.   [B, C, heads, width], mask [C, C]
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& mask) {
  const auto keys = key.transpose(1, 2).transpose(-2, -1);
  const auto scores =
      at::matmul(query.transpose(1, 2), keys) / std::sqrt(static_cast<double>(query.size(3)));
  const auto weights = at::softmax(scores + mask, -1);
  return at::matmul(weights, value.transpose(1, 2)).transpose(1, 2);
}

class SharedBlock : public nn::Module {
 public:
  SharedBlock(const reference::GptOptions& options, const comm::Mesh& ranks)
      : heads_(options.heads / parallel::size_of(ranks.tensor())),
        attention_(attention, ranks.sequence()),
        attention_norm_(register_module("attention_norm", norm_of(options.dim))),
        qkv_(register_module(
            "qkv",
            parallel::ColumnLinear(options.dim, 3 * options.dim, ranks.tensor(), true,
                                   parallel::Segments{options.dim, options.dim, options.dim}))),
        projection_(register_module("projection",
                                    parallel::RowLinear(options.dim, options.dim, ranks.tensor()))),
        mlp_norm_(register_module("mlp_norm", norm_of(options.dim))),
        up_(register_module("up",
                            parallel::ColumnLinear(options.dim, 4 * options.dim, ranks.tensor()))),
        down_(register_module("down",
                              parallel::RowLinear(4 * options.dim, options.dim, ranks.tensor()))) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {  // [B, C / S, D]
    const auto y = x + projection_(attend(qkv_(attention_norm_(x)), mask));
    return y + down_(at::gelu(up_(mlp_norm_(y))));
  }

 private:
  at::Tensor attend(const at::Tensor& qkv, const at::Tensor& mask) {
    const auto pieces = qkv.view({qkv.size(0), qkv.size(1), 3, heads_, -1}).unbind(2);
    return attention_(pieces[0], pieces[1], pieces[2], mask).flatten(2);
  }

  int64_t heads_;
  parallel::DistributedAttention<decltype(&attention)> attention_;
  nn::LayerNorm attention_norm_;
  parallel::ColumnLinear qkv_;
  parallel::RowLinear projection_;
  nn::LayerNorm mlp_norm_;
  parallel::ColumnLinear up_;
  parallel::RowLinear down_;
};

class SharedGpt : public reference::Model {
 public:
  SharedGpt(const reference::GptOptions& options, const comm::Mesh& ranks)
      : sequence_(ranks.sequence()),
        token_(register_module("token", nn::Embedding(options.vocabulary, options.dim))),
        position_(register_parameter("position", at::empty({options.context, options.dim}))) {
    for (int64_t i = 0; i < options.layers; ++i)
      blocks_.push_back(register_module("block" + std::to_string(i),
                                        std::make_shared<SharedBlock>(options, ranks)));
    norm_ = register_module("norm", norm_of(options.dim));
    head_ = register_module(
        "head", nn::Linear(nn::LinearOptions(options.dim, options.vocabulary).bias(false)));
    constexpr auto kNever = -std::numeric_limits<float>::infinity();
    mask_ = register_buffer("mask", at::full({options.context, options.context}, kNever).triu(1));
  }

  at::Tensor output(const reference::Batch& batch) override {
    const auto tokens = parallel::sequence_part(batch.input, 1, sequence_);
    auto x = token_(tokens) + parallel::sequence_part(position_, 0, sequence_);
    for (const auto& block : blocks_) x = block->forward(x, mask_);
    return head_(norm_(x));
  }

  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override {
    if (!sequence_) return at::cross_entropy_loss(output.flatten(0, 1), batch.target.flatten());
    return parallel::sequence_cross_entropy(
        output, parallel::sequence_part(batch.target, 1, sequence_), sequence_);
  }

 private:
  parallel::Group sequence_;
  nn::Embedding token_;
  at::Tensor position_;  // [C, D]
  std::vector<std::shared_ptr<SharedBlock>> blocks_;
  nn::LayerNorm norm_{nullptr};
  nn::Linear head_{nullptr};
  at::Tensor mask_;  // [C, C]
};

}  // namespace

std::shared_ptr<reference::Model> make_shared_gpt(const reference::GptOptions& options,
                                                  const comm::Mesh& ranks) {
  return std::make_shared<SharedGpt>(options, ranks);
}

void read_part(reference::Model& model, const std::map<std::string, at::Tensor>& values,
               const comm::Mesh& ranks) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : reference::unique_parameters(model)) {
    const auto& whole = values.at(name);
    const auto split = parallel::split_of(parameter);
    at::Tensor(parameter).copy_(split ? parallel::part_of(whole, *split, ranks.tensor()->rank(),
                                                          ranks.tensor()->world_size())
                                      : whole);
  }
}

}  // namespace equigrad::perf
