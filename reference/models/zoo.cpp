// The networks. B batch, T context, P patches, D features, H heads, V vocabulary.
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cmath>

#include "reference/models/model.hpp"

namespace equigrad::reference {
namespace {

namespace nn = torch::nn;

nn::LayerNorm layer_norm(int64_t dim) { return nn::LayerNorm(nn::LayerNormOptions({dim})); }

class Block : public nn::Module {
 public:
  Block(int64_t dim, int64_t heads)
      : heads_(heads),
        attention_norm_(register_module("attention_norm", layer_norm(dim))),
        qkv_(register_module("qkv", nn::Linear(dim, 3 * dim))),
        projection_(register_module("projection", nn::Linear(dim, dim))),
        mlp_norm_(register_module("mlp_norm", layer_norm(dim))),
        up_(register_module("up", nn::Linear(dim, 4 * dim))),
        down_(register_module("down", nn::Linear(4 * dim, dim))) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {  // [B, T, D], [T, T]
    const at::Tensor y = x + projection_(attend(qkv_(attention_norm_(x)), mask));
    return y + down_(at::gelu(up_(mlp_norm_(y))));
  }

 private:
  at::Tensor attend(const at::Tensor& qkv, const at::Tensor& mask) const {  // [B, T, 3 D]
    const int64_t batch = qkv.size(0), context = qkv.size(1), width = qkv.size(2) / 3 / heads_;
    const at::Tensor split = qkv.view({batch, context, 3, heads_, width}).permute({2, 0, 3, 1, 4});
    const at::Tensor keys = split[1].transpose(-2, -1);  // [B, H, D / H, T]
    const at::Tensor scores = at::matmul(split[0], keys) / std::sqrt(static_cast<double>(width));
    const at::Tensor mixed = at::matmul(at::softmax(scores + mask, -1), split[2]);
    return mixed.transpose(1, 2).reshape({batch, context, heads_ * width});
  }

  int64_t heads_;
  nn::LayerNorm attention_norm_;
  nn::Linear qkv_, projection_;
  nn::LayerNorm mlp_norm_;
  nn::Linear up_, down_;
};

class Gpt : public Model {
 public:
  explicit Gpt(const GptOptions& options)
      : token_(register_module("token", nn::Embedding(options.vocabulary, options.dim))),
        position_(register_parameter("position", at::empty({options.context, options.dim}))) {
    for (int64_t i = 0; i < options.layers; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i),
                                        std::make_shared<Block>(options.dim, options.heads)));
    }
    norm_ = register_module("norm", layer_norm(options.dim));
    head_ = register_module(
        "head", nn::Linear(nn::LinearOptions(options.dim, options.vocabulary).bias(false)));
    const at::Tensor blocked = at::full({options.context, options.context}, -INFINITY).triu(1);
    mask_ = register_buffer("mask", blocked);
  }

  at::Tensor output(const Batch& batch) override {  // [B, T] -> [B, T, V]
    at::Tensor x = token_(batch.input) + position_;
    const at::Tensor mask = mask_.to(x.scalar_type());
    for (const auto& block : blocks_) x = block->forward(x, mask);
    return head_(norm_(x));
  }

  at::Tensor criterion(const at::Tensor& output, const Batch& batch) override {
    return at::cross_entropy_loss(widen(output).flatten(0, 1), batch.target.flatten());
  }

 private:
  nn::Embedding token_;
  at::Tensor position_;  // [T, D]
  std::vector<std::shared_ptr<Block>> blocks_;
  nn::LayerNorm norm_{nullptr};
  nn::Linear head_{nullptr};
  at::Tensor mask_;  // [T, T], -inf where the key is in the future
};

// Holds a weight that another module may hold too.
class Holder : public nn::Module {
 public:
  explicit Holder(const at::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  at::Tensor weight;
};

// Everything about parameters that is easy to get wrong, in one small network.
class Irregular : public Model {
 public:
  Irregular()
      : encode_(register_module("encode", std::make_shared<Holder>(at::empty({13, 7})))),
        twice_(register_module("twice", nn::Linear(13, 13))),
        unused_(register_module("unused", nn::Linear(5, 3))),
        sometimes_(register_module("sometimes", nn::Linear(13, 13))),
        decode_(register_module("decode", std::make_shared<Holder>(encode_->weight))),
        head_(register_module("head", nn::Linear(7, 5))) {
    frozen_ = register_parameter("frozen", at::empty({13}), /*requires_grad=*/false);
    empty_ = register_parameter("empty", at::empty({0}));
    scalar_ = register_parameter("scalar", at::empty({}));
  }

  at::Tensor output(const Batch& batch) override {                          // [3, 7] -> [3, 5]
    at::Tensor x = at::tanh(at::matmul(batch.input, encode_->weight.t()));  // [3, 13]
    x = at::gelu(twice_(at::gelu(twice_(x)))) * frozen_;
    // A batch whose text starts with a space, a capital or punctuation takes the branch.
    if (batch.input[0][0].item<float>() < 0) x = x + at::tanh(sometimes_(x));
    x = at::cat({at::matmul(x, decode_->weight).flatten(), empty_}).view({-1, 7});  // tied
    return head_(at::tanh(x)) * scalar_;
  }

  at::Tensor criterion(const at::Tensor& output, const Batch& batch) override {
    return at::cross_entropy_loss(widen(output), batch.target);
  }

