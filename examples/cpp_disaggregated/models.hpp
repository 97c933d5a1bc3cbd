// Models: an encoder of images, and a byte-level GPT of two layers which writes what it sees in the
// encoder's features.
//
// Invariants: weights depend on the seed alone.
// Shapes: images [N, 1, 28, 28]; features [N, 4, 32]; text [N, T] int64 bytes, zeros at the end;
//   logits [N, T, 256], row i for byte i.
// Errors: torch's.
// Depends on: torch.
#pragma once

#include <torch/nn.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

namespace disaggregated {

namespace nn = torch::nn;

constexpr int64_t kPlaces = 4, kWidth = 32, kHeads = 2, kBytes = 256;

struct EncoderImpl : nn::Module {
  EncoderImpl() {
    const auto halving = [](int64_t in, int64_t out) {
      return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(2).padding(1));
    };
    fine = register_module("fine", halving(1, 8));
    coarse = register_module("coarse", halving(8, 16));
    head = register_module("head", nn::Linear(16 * 7 * 7, kPlaces * kWidth));
  }
  at::Tensor forward(const at::Tensor& images) {
    const auto seen = at::gelu(coarse(at::gelu(fine(images))));
    return at::tanh(head(seen.flatten(1))).view({-1, kPlaces, kWidth});
  }

  nn::Conv2d fine{nullptr}, coarse{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Encoder);

struct BlockImpl : nn::Module {
  BlockImpl() {
    attention_norm =
        register_module("attention_norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
    mix = register_module("mix", nn::Linear(kWidth, kWidth));
    mlp_norm = register_module("mlp_norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    up = register_module("up", nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", nn::Linear(4 * kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const int64_t batch = x.size(0), length = x.size(1), width = kWidth / kHeads;
    const auto split = qkv(attention_norm(x))
                           .view({batch, length, 3, kHeads, width})
                           .permute({2, 0, 3, 1, 4});  // [3, N, H, T, D / H]
    const auto scores = at::matmul(split[0], split[1].transpose(-2, -1)) / std::sqrt(1.0 * width);
    const auto mixed = at::matmul(at::softmax(scores + mask, -1), split[2]);
    const auto y = x + mix(mixed.transpose(1, 2).reshape({batch, length, kWidth}));
    return y + down(at::gelu(up(mlp_norm(y))));
  }

  nn::LayerNorm attention_norm{nullptr}, mlp_norm{nullptr};
  nn::Linear qkv{nullptr}, mix{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct CaptionerImpl : nn::Module {
  explicit CaptionerImpl(int64_t longest) : longest_text(longest) {
    look = register_module("look", nn::Linear(kWidth, kWidth));
    token = register_module("token", nn::Embedding(kBytes, kWidth));
    const int64_t length = kPlaces + longest - 1;
    position = register_parameter("position", at::randn({length, kWidth}) * 0.1);
    block0 = register_module("block0", Block());
    block1 = register_module("block1", Block());
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    head = register_module("head", nn::Linear(nn::LinearOptions(kWidth, kBytes).bias(false)));
    constexpr double kNever = -std::numeric_limits<double>::infinity();
    mask = register_buffer("mask", at::full({length, length}, kNever, at::kFloat).triu(1));
  }
  // The last feature predicts byte 0, and byte i - 1 predicts byte i.
  at::Tensor forward(const at::Tensor& features, const at::Tensor& text) {
    auto x = at::cat({look(features), token(text.narrow(1, 0, text.size(1) - 1))}, 1);
    const int64_t length = x.size(1);
    x = x + position.narrow(0, 0, length);
    const auto hidden = mask.narrow(0, 0, length).narrow(1, 0, length);
    x = block1(block0(x, hidden), hidden);
    return head(norm(x.narrow(1, kPlaces - 1, length - kPlaces + 1)));
  }
  at::Tensor loss(const at::Tensor& features, const at::Tensor& text) {
    const auto wanted = text.masked_fill(text == 0, -100);  // which is left out
    return at::cross_entropy_loss(forward(features, text).flatten(0, 1), wanted.flatten());
  }
  // The likeliest byte, one after the other.
  at::Tensor write(const at::Tensor& features) {
    const at::NoGradGuard no_grad;
    auto text = at::zeros({features.size(0), longest_text}, at::kLong);
    for (int64_t i = 0; i < longest_text; ++i)
      text.select(1, i).copy_(forward(features, text.narrow(1, 0, i + 1)).select(1, i).argmax(-1));
    return text;
  }

  int64_t longest_text;
  nn::Linear look{nullptr}, head{nullptr};
  nn::Embedding token{nullptr};
  at::Tensor position, mask;
  Block block0{nullptr}, block1{nullptr};
  nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Captioner);

}  // namespace disaggregated
