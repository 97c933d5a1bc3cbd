// B batch, C context, D features, S and T parts, V vocabulary.
#include "conformance/cases/gated_model.hpp"

#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <optional>
#include <utility>
#include <vector>

#include "conformance/cases/dropped_out.hpp"
#include "conformance/cases/model_parts.hpp"
#include "conformance/cases/sequence_parts.hpp"

namespace equigrad::conformance {
namespace {

namespace nn = torch::nn;
using reference::Batch;
using reference::widen;
using Tensors = std::vector<at::Tensor>;

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

nn::LayerNorm layer_norm(const GatedSizes& sizes) {
  return nn::LayerNorm(nn::LayerNormOptions({sizes.features}));
}

Cut vocabulary_cut(const GatedSizes& sizes) { return {0, {sizes.vocabulary}}; }

Cut qkv_cut(const GatedSizes& sizes) {
  const int64_t keys = sizes.key_heads * sizes.width;
  return {0, {sizes.heads * sizes.width, keys, keys}};
}

Cut gate_up_cut(const GatedSizes& sizes) { return {0, {sizes.hidden, sizes.hidden}}; }

Cut hidden_cut(const GatedSizes& sizes) { return {0, {sizes.hidden}}; }

struct GatedBlock : nn::Module {
  explicit GatedBlock(const GatedSizes& of)
      : attention_norm(register_module("attention_norm", layer_norm(of))),
        projection(matrix_and_bias(of.heads * of.width, of.features)),
        mlp_norm(std::make_shared<Weights>(at::empty({of.features}))),
        gate_up(matrix(of.features, 2 * of.hidden)),
        down(matrix_and_bias(of.hidden, of.features)) {
    const int64_t outputs = (of.heads + 2 * of.key_heads) * of.width;
    qkv = of.has_qkv_bias ? matrix_and_bias(of.features, outputs) : matrix(of.features, outputs);
    register_module("qkv", qkv);
    register_module("projection", projection);
    register_module("mlp_norm", mlp_norm);
    register_module("gate_up", gate_up);
    register_module("down", down);
  }
  nn::LayerNorm attention_norm;
  std::shared_ptr<Weights> qkv, projection, mlp_norm, gate_up, down;
};

class Gated : public PartwiseModel {
 public:
  explicit Gated(const GatedSizes& sizes)
      : sizes_(sizes),
        token_(register_module("token", matrix(sizes.features, sizes.vocabulary))),
        position_(register_parameter("position", at::empty({sizes.context, sizes.features}))) {
    for (int64_t i = 0; i < sizes.layers; ++i)
      blocks_.push_back(
          register_module("block" + std::to_string(i), std::make_shared<GatedBlock>(sizes)));
    norm_ = register_module("norm", layer_norm(sizes));
    head_ = register_module("head", sizes.is_tied ? std::make_shared<Weights>(token_->weight)
                                                  : matrix(sizes.features, sizes.vocabulary));
    if (sizes.has_spare) register_module("spare", matrix_and_bias(sizes.features, sizes.hidden));
  }

  at::Tensor output(const Batch& batch) override {
    std::optional<DrawsOfBatch> draws;
    if (sizes_.drops_out) draws.emplace(batch.input);
    const at::Tensor mask = hidden_from(batch.input, sizes_.has_padding);
    Tensors x = embedded(batch.input), logits;
    for (const auto& block : blocks_) {
      x = attended(x, *block, mask);
      for (size_t part = 0; part < x.size(); ++part) x[part] = gated(x[part], *block, part);
    }
    for (size_t part = 0; part < x.size(); ++part) {
      const Tensors pieces =
          column(normed(x[part], *norm_, part), *head_, part, vocabulary_cut(sizes_));
      logits.push_back(
          sizes_.tensor == 1
              ? pieces[0]
              : put_together(pieces, {.dimension = 2, .segments = {sizes_.vocabulary}}));
    }
    return logits.size() == 1 ? logits[0] : stack_of_parts(logits);
  }

