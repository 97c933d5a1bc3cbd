// B batch, C context, D features, T parts, V vocabulary.
#include "conformance/cases/gated_model.hpp"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cmath>
#include <utility>

#include "conformance/cases/model_parts.hpp"

namespace equigrad::conformance {
namespace {

namespace nn = torch::nn;
using reference::Batch;
using reference::widen;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using Tensors = torch::autograd::variable_list;

constexpr int64_t kVocabulary = 64, kContext = 8, kDim = 16, kHidden = 24;
constexpr int64_t kHeads = 8, kKeyHeads = 4, kWidth = 4;

// The whole tensor of its parts.
at::Tensor put_together(const Tensors& parts, const Cut& cut) {
  Tensors pieces;
  const auto count = static_cast<int64_t>(parts.size());
  int64_t begin = 0;
  for (const int64_t segment : cut.segments) {
    for (const at::Tensor& part : parts)
      pieces.push_back(part.narrow(cut.dimension, begin / count, segment / count));
    begin += segment;
  }
  return at::cat(pieces, cut.dimension);
}

Tensors all_parts(const at::Tensor& whole, const Cut& cut, int64_t parts) {
  Tensors all;
  for (int64_t part = 0; part < parts; ++part) all.push_back(cut_out(whole, cut, part, parts));
  return all;
}

void save(AutogradContext* context, const Cut& cut) {
  context->saved_data["dimension"] = cut.dimension;
  context->saved_data["segments"] = cut.segments;
}

Cut saved_cut(AutogradContext* context) {
  return {.dimension = context->saved_data["dimension"].toInt(),
          .segments = context->saved_data["segments"].toIntVector()};
}

struct CutApart : Function<CutApart> {
  static Tensors forward(AutogradContext* context, const at::Tensor& whole, const Cut& cut,
                         int64_t parts) {
    save(context, cut);
    return all_parts(whole, cut, parts);
  }
  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    return {put_together(gradients, saved_cut(context)), {}, {}};
  }
};

// Of parts that are stacked.
struct PutTogether : Function<PutTogether> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& parts, const Cut& cut) {
    save(context, cut);
    context->saved_data["parts"] = parts.size(0);
    return put_together(parts.unbind(0), cut);
  }
  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    const int64_t parts = context->saved_data["parts"].toInt();
    return {at::stack(all_parts(gradients[0], saved_cut(context), parts)), {}};
  }
};

// One for each part, whose gradients are added.
struct Copies : Function<Copies> {
  static Tensors forward(AutogradContext*, const at::Tensor& x, int64_t parts) {
    Tensors copies;
    for (int64_t part = 0; part < parts; ++part) copies.push_back(x.clone());
    return copies;
  }
  static Tensors backward(AutogradContext*, const Tensors& gradients) {
    return {tree_sum(gradients), {}};
  }
};

// The mean over rows, of logits [rows, V] and targets [rows].
struct Loss : Function<Loss> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, int64_t parts) {
    const Cut cut{.dimension = 1, .segments = {logits.size(1)}};
    const at::Tensor largest = widen(logits).amax(1), column = targets.unsqueeze(1);
    Tensors exponentials, sums;
    for (const at::Tensor& part : all_parts(logits, cut, parts)) {
      exponentials.push_back(at::exp(widen(part) - largest.unsqueeze(1)));
      sums.push_back(exponentials.back().sum(1));
    }
    const at::Tensor sum = tree_sum(sums);
    const at::Tensor picked = widen(logits).gather(1, column).squeeze(1);
    const at::Tensor softmax = put_together(exponentials, cut) / sum.unsqueeze(1);
    context->save_for_backward({softmax, column});
    context->saved_data["type"] = logits.scalar_type();
    return (sum.log() + largest - picked).sum() / logits.size(0);
  }
  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    const Tensors saved = context->get_saved_variables();
    const at::Tensor one = at::zeros_like(saved[0]).scatter_(1, saved[1], 1.0);
    const at::Tensor each = gradients[0] / saved[0].size(0);
    return {((saved[0] - one) * each).to(context->saved_data["type"].toScalarType()), {}, {}};
  }
};

