// B batch, C context, D features, S parts, V vocabulary.
#include "conformance/cases/sequence_model.hpp"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "conformance/cases/model_parts.hpp"

namespace equigrad::conformance {
namespace {

using reference::Batch;
using reference::widen;
using TensorList = torch::autograd::variable_list;

constexpr int64_t kBytes = 64, kLength = 16, kFeatures = 16, kQueryHeads = 8, kHeadWidth = 4;

// Every head so many times; its gradient is the sum of theirs.
struct TakenTimes : torch::autograd::Function<TakenTimes> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& heads,
                            int64_t times) {  // [B, C / S, heads, width]
    context->saved_data["times"] = times;
    return heads.repeat_interleave(times, 2);
  }
  static TensorList backward(torch::autograd::AutogradContext* context,
                             const TensorList& gradients) {
    const int64_t times = context->saved_data["times"].toInt();
    return {tree_sum(gradients[0].unflatten(2, {-1, times}).unbind(3)).contiguous(), {}};
  }
};

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

class Sequence : public reference::Model {
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

  void take_part(int64_t part) { part_ = part; }

  at::Tensor output(const Batch& batch) override {  // [B, C] -> [S, B, C / S, V]
    const at::Tensor mask = hidden_from(batch.input);
    TensorList x = embedded(batch.input);
    x = attended(x, *first_, mask);
    x = attended(x, *second_, mask);
    TensorList logits;
    for (int64_t part = 0; part < parts_; ++part)
      logits.push_back(at::linear(normed(x[index(part)], *norm_, part), own(head_->weight, part)));
    return at::stack(logits);
  }

  at::Tensor criterion(const at::Tensor& output, const Batch& batch) override {
    at::Tensor targets = at::full_like(batch.target, kUncounted);
    targets.slice(1, 0, kLength - 1).copy_(batch.target.slice(1, 1, kLength));
    const auto count = targets.ne(kUncounted).sum().item<int64_t>();
    TensorList sums;
    for (int64_t part = 0; part < parts_; ++part)
      sums.push_back(at::cross_entropy_loss(widen(output[part]).flatten(0, 1),
                                            piece(targets, part).flatten(), {}, at::Reduction::Sum,
                                            kUncounted));
    const at::Tensor sum = parts_ == 1 ? sums[0] : sum_of_parts(sums);
    return sum / static_cast<double>(count);
  }

 private:
  static size_t index(int64_t part) { return static_cast<size_t>(part); }

  // Of a parameter, what part `part` uses.
  at::Tensor own(const at::Tensor& parameter, int64_t part) const {
    return part_ < 0 || part_ == part ? parameter : parameter.detach();
  }

  at::Tensor piece(const at::Tensor& whole, int64_t part) const {
    return whole.narrow(1, part * kLength / parts_, kLength / parts_).contiguous();
  }

  at::Tensor normed(const at::Tensor& x, const torch::nn::LayerNormImpl& norm, int64_t part) const {
    return at::layer_norm(x, {kFeatures}, own(norm.weight, part), own(norm.bias, part),
                          norm.options.eps());
  }

  at::Tensor mapped(const at::Tensor& x, const torch::nn::LinearImpl& linear, int64_t part) const {
    return torch::nn::functional::linear(x, own(linear.weight, part), own(linear.bias, part));
  }

  TensorList embedded(const at::Tensor& input) const {
    const auto places = at::arange(kLength).unsqueeze(0);
    TensorList x;
    for (int64_t part = 0; part < parts_; ++part)
      x.push_back(at::embedding(own(token_->weight, part), piece(input, part)) +
                  at::embedding(own(place_->weight, part), piece(places, part)));
    return x;
  }

  // [B, 1, C, C]: every fourth byte is padding, which nothing but itself sees.
  static at::Tensor hidden_from(const at::Tensor& input) {
    const at::Tensor later = at::ones({kLength, kLength}, at::kBool).triu(1);
    const at::Tensor padding = input.remainder(4).eq(0).unsqueeze(1);
    const at::Tensor others = at::eye(kLength, at::kBool).logical_not();
    return (padding.logical_and(others)).logical_or(later).unsqueeze(1);
  }

  // [B, C, heads, width], of some heads.
  static at::Tensor attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const at::Tensor& mask) {
    const int64_t shared = query.size(2) / key.size(2);
    const at::Tensor keys = key.transpose(1, 2).repeat_interleave(shared, 1);
    const at::Tensor values = value.transpose(1, 2).repeat_interleave(shared, 1);
    const at::Tensor scores = at::matmul(query.transpose(1, 2), keys.transpose(2, 3)) /
                              std::sqrt(static_cast<double>(kHeadWidth));
    const at::Tensor weights = at::softmax(scores.masked_fill(mask, -INFINITY), -1);
    return at::matmul(weights, values).transpose(1, 2);
  }

  // Of parts of the sequence, the whole of some heads; and of these, parts of the sequence.
  TensorList traded(const TensorList& given, int64_t from, int64_t to) const {
    if (parts_ == 1) return given;
    std::vector<TensorList> pieces(index(parts_));
    for (const at::Tensor& one : given) {
      const auto cut = one.chunk(parts_, from);
      for (int64_t part = 0; part < parts_; ++part) pieces[index(part)].push_back(cut[index(part)]);
    }
    TensorList taken;
    for (const TensorList& each : pieces) taken.push_back(at::cat(each, to).contiguous());
    return taken;
  }

  TensorList attended(const TensorList& x, const AttentionBlock& block,
                      const at::Tensor& mask) const {
    TensorList queries, keys, values, mixed;
    const int64_t width = block.heads * kHeadWidth, times = parts_ / block.heads;
    for (int64_t part = 0; part < parts_; ++part) {
      const at::Tensor packed = mapped(normed(x[index(part)], *block.norm, part), *block.qkv, part);
      const auto pieces = packed.split_with_sizes({kQueryHeads * kHeadWidth, width, width}, 2);
      const auto heads = [&](const at::Tensor& of) { return of.unflatten(2, {-1, kHeadWidth}); };
      const auto taken = [&](const at::Tensor& of) {
        return times > 1 ? TakenTimes::apply(heads(of), times) : heads(of);
      };
      queries.push_back(heads(pieces[0]));
      keys.push_back(taken(pieces[1]));
      values.push_back(taken(pieces[2]));
    }
    queries = traded(queries, 2, 1);
    keys = traded(keys, 2, 1);
    values = traded(values, 2, 1);
    for (size_t group = 0; group < queries.size(); ++group)
      mixed.push_back(attention(queries[group], keys[group], values[group], mask));
    mixed = traded(mixed, 1, 2);
    TensorList sums;
    for (int64_t part = 0; part < parts_; ++part)
      sums.push_back(x[index(part)] +
                     mapped(mixed[index(part)].flatten(2), *block.projection, part));
    return sums;
  }

  int64_t parts_, part_ = -1;
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

void take_part(reference::Model& model, int64_t part) {
  if (auto* of_sequences = dynamic_cast<Sequence*>(&model)) of_sequences->take_part(part);
}

}  // namespace equigrad::conformance