  at::Tensor criterion(const at::Tensor& output, const Batch& batch) override {
    const at::Tensor targets = sizes_.shifts_labels ? next_labels(batch.target) : batch.target;
    const auto count = targets.ne(kUncounted).sum().item<int64_t>();
    Tensors sums;
    for (int64_t part = 0; part < sizes_.sequence; ++part) {
      const at::Tensor logits = (sizes_.sequence == 1 ? output : output[part]).flatten(0, 1);
      const at::Tensor own_targets = piece_of(targets, part, sizes_.sequence).flatten();
      sums.push_back(sizes_.tensor > 1 && sizes_.splits_loss
                         ? losses_of_parts(logits, own_targets, sizes_.tensor).sum()
                         : at::cross_entropy_loss(widen(logits), own_targets, {},
                                                  at::Reduction::Sum, kUncounted));
    }
    return (sums.size() == 1 ? sums[0] : sum_of_parts(sums)) / static_cast<double>(count);
  }

 private:
  // Of a parameter, what this part of the sequence uses, in the parts of the tensor ranks.
  Tensors parts(const at::Tensor& whole, size_t part, const Cut& cut) const {
    if (!whole.defined()) return Tensors(static_cast<size_t>(sizes_.tensor));
    const at::Tensor used = own(whole, static_cast<int64_t>(part));
    return sizes_.tensor == 1 ? Tensors{used} : cut_apart(used, cut, sizes_.tensor);
  }

  // The parts of a module's output, of a whole input.
  Tensors column(const at::Tensor& x, const Weights& module, size_t part, const Cut& cut) const {
    const Tensors copies = sizes_.tensor == 1 ? Tensors{x} : copies_of(x, sizes_.tensor);
    const Tensors weights = parts(module.weight, part, cut);
    const Tensors biases = parts(module.bias, part, cut);
    Tensors outputs;
    for (size_t rank = 0; rank < copies.size(); ++rank)
      outputs.push_back(at::linear(copies[rank], weights[rank], biases[rank]));
    return outputs;
  }

  // The whole output, of the parts of a module's input.
  at::Tensor row(const Tensors& x, const Weights& module, size_t part, int64_t inputs) const {
    const at::Tensor bias = own(module.bias, static_cast<int64_t>(part));
    const Tensors weights = parts(module.weight, part, {.dimension = 1, .segments = {inputs}});
    if (sizes_.tensor == 1) return at::linear(x[0], weights[0], bias);
    Tensors outputs;
    for (size_t rank = 0; rank < x.size(); ++rank)
      outputs.push_back(at::linear(x[rank], weights[rank]));
    const at::Tensor sum = sum_of_parts(outputs);
    return sum + bias.to(sum.scalar_type());
  }

  at::Tensor dropped(const at::Tensor& whole) const {
    return sizes_.drops_out ? dropped_out(whole) : whole;
  }

  at::Tensor normed(const at::Tensor& x, const nn::LayerNormImpl& norm, size_t part) const {
    const auto of = static_cast<int64_t>(part);
    return at::layer_norm(x, {sizes_.features}, own(norm.weight, of), own(norm.bias, of),
                          norm.options.eps());
  }

  Tensors embedded(const at::Tensor& tokens) const {
    if (sizes_.sequence == 1) return {at::embedding(token_->weight, tokens) + position_};
    const auto places = at::arange(sizes_.context, tokens.device()).unsqueeze(0);
    Tensors x;
    for (int64_t part = 0; part < sizes_.sequence; ++part)
      x.push_back(
          at::embedding(own(token_->weight, part), piece_of(tokens, part, sizes_.sequence)) +
          at::embedding(own(position_, part), piece_of(places, part, sizes_.sequence)));
    return x;
  }

  // Each tensor rank has some of the heads: queries, keys and values behind one another.
  Tensors attended(const Tensors& x, const GatedBlock& block, const at::Tensor& mask) const {
    const int64_t queries = sizes_.heads / sizes_.tensor * sizes_.width;
    const int64_t keys = sizes_.key_heads / sizes_.tensor * sizes_.width;
    std::vector<PartsOfHeads> by_rank(static_cast<size_t>(sizes_.tensor));
    for (size_t part = 0; part < x.size(); ++part) {
      const Tensors packed =
          column(normed(x[part], *block.attention_norm, part), *block.qkv, part, qkv_cut(sizes_));
      for (size_t rank = 0; rank < packed.size(); ++rank) {
        const auto pieces = packed[rank].split_with_sizes({queries, keys, keys}, -1);
        by_rank[rank].queries.push_back(pieces[0].unflatten(2, {-1, sizes_.width}));
        by_rank[rank].keys.push_back(pieces[1].unflatten(2, {-1, sizes_.width}));
        by_rank[rank].values.push_back(pieces[2].unflatten(2, {-1, sizes_.width}));
      }
    }
    std::vector<Tensors> mixed(x.size());
    for (const auto& heads : by_rank) {
      const Tensors given = attention_of_parts(heads, mask);
      for (size_t part = 0; part < x.size(); ++part) mixed[part].push_back(given[part].flatten(2));
    }
    Tensors sums;
    for (size_t part = 0; part < x.size(); ++part)
      sums.push_back(x[part] + dropped(row(mixed[part], *block.projection, part,
                                           sizes_.heads * sizes_.width)));
    return sums;
  }