// What a module of the network holds.
class Weights : public nn::Module {
 public:
  explicit Weights(const at::Tensor& of_module, const at::Tensor& beside = {})
      : weight(register_parameter("weight", of_module)) {
    if (beside.defined()) bias = register_parameter("bias", beside);
  }
  at::Tensor weight, bias;
};

std::shared_ptr<Weights> matrix(int64_t in, int64_t out) {
  return std::make_shared<Weights>(at::empty({out, in}));
}

std::shared_ptr<Weights> matrix_and_bias(int64_t in, int64_t out) {
  return std::make_shared<Weights>(at::empty({out, in}), at::empty({out}));
}

const Cuts& cuts() {
  constexpr int64_t kQueries = kHeads * kWidth, kKeys = kKeyHeads * kWidth;
  static const Cuts kCuts = {
      {"token.weight", {0, {kVocabulary}}},        {"qkv.weight", {0, {kQueries, kKeys, kKeys}}},
      {"qkv.bias", {0, {kQueries, kKeys, kKeys}}}, {"projection.weight", {1, {kQueries}}},
      {"gate_up.weight", {0, {kHidden, kHidden}}}, {"down.weight", {1, {kHidden}}}};
  return kCuts;
}

class Gated : public reference::Model {
 public:
  explicit Gated(int64_t parts)
      : parts_(parts),
        token_(register_module("token", matrix(kDim, kVocabulary))),
        position_(register_parameter("position", at::empty({kContext, kDim}))),
        attention_norm_(register_module("attention_norm", layer_norm())),
        qkv_(register_module("qkv", matrix_and_bias(kDim, (kHeads + 2 * kKeyHeads) * kWidth))),
        projection_(register_module("projection", matrix_and_bias(kHeads * kWidth, kDim))),
        mlp_norm_(register_module("mlp_norm", std::make_shared<Weights>(at::empty({kDim})))),
        gate_up_(register_module("gate_up", matrix(kDim, 2 * kHidden))),
        down_(register_module("down", matrix_and_bias(kHidden, kDim))),
        norm_(register_module("norm", layer_norm())),
        head_(register_module("head", std::make_shared<Weights>(token_->weight))) {
    mask_ = register_buffer("mask", at::full({kContext, kContext}, -INFINITY).triu(1));
  }

  at::Tensor output(const Batch& batch) override {  // [B, C] -> [B, C, V]
    at::Tensor x = at::embedding(token_->weight, batch.input) + position_;
    x = x + row(attend(column(attention_norm_(x), "qkv", *qkv_)), "projection", *projection_);
    x = x + row(gate(column(rms_norm(x), "gate_up", *gate_up_)), "down", *down_);
    const Tensors logits = column(norm_(x), "token", *token_);
    if (parts_ == 1) return logits[0];
    return PutTogether::apply(at::stack(logits), Cut{.dimension = 2, .segments = {kVocabulary}});
  }

  at::Tensor criterion(const at::Tensor& output, const Batch& batch) override {
    const at::Tensor logits = output.flatten(0, 1), targets = batch.target.flatten();
    if (parts_ == 1) return at::cross_entropy_loss(widen(logits), targets);
    return Loss::apply(logits, targets, parts_);
  }

 private:
  static nn::LayerNorm layer_norm() { return nn::LayerNorm(nn::LayerNormOptions({kDim})); }

  at::Tensor rms_norm(const at::Tensor& x) const {
    const at::Tensor mean = x.square().mean(-1, /*keepdim=*/true);
    return x * at::rsqrt(mean + 1e-5) * mlp_norm_->weight;
  }

  Tensors parts(const at::Tensor& whole, const std::string& name) const {
    if (!whole.defined()) return Tensors(static_cast<size_t>(parts_));
    if (parts_ == 1) return {whole};
    return CutApart::apply(whole, cuts().at(name), parts_);
  }

  // The parts of a module's output, of a whole input.
  Tensors column(const at::Tensor& x, const std::string& name, const Weights& module) const {
    const Tensors copies = parts_ == 1 ? Tensors{x} : Copies::apply(x, parts_);
    const Tensors weights = parts(module.weight, name + ".weight");
    const Tensors biases = parts(module.bias, name + ".bias");
    Tensors outputs;
    for (size_t part = 0; part < copies.size(); ++part)
      outputs.push_back(at::linear(copies[part], weights[part], biases[part]));
    return outputs;
  }

