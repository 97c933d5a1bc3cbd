#include "conformance/on_rank/split_model.hpp"

#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <optional>
#include <utility>
#include <vector>

#include "conformance/cases/device.hpp"
#include "conformance/cases/dropped_out.hpp"
#include "conformance/cases/gated_model.hpp"
#include "conformance/cases/linear_model.hpp"
#include "conformance/on_rank/local_attention.hpp"
#include "engine/parallel/distributed_attention.hpp"
#include "engine/parallel/layers.hpp"
#include "engine/parallel/sequence.hpp"
#include "engine/parallel/split_marks.hpp"
#include "engine/parallel/split_random.hpp"

namespace equigrad::conformance {
namespace {

namespace nn = torch::nn;

constexpr double kEpsilon = 1e-5;

// A weight under a name of its own, or one that another module has too.
struct Held : nn::Module {
  explicit Held(const at::Tensor& given) : weight(register_parameter("weight", given)) {}
  at::Tensor weight;
};

nn::LayerNorm norm_of_features(const GatedSizes& of) {
  return nn::LayerNorm(nn::LayerNormOptions({of.features}));
}

parallel::ColumnLinear packed_queries(const GatedSizes& of, const parallel::Group& group) {
  const int64_t queries = of.heads * of.width, keys = of.key_heads * of.width;
  return parallel::ColumnLinear(of.features, queries + 2 * keys, group, of.has_qkv_bias,
                                parallel::Segments{queries, keys, keys});
}

struct SplitBlock : nn::Module {
  SplitBlock(const GatedSizes& of, const parallel::Group& tensor, const parallel::Group& sequence)
      : attention_norm(register_module("attention_norm", norm_of_features(of))),
        qkv(register_module("qkv", packed_queries(of, tensor))),
        projection(register_module("projection",
                                   parallel::RowLinear(of.heads * of.width, of.features, tensor))),
        mlp_norm(register_module("mlp_norm", std::make_shared<Held>(at::empty({of.features})))),
        gate_up(register_module("gate_up",
                                parallel::ColumnLinear(of.features, 2 * of.hidden, tensor, false,
                                                       parallel::Segments{of.hidden, of.hidden}))),
        down(register_module("down", parallel::RowLinear(of.hidden, of.features, tensor))),
        attention(local_attention, sequence) {}

  at::Tensor attended(const at::Tensor& x, const at::Tensor& mask, const GatedSizes& of) {
    const int64_t ranks = of.tensor, keys = of.key_heads * of.width / ranks;
    const auto pieces = qkv(attention_norm(x))
                            .split_with_sizes({of.heads * of.width / ranks, keys, keys}, /*dim=*/2);
    const auto by_head = [&](const at::Tensor& piece) {
      return piece.unflatten(2, {-1, of.width});
    };
    const auto mixed = attention(by_head(pieces[0]), by_head(pieces[1]), by_head(pieces[2]), mask);
    return x + dropped(projection(mixed.flatten(2)), of);
  }

  static at::Tensor dropped(const at::Tensor& x, const GatedSizes& of) {
    return of.drops_out ? dropped_out(x) : x;
  }

  at::Tensor gated(const at::Tensor& x, const GatedSizes& of, const parallel::Group& tensor) {
    const auto scaled = x * at::rsqrt(x.square().mean(-1, true) + kEpsilon) * mlp_norm->weight;
    const auto halves = gate_up(scaled).chunk(2, -1);
    auto part = at::silu(halves[0]) * halves[1];
    if (of.drops_out) {
      const parallel::SplitRandom random(tensor);
      part = dropped_out(part);
    }
    return x + dropped(down(part), of);
  }

