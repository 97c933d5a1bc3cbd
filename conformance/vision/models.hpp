// Models: an encoder of images and a language model which writes what it sees in them.
//
//   encoder  two strided convolutions and a linear layer
//   captioner  a byte-level GPT of two layers; the features, projected, stand before the text
//
// Invariants: weights are fp32 and depend on (model, seed) only. Features and their gradient are
//   contiguous, whoever makes them.
// Shapes: images [N, 1, 28, 28]; features [N, 4, 32]; text [N, T] int64 bytes, zeros at the end;
//   logits [N, T, 256], row i for byte i.
// Errors: c10::Error for other shapes.
// Depends on: reference/models/model.hpp, torch::nn.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "reference/models/model.hpp"

namespace equigrad::conformance::vision {

constexpr int64_t kPlaces = 4, kWidth = 32;  // of the features of an image

class Encoder : public reference::Model {
 public:
  Encoder();
  at::Tensor forward(const at::Tensor& images);
  at::Tensor output(const reference::Batch& batch) override { return forward(batch.input); }
  // The scalar whose gradient at the features is the target: what is handed over, as a loss.
  at::Tensor criterion(const at::Tensor& features, const reference::Batch& batch) override;

 private:
  torch::nn::Conv2d fine_, coarse_;
  torch::nn::Linear head_;
};

class Block : public torch::nn::Module {
 public:
  Block();
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask);  // [N, T, D], [T, T]

 private:
  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear qkv_, mix_;
  torch::nn::LayerNorm mlp_norm_;
  torch::nn::Linear up_, down_;
};

class Captioner : public reference::Model {
 public:
  explicit Captioner(int64_t longest_text);
  at::Tensor forward(const at::Tensor& features, const at::Tensor& text);
  // input: features, target: text.
  at::Tensor output(const reference::Batch& batch) override {
    return forward(batch.input, batch.target);
  }
  at::Tensor criterion(const at::Tensor& logits, const reference::Batch& batch) override;
  // The likeliest byte, one after the other.   [N, T]
  at::Tensor write(const at::Tensor& features);

 private:
  int64_t longest_text_;
  torch::nn::Linear look_;
  torch::nn::Embedding token_;
  at::Tensor position_;
  std::vector<std::shared_ptr<Block>> blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
  at::Tensor mask_;
};

std::shared_ptr<Encoder> make_encoder(uint64_t seed);
std::shared_ptr<Captioner> make_captioner(uint64_t seed);

}  // namespace equigrad::conformance::vision