  // The whole output, of the parts of a module's input.
  at::Tensor row(const Tensors& x, const std::string& name, const Weights& module) const {
    if (parts_ == 1) return at::linear(x[0], module.weight, module.bias);
    const Tensors weights = parts(module.weight, name + ".weight");
    Tensors outputs;
    for (size_t part = 0; part < x.size(); ++part)
      outputs.push_back(at::linear(x[part], weights[part]));
    const at::Tensor sum = sum_of_parts(outputs);
    return sum + module.bias.to(sum.scalar_type());
  }

  // Each part has some of the heads: queries, keys and values behind one another.
  Tensors attend(const Tensors& qkv) const {
    const int64_t queries = kHeads / parts_, keys = kKeyHeads / parts_;
    Tensors mixed;
    for (const at::Tensor& part : qkv) {  // [B, C, (queries + 2 keys) width]
      const auto heads = [&](const at::Tensor& piece, int64_t count) {
        return piece.view({piece.size(0), piece.size(1), count, kWidth}).transpose(1, 2);
      };
      const auto pieces =
          part.split_with_sizes({queries * kWidth, keys * kWidth, keys * kWidth}, -1);
      const at::Tensor key = heads(pieces[1], keys).repeat_interleave(queries / keys, 1);
      const at::Tensor value = heads(pieces[2], keys).repeat_interleave(queries / keys, 1);
      const at::Tensor scores = at::matmul(heads(pieces[0], queries), key.transpose(-2, -1)) /
                                std::sqrt(static_cast<double>(kWidth));
      const at::Tensor weights = at::softmax(scores + mask_.to(scores.scalar_type()), -1);
      mixed.push_back(at::matmul(weights, value).transpose(1, 2).flatten(2));
    }
    return mixed;
  }

  Tensors gate(const Tensors& gate_up) const {
    Tensors gated;
    for (const at::Tensor& part : gate_up) {
      const auto halves = part.chunk(2, -1);
      gated.push_back(at::silu(halves[0]) * halves[1]);
    }
    return gated;
  }

  int64_t parts_;
  std::shared_ptr<Weights> token_;
  at::Tensor position_;  // [C, D]
  nn::LayerNorm attention_norm_;
  std::shared_ptr<Weights> qkv_, projection_, mlp_norm_, gate_up_, down_;
  nn::LayerNorm norm_;
  std::shared_ptr<Weights> head_;  // has the weight of token_
  at::Tensor mask_;                // [C, C], -inf where the key is in the future
};

}  // namespace

bool is_gated(const std::string& model) {
  return model == "gated" || model == "gated2" || model == "gated4";
}

int parts_of(const std::string& model) {
  return is_gated(model) && model != "gated" ? model.back() - '0' : 1;
}

Cuts cuts_of(const std::string& model) { return parts_of(model) == 1 ? Cuts() : cuts(); }

at::Tensor cut_out(const at::Tensor& whole, const Cut& cut, int64_t part, int64_t parts) {
  Tensors pieces;
  int64_t begin = 0;
  for (const int64_t segment : cut.segments) {
    TORCH_CHECK(segment % parts == 0, "[gated_model] expected a segment that ", parts,
                " divides, got ", segment, ".");
    pieces.push_back(
        whole.narrow(cut.dimension, begin + part * (segment / parts), segment / parts));
    begin += segment;
  }
  return at::cat(pieces, cut.dimension).contiguous();
}

std::shared_ptr<reference::Model> make_gated(int parts, uint64_t seed) {
  auto model = std::make_shared<Gated>(parts);
  set_values(*model, seed);
  return model;
}

reference::Batch gated_batch(const reference::Data& data, const reference::Draw& draw) {
  const auto bytes = data.text_batch(2, kContext, draw);
  return {bytes.input.remainder(kVocabulary), bytes.target.remainder(kVocabulary)};
}

}  // namespace equigrad::conformance
