#include "conformance/on_rank/split_model.hpp"

#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <utility>

#include "conformance/cases/linear_model.hpp"
#include "engine/parallel/layers.hpp"
#include "engine/parallel/split_marks.hpp"

namespace equigrad::conformance {
namespace {

namespace nn = torch::nn;

constexpr int64_t kEntries = 64, kPlaces = 8, kFeatures = 16, kInner = 24;
constexpr int64_t kQueryHeads = 8, kValueHeads = 4, kHeadWidth = 4;
constexpr int64_t kQueries = kQueryHeads * kHeadWidth, kValues = kValueHeads * kHeadWidth;
constexpr double kEpsilon = 1e-5;

// A weight under a name of its own, or one that another module has too.
struct Held : nn::Module {
  explicit Held(const at::Tensor& given) : weight(register_parameter("weight", given)) {}
  at::Tensor weight;
};

class SplitModel : public reference::Model {
 public:
  explicit SplitModel(parallel::Group group)
      : group_(std::move(group)),
        token_(register_module("token", parallel::Embedding(kEntries, kFeatures, group_))),
        position_(register_parameter("position", at::empty({kPlaces, kFeatures}))),
        attention_norm_(register_module("attention_norm", norm_of_features())),
        qkv_(register_module(
            "qkv", parallel::ColumnLinear(kFeatures, kQueries + 2 * kValues, group_, true,
                                          parallel::Segments{kQueries, kValues, kValues}))),
        projection_(
            register_module("projection", parallel::RowLinear(kQueries, kFeatures, group_))),
        mlp_norm_(register_module("mlp_norm", std::make_shared<Held>(at::empty({kFeatures})))),
        gate_up_(
            register_module("gate_up", parallel::ColumnLinear(kFeatures, 2 * kInner, group_, false,
                                                              parallel::Segments{kInner, kInner}))),
        down_(register_module("down", parallel::RowLinear(kInner, kFeatures, group_))),
        norm_(register_module("norm", norm_of_features())),
        head_(register_module("head", std::make_shared<Held>(token_->weight))) {
    constexpr auto kNever = -std::numeric_limits<float>::infinity();
    future_ = register_buffer("mask", at::full({kPlaces, kPlaces}, kNever).triu(1));
  }

  at::Tensor output(const reference::Batch& batch) override {
    auto x = token_(batch.input) + position_;
    x = x + projection_(attention(qkv_(attention_norm_(x))));
    const auto halves = gate_up_(rms_norm(x)).chunk(2, -1);
    x = x + down_(at::silu(halves[0]) * halves[1]);
    return parallel::column_linear(norm_(x), head_->weight, {}, group_);
  }

  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override {
    return parallel::cross_entropy(output.flatten(0, 1), batch.target.flatten(), group_);
  }

 private:
  static nn::LayerNorm norm_of_features() {
    return nn::LayerNorm(nn::LayerNormOptions({kFeatures}));
  }

  at::Tensor rms_norm(const at::Tensor& x) const {
    return x * at::rsqrt(x.square().mean(-1, true) + kEpsilon) * mlp_norm_->weight;
  }

  // Of this rank's heads.
  at::Tensor attention(const at::Tensor& qkv) const {
    const int64_t size = group_->world_size(), shared = kQueryHeads / kValueHeads;
    const auto pieces =
        qkv.split_with_sizes({kQueries / size, kValues / size, kValues / size}, /*dim=*/2);
    const auto by_head = [](const at::Tensor& piece) {
      return piece.view({piece.size(0), piece.size(1), -1, kHeadWidth}).transpose(1, 2);
    };
    const auto keys = by_head(pieces[1]).repeat_interleave(shared, 1);
    const auto values = by_head(pieces[2]).repeat_interleave(shared, 1);
    const auto scores = at::matmul(by_head(pieces[0]), keys.transpose(-2, -1)) /
                        std::sqrt(static_cast<double>(kHeadWidth));
    const auto weights = at::softmax(scores + future_.to(scores.scalar_type()), -1);
    return at::matmul(weights, values).transpose(1, 2).flatten(2);
  }

  parallel::Group group_;
  parallel::Embedding token_;
  at::Tensor position_;
  nn::LayerNorm attention_norm_;
  parallel::ColumnLinear qkv_;
  parallel::RowLinear projection_;
  std::shared_ptr<Held> mlp_norm_;
  parallel::ColumnLinear gate_up_;
  parallel::RowLinear down_;
  nn::LayerNorm norm_;
  std::shared_ptr<Held> head_;
  at::Tensor future_;
};

}  // namespace

std::shared_ptr<reference::Model> split_model(const std::string& name, uint64_t seed,
                                              const parallel::Group& group) {
  auto model = std::make_shared<SplitModel>(group);
  const auto whole = make_case_model(name, seed);
  const auto values = whole->named_parameters();
  const at::NoGradGuard no_grad;
  for (const auto& [of, parameter] : reference::unique_parameters(*model)) {
    const auto split = parallel::split_of(parameter);
    const auto& value = values[of];
    at::Tensor(parameter).copy_(
        split ? parallel::part_of(value, *split, group->rank(), group->world_size()) : value);
  }
  return model;
}

}  // namespace equigrad::conformance