  nn::LayerNorm attention_norm;
  parallel::ColumnLinear qkv;
  parallel::RowLinear projection;
  std::shared_ptr<Held> mlp_norm;
  parallel::ColumnLinear gate_up;
  parallel::RowLinear down;
  parallel::DistributedAttention<decltype(&local_attention)> attention;
};

class SplitModel : public reference::Model {
 public:
  SplitModel(const GatedSizes& sizes, parallel::Group tensor, parallel::Group sequence)
      : sizes_(sizes),
        tensor_(std::move(tensor)),
        sequence_(std::move(sequence)),
        token_(register_module("token",
                               parallel::Embedding(sizes.vocabulary, sizes.features, tensor_))),
        position_(register_parameter("position", at::empty({sizes.context, sizes.features}))) {
    for (int64_t i = 0; i < sizes.layers; ++i)
      blocks_.push_back(register_module("block" + std::to_string(i),
                                        std::make_shared<SplitBlock>(sizes, tensor_, sequence_)));
    norm_ = register_module("norm", norm_of_features(sizes));
    if (sizes.is_tied)
      head_ = register_module("head", std::make_shared<Held>(token_->weight))->weight;
    else
      head_ = register_module("head", parallel::ColumnLinear(sizes.features, sizes.vocabulary,
                                                             tensor_, /*with_bias=*/false))
                  ->weight;
    if (sizes.has_spare)
      register_module("spare", parallel::ColumnLinear(sizes.features, sizes.hidden, tensor_));
  }

  at::Tensor output(const reference::Batch& batch) override {
    std::optional<DrawsOfBatch> draws;
    if (sizes_.drops_out) draws.emplace(batch.input);
    const auto part = part_of(batch);
    const auto mask = mask_of(batch.input, sizes_.has_padding);
    auto x =
        token_(part.tokens) + (sequence_ ? at::embedding(position_, part.positions) : position_);
    for (const auto& block : blocks_)
      x = block->gated(block->attended(x, mask, sizes_), sizes_, tensor_);
    return parallel::column_linear(norm_(x), head_, {}, tensor_);
  }

  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override {
    const auto targets = sizes_.shifts_labels
                             ? part_of(batch).targets
                             : parallel::sequence_part(batch.target, -1, sequence_);
    if (!tensor_ || !sizes_.splits_loss)
      return parallel::sequence_cross_entropy(parallel::gather_from(output, 2, tensor_), targets,
                                              sequence_);
    const auto logits = output.flatten(0, 1), flat = targets.flatten();
    if (!sequence_) return parallel::cross_entropy(logits, flat, tensor_);
    return parallel::sequence_mean(parallel::cross_entropy_by_row(logits, flat, tensor_).sum(),
                                   flat.ne(parallel::kIgnoredTarget).sum(), sequence_);
  }

 private:
  parallel::BatchPart part_of(const reference::Batch& batch) const {
    return parallel::split_batch({.tokens = batch.input, .labels = batch.target, .positions = {}},
                                 sequence_);
  }

  const GatedSizes sizes_;
  parallel::Group tensor_, sequence_;
  parallel::Embedding token_;
  at::Tensor position_;
  std::vector<std::shared_ptr<SplitBlock>> blocks_;
  nn::LayerNorm norm_{nullptr};
  at::Tensor head_;
};

void take_values(const reference::Model& model, const reference::Model& whole,
                 const parallel::Group& group) {
  const auto values = whole.named_parameters();
  const at::NoGradGuard no_grad;
  for (const auto& [of, parameter] : reference::unique_parameters(model)) {
    const auto split = parallel::split_of(parameter);
    const auto& value = values[of];
    at::Tensor(parameter).copy_(
        split ? parallel::part_of(value, *split, group->rank(), group->world_size()) : value);
  }
}

}  // namespace

std::shared_ptr<reference::Model> split_model(const std::string& name, uint64_t seed,
                                              const parallel::Group& tensor,
                                              const parallel::Group& sequence) {
  return split_model(gated_sizes(name), seed, tensor, sequence);
}

std::shared_ptr<reference::Model> split_model(const GatedSizes& sizes, uint64_t seed,
                                              const parallel::Group& tensor,
                                              const parallel::Group& sequence) {
  auto model = std::make_shared<SplitModel>(sizes, tensor, sequence);
  take_values(*model, *make_gated(sizes, seed), tensor);
  freeze(*model, sizes.frozen);
  return on_device(model);
}

}  // namespace equigrad::conformance
