// B batch, C context, D features, S parts, V vocabulary.
#include "conformance/cases/sequence_model.hpp"

#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <vector>

#include "conformance/cases/model_parts.hpp"
#include "conformance/cases/sequence_parts.hpp"

namespace equigrad::conformance {
namespace {

using reference::Batch;
using reference::widen;
using TensorList = std::vector<at::Tensor>;

constexpr int64_t kBytes = 64, kLength = 16, kFeatures = 16, kQueryHeads = 8, kHeadWidth = 4;

// What is not split of a module.
struct HeadWeight : torch::nn::Module {
  explicit HeadWeight(const at::Tensor& given) : weight(register_parameter("weight", given)) {}
  at::Tensor weight;
};

struct AttentionBlock : torch::nn::Module {
  explicit AttentionBlock(int64_t key_heads)
      : heads(key_heads),
        norm(torch::nn::LayerNormOptions({kFeatures})),
        qkv(kFeatures, (kQueryHeads + 2 * key_heads) * kHeadWidth),
        projection(kQueryHeads * kHeadWidth, kFeatures) {
    register_module("norm", norm);
    register_module("qkv", qkv);
    register_module("projection", projection);
  }
  int64_t heads;  // of keys, and of values
  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv, projection;
};

class Sequence : public PartwiseModel {
 public:
  explicit Sequence(int64_t parts)
      : parts_(parts),
        token_(register_module("token", torch::nn::Embedding(kBytes, kFeatures))),
        place_(register_module("place", torch::nn::Embedding(kLength, kFeatures))),
        first_(register_module("first", std::make_shared<AttentionBlock>(4))),
        second_(register_module("second", std::make_shared<AttentionBlock>(1))),
        norm_(register_module("norm",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({kFeatures})))),
        head_(register_module("head", std::make_shared<HeadWeight>(token_->weight))) {}

  at::Tensor output(const Batch& batch) override {  // [B, C] -> [S, B, C / S, V]
    const at::Tensor mask = hidden_from(batch.input);
    TensorList x = embedded(batch.input);
    x = attended(x, *first_, mask);
    x = attended(x, *second_, mask);
    TensorList logits;
    for (int64_t part = 0; part < parts_; ++part)
      logits.push_back(at::linear(normed(x[index(part)], *norm_, part), own(head_->weight, part)));
    return stack_of_parts(logits);
  }

  at::Tensor criterion(const at::Tensor& output, const Batch& batch) override {
    const at::Tensor targets = next_labels(batch.target);
    const auto count = targets.ne(kUncounted).sum().item<int64_t>();
    TensorList sums;
    for (int64_t part = 0; part < parts_; ++part)
      sums.push_back(at::cross_entropy_loss(widen(output[part]).flatten(0, 1),
                                            piece_of(targets, part, parts_).flatten(), {},
                                            at::Reduction::Sum, kUncounted));
    const at::Tensor sum = parts_ == 1 ? sums[0] : sum_of_parts(sums);
    return sum / static_cast<double>(count);
  }

 private:
  static size_t index(int64_t part) { return static_cast<size_t>(part); }

  at::Tensor normed(const at::Tensor& x, const torch::nn::LayerNormImpl& norm, int64_t part) const {
    return at::layer_norm(x, {kFeatures}, own(norm.weight, part), own(norm.bias, part),
                          norm.options.eps());
  }

  at::Tensor mapped(const at::Tensor& x, const torch::nn::LinearImpl& linear, int64_t part) const {
    return torch::nn::functional::linear(x, own(linear.weight, part), own(linear.bias, part));
  }

  TensorList embedded(const at::Tensor& input) const {
    const auto places = at::arange(kLength, input.device()).unsqueeze(0);
    TensorList x;
    for (int64_t part = 0; part < parts_; ++part)
      x.push_back(at::embedding(own(token_->weight, part), piece_of(input, part, parts_)) +
                  at::embedding(own(place_->weight, part), piece_of(places, part, parts_)));
    return x;
  }

  TensorList attended(const TensorList& x, const AttentionBlock& block,
                      const at::Tensor& mask) const {
    PartsOfHeads given;
    const int64_t width = block.heads * kHeadWidth;
    for (int64_t part = 0; part < parts_; ++part) {
      const at::Tensor packed = mapped(normed(x[index(part)], *block.norm, part), *block.qkv, part);
      const auto pieces = packed.split_with_sizes({kQueryHeads * kHeadWidth, width, width}, 2);
      const auto heads = [&](const at::Tensor& of) { return of.unflatten(2, {-1, kHeadWidth}); };
      given.queries.push_back(heads(pieces[0]));
      given.keys.push_back(heads(pieces[1]));
      given.values.push_back(heads(pieces[2]));
    }
    const TensorList mixed = attention_of_parts(given, mask);
    TensorList sums;
    for (int64_t part = 0; part < parts_; ++part)
      sums.push_back(x[index(part)] +
                     mapped(mixed[index(part)].flatten(2), *block.projection, part));
    return sums;
  }

  int64_t parts_;
  torch::nn::Embedding token_, place_;
  std::shared_ptr<AttentionBlock> first_, second_;
  torch::nn::LayerNorm norm_;
  std::shared_ptr<HeadWeight> head_;  // has the weight of token_
};

}  // namespace

bool is_sequence(const std::string& model) {
  return model == "ulysses" || model == "ulysses2" || model == "ulysses4";
}

int sequence_parts_of(const std::string& model) {
  return is_sequence(model) && model != "ulysses" ? model.back() - '0' : 1;
}

std::shared_ptr<reference::Model> make_sequence(int parts, uint64_t seed) {
  auto model = std::make_shared<Sequence>(parts);
  const at::NoGradGuard no_grad;
  set_values(*model, seed);
  return model;
}

reference::Batch sequence_batch(const reference::Data& data, const reference::Draw& draw) {
  const auto tokens = data.text_batch(2, kLength, draw).input.remainder(kBytes);
  auto labels = tokens.clone();
  labels.masked_fill_(tokens.remainder(3).eq(0), kUncounted);
  labels.slice(1, 1, kLength / 4).fill_(kUncounted);                 // in the first part few count,
  labels.slice(1, kLength - 1).copy_(tokens.slice(1, kLength - 1));  // in the last one some do
  return {tokens, labels};
}

}  // namespace equigrad::conformance