  at::Tensor penalty() override {
    return 0.125 * widen(head_->weight).square().mean() + (widen(scalar_) - 2).square() * 0.25;
  }

  std::vector<GroupSpec> groups() override {
    GroupSpec matrices, rest{.names = {}, .lr = 0.003, .weight_decay = 0.0};
    for (const auto& [name, parameter] : unique_parameters(*this)) {
      if (!parameter.requires_grad()) continue;
      (parameter.dim() >= 2 ? matrices : rest).names.push_back(name);
    }
    return {matrices, rest};
  }

 private:
  std::shared_ptr<Holder> encode_;
  nn::Linear twice_, unused_, sometimes_;
  std::shared_ptr<Holder> decode_;
  nn::Linear head_;
  at::Tensor frozen_, empty_, scalar_;
};

class Vision : public Model {
 public:
  Vision()
      : patch_(register_module("patch", nn::Linear(49, 24))),
        place_(register_parameter("place", at::empty({16, 24}))),
        mix_(register_module("mix", nn::Linear(24, 24))),
        norm_(register_module("norm", layer_norm(24))),
        weight_(register_buffer("weight", at::arange(1, 25, at::kFloat) / 24)) {}

  at::Tensor output(const Batch& batch) override {  // [B, P, 49] -> [B, P, D]
    const at::Tensor x = at::gelu(patch_(batch.input) + place_);
    return norm_(x + mix_(x));
  }

  // A quadratic form whose weight differs for every feature, in fp32 whatever the model computes
  // in, and the angle to the target.
  at::Tensor criterion(const at::Tensor& output, const Batch& batch) override {
    const at::Tensor y = widen(output), target = widen(batch.target);
    const at::Tensor angle = 1 - at::cosine_similarity(y, target, /*dim=*/-1);  // [B, P]
    return ((y - target).square() * weight_).mean() + angle.mean();
  }

 private:
  nn::Linear patch_;
  at::Tensor place_;
  nn::Linear mix_;
  nn::LayerNorm norm_;
  at::Tensor weight_;  // [D]
};

class Conv : public Model {
 public:
  Conv()
      : first_(register_module("first", nn::Conv2d(strided(1, 4)))),
        second_(register_module("second", nn::Conv2d(strided(4, 8)))),
        head_(register_module("head", nn::Linear(8 * 7 * 7, 10))),
        prior_(register_module("prior", std::make_shared<Holder>(head_->weight))) {}

  at::Tensor penalty() override { return 0.125 * widen(prior_->weight).square().mean(); }

  at::Tensor output(const Batch& batch) override {       // [B, 1, 28, 28] -> [B, 10]
    const at::Tensor x = at::gelu(first_(batch.input));  // [B, 4, 14, 14]
    return head_(at::gelu(second_(x)).flatten(1));
  }

  at::Tensor criterion(const at::Tensor& output, const Batch& batch) override {
    return at::cross_entropy_loss(widen(output), batch.target);
  }

 private:
  static nn::Conv2dOptions strided(int64_t in, int64_t out) {
    return nn::Conv2dOptions(in, out, /*kernel_size=*/3).stride(2).padding(1);
  }

  nn::Conv2d first_, second_;
  nn::Linear head_;
  std::shared_ptr<Holder> prior_;  // autocast may round what the head alone would read
};

// Matrices uniform with variance 1 / fan_in, biases around 0, all else (gains) around 1. Nothing
// starts at exactly 0 or 1, where mistakes hide.
std::shared_ptr<Model> initialized(std::shared_ptr<Model> model, uint64_t seed) {
  uint64_t key = hash(seed);
  for (auto& [name, parameter] : unique_parameters(*model)) {
    key = hash(key);
    const bool matrix = parameter.dim() >= 2;
    const int64_t fan_in = matrix ? parameter.numel() / parameter.size(0) : 1;
    const double width = matrix ? std::sqrt(3.0 / static_cast<double>(fan_in)) : 0.1;
    const double center = matrix || name.ends_with("bias") ? 0 : 1;
    float* out = parameter.detach().mutable_data_ptr<float>();
    for (int64_t i = 0; i < parameter.numel(); ++i) {
      const uint64_t bits = hash(key + static_cast<uint64_t>(i)) >> 40;  // 24 of them
      const double uniform = static_cast<double>(bits) / (1 << 23) - 1;  // [-1, 1)
      out[i] = static_cast<float>(center + width * uniform);
    }
  }
  return model;
}

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> kNames = {"gpt", "irregular", "vision", "conv"};
  return kNames;
}

std::shared_ptr<Model> make_gpt(const GptOptions& options, uint64_t seed) {
  return initialized(std::make_shared<Gpt>(options), seed);
}

std::shared_ptr<Model> make_model(const std::string& name, uint64_t seed) {
  if (name == "gpt") return make_gpt({.layers = 2, .dim = 24, .heads = 2, .context = 16}, seed);
  if (name == "irregular") return initialized(std::make_shared<Irregular>(), seed);
  if (name == "vision") return initialized(std::make_shared<Vision>(), seed);
  TORCH_CHECK(name == "conv", "[model] expected gpt, irregular, vision or conv, got ", name, ".");
  return initialized(std::make_shared<Conv>(), seed);
}

}  // namespace equigrad::reference