  at::Tensor gated(const at::Tensor& x, const GatedBlock& block, size_t part) const {
    const at::Tensor mean = x.square().mean(-1, /*keepdim=*/true);
    const at::Tensor gain = own(block.mlp_norm->weight, static_cast<int64_t>(part));
    const at::Tensor scaled = x * at::rsqrt(mean + 1e-5) * gain;
    Tensors gated;
    for (const at::Tensor& one : column(scaled, *block.gate_up, part, gate_up_cut(sizes_))) {
      const auto halves = one.chunk(2, -1);
      gated.push_back(at::silu(halves[0]) * halves[1]);
    }
    if (sizes_.drops_out) gated = dropped_out_in_parts(gated);
    return x + dropped(row(gated, *block.down, part, sizes_.hidden));
  }

  const GatedSizes sizes_;
  std::shared_ptr<Weights> token_;
  at::Tensor position_;  // [C, D]
  std::vector<std::shared_ptr<GatedBlock>> blocks_;
  nn::LayerNorm norm_{nullptr};
  std::shared_ptr<Weights> head_;  // may have the weight of token_
};

}  // namespace

bool is_gated(const std::string& model) {
  return model == "gated" || model == "gated2" || model == "gated4" || model == "gated2x2" ||
         model == "dropout2";
}

GatedSizes gated_sizes(const std::string& model) {
  GatedSizes sizes;
  if (model == "gated4") sizes.tensor = 4;
  if (model == "gated2" || model == "gated2x2" || model == "dropout2") sizes.tensor = 2;
  sizes.drops_out = model == "dropout2";
  if (model == "gated2x2") sizes.sequence = 2;
  return sizes;
}

int parts_of(const std::string& model) { return static_cast<int>(gated_sizes(model).tensor); }

Cuts cuts_of(const std::string& model) { return cuts_of(gated_sizes(model)); }

Cuts cuts_of(const GatedSizes& sizes) {
  if (sizes.tensor == 1) return {};
  Cuts cuts = {{"token.weight", vocabulary_cut(sizes)}};
  if (!sizes.is_tied) cuts["head.weight"] = vocabulary_cut(sizes);
  for (int64_t i = 0; i < sizes.layers; ++i) {
    const auto block = "block" + std::to_string(i) + ".";
    cuts[block + "qkv.weight"] = qkv_cut(sizes);
    if (sizes.has_qkv_bias) cuts[block + "qkv.bias"] = qkv_cut(sizes);
    cuts[block + "projection.weight"] = {1, {sizes.heads * sizes.width}};
    cuts[block + "gate_up.weight"] = gate_up_cut(sizes);
    cuts[block + "down.weight"] = {1, {sizes.hidden}};
  }
  if (!sizes.has_spare) return cuts;
  cuts["spare.weight"] = cuts["spare.bias"] = hidden_cut(sizes);
  return cuts;
}

std::shared_ptr<reference::Model> make_gated(const GatedSizes& sizes, uint64_t seed) {
  auto model = std::make_shared<Gated>(sizes);
  set_values(*model, seed);
  freeze(*model, sizes.frozen);
  return model;
}

reference::Batch gated_batch(const reference::Data& data, const reference::Draw& draw) {
  const GatedSizes sizes;
  const auto bytes = data.text_batch(2, sizes.context, draw);
  const auto target = bytes.target.remainder(sizes.vocabulary);
  return {bytes.input.remainder(sizes.vocabulary),
          target.masked_fill(bytes.input.remainder(7).eq(3), kUncounted)};
}

void freeze(const reference::Model& model, const std::string& word) {
  if (word.empty()) return;
  for (const auto& [name, parameter] : reference::unique_parameters(model))
    if (name.find(word) != std::string::npos) at::Tensor(parameter).set_requires_grad(false);
}

}  // namespace equigrad::conformance
