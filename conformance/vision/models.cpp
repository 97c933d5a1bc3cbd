#include "conformance/vision/models.hpp"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cmath>

#include "conformance/vision/album.hpp"

namespace equigrad::conformance::vision {
namespace {

namespace nn = torch::nn;

constexpr int64_t kBytes = 256, kHeads = 2, kIgnored = -100;

nn::Conv2d halving(int64_t in, int64_t out) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(2).padding(1));
}

nn::LayerNorm layer_norm() { return nn::LayerNorm(nn::LayerNormOptions({kWidth})); }

}  // namespace

Encoder::Encoder()
    : fine_(register_module("fine", halving(1, 8))),
      coarse_(register_module("coarse", halving(8, 16))),
      head_(register_module("head", nn::Linear(16 * 7 * 7, kPlaces * kWidth))) {}

at::Tensor Encoder::forward(const at::Tensor& images) {
  const auto seen = at::gelu(coarse_(at::gelu(fine_(images))));
  return at::tanh(head_(seen.flatten(1))).view({-1, kPlaces, kWidth});
}

at::Tensor Encoder::criterion(const at::Tensor& features, const reference::Batch& batch) {
  return (features * batch.target).sum();
}

Block::Block()
    : attention_norm_(register_module("attention_norm", layer_norm())),
      qkv_(register_module("qkv", nn::Linear(kWidth, 3 * kWidth))),
      mix_(register_module("mix", nn::Linear(kWidth, kWidth))),
      mlp_norm_(register_module("mlp_norm", layer_norm())),
      up_(register_module("up", nn::Linear(kWidth, 4 * kWidth))),
      down_(register_module("down", nn::Linear(4 * kWidth, kWidth))) {}

at::Tensor Block::forward(const at::Tensor& x, const at::Tensor& mask) {
  const int64_t batch = x.size(0), length = x.size(1), width = kWidth / kHeads;
  const auto split = qkv_(attention_norm_(x))
                         .view({batch, length, 3, kHeads, width})
                         .permute({2, 0, 3, 1, 4});  // [3, N, H, T, D / H]
  const auto scores = at::matmul(split[0], split[1].transpose(-2, -1)) / std::sqrt(1.0 * width);
  const auto mixed = at::matmul(at::softmax(scores + mask, -1), split[2]);
  const auto y = x + mix_(mixed.transpose(1, 2).reshape({batch, length, kWidth}));
  return y + down_(at::gelu(up_(mlp_norm_(y))));
}

Captioner::Captioner(int64_t longest_text)
    : longest_text_(longest_text),
      look_(register_module("look", nn::Linear(kWidth, kWidth))),
      token_(register_module("token", nn::Embedding(kBytes, kWidth))),
      position_(
          register_parameter("position", at::randn({kPlaces + longest_text - 1, kWidth}) * 0.1)),
      norm_(nullptr),
      head_(nullptr) {
  for (const char* name : {"block0", "block1"})
    blocks_.push_back(register_module(name, std::make_shared<Block>()));
  norm_ = register_module("norm", layer_norm());
  head_ = register_module("head", nn::Linear(nn::LinearOptions(kWidth, kBytes).bias(false)));
  const int64_t length = position_.size(0);
  mask_ = register_buffer("mask", at::full({length, length}, -INFINITY).triu(1));
}

// The last feature predicts byte 0, and byte i - 1 predicts byte i.
at::Tensor Captioner::forward(const at::Tensor& features, const at::Tensor& text) {
  const auto before = text.narrow(1, 0, text.size(1) - 1);
  auto x = at::cat({look_(features), token_(before)}, 1);
  const int64_t length = x.size(1);
  x = x + position_.narrow(0, 0, length);
  const auto mask = mask_.narrow(0, 0, length).narrow(1, 0, length).to(x.scalar_type());
  for (const auto& block : blocks_) x = block->forward(x, mask);
  return head_(norm_(x.narrow(1, kPlaces - 1, length - kPlaces + 1)));
}

at::Tensor Captioner::criterion(const at::Tensor& logits, const reference::Batch& batch) {
  const auto wanted = batch.target.masked_fill(batch.target == 0, kIgnored);
  return at::cross_entropy_loss(logits.to(at::kFloat).flatten(0, 1), wanted.flatten());
}

at::Tensor Captioner::write(const at::Tensor& features) {
  const at::NoGradGuard no_grad;
  auto text = at::zeros({features.size(0), longest_text_}, at::kLong);
  for (int64_t i = 0; i < longest_text_; ++i) {
    const auto logits = forward(features, text.narrow(1, 0, i + 1));
    text.select(1, i).copy_(logits.select(1, i).argmax(-1));
  }
  return text;
}

std::shared_ptr<Encoder> make_encoder(uint64_t seed) {
  torch::manual_seed(2 * seed);
  return std::make_shared<Encoder>();
}

std::shared_ptr<Captioner> make_captioner(uint64_t seed) {
  torch::manual_seed(2 * seed + 1);
  return std::make_shared<Captioner>(kCaptionBytes);
}

}  // namespace equigrad::conformance::vision
