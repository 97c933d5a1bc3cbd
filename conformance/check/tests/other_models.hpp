// OtherModels: models that are none of the zoo's, made of torch::nn as a user's are, each with its
// loss and a batch of any pass.
//
// Invariants: a batch depends on Which alone; a model on torch's generator.
// Shapes: ConvNet [4, 1, 8, 8], Recurrent [5, 3, 6], Encoder [5, 3, 8], Knotted [6, 5].
// Errors: none of their own.
// Depends on: check/subject.hpp, torch::nn.
#pragma once

#include <torch/nn.h>
#include <torch/types.h>

#include <memory>

#include "conformance/check/subject.hpp"
#include "reference/models/data.hpp"

namespace equigrad::conformance {

// In (-1, 1), from the place of the batch and a number for which of its tensors it is.
inline at::Tensor drawn(const Which& which, std::vector<int64_t> shape, uint64_t number = 0) {
  auto values = at::empty(shape);
  auto key = reference::hash(number);
  for (const int part : {which.step, which.rank, which.micro_batch})
    key = reference::hash(key ^ static_cast<uint64_t>(part));
  for (int64_t i = 0; i < values.numel(); ++i) {
    key = reference::hash(key);
    values.mutable_data_ptr<float>()[i] = static_cast<float>(key >> 40) / 0x1p23f - 1;
  }
  return which.cast(values);
}

// Convolutions, batch normalisation with its buffers, dropout.
struct ConvNet : torch::nn::Module {
  ConvNet() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("dropout", dropout);
    register_module("second", second);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& images) {
    auto x = at::relu(norm(first(images)));
    x = at::relu(second(dropout(x)));
    return head(x.flatten(1));
  }
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(1, 3, 3).padding(1)};
  torch::nn::BatchNorm2d norm{3};
  torch::nn::Dropout dropout{0.3};
  torch::nn::Conv2d second{torch::nn::Conv2dOptions(3, 5, 3).stride(2)};
  torch::nn::Linear head{45, 4};
};

inline at::Tensor conv_loss(ConvNet& model, const Which& which) {
  const auto output = model.forward(drawn(which, {4, 1, 8, 8}));
  return (output - drawn(which, {4, 4}, 1)).square().mean();
}

struct Recurrent : torch::nn::Module {
  Recurrent() {
    register_module("lstm", lstm);
    register_module("head", head);
  }
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(6, 7).num_layers(2)};
  torch::nn::Linear head{7, 3};
};

inline at::Tensor recurrent_loss(Recurrent& model, const Which& which) {
  const auto states = std::get<0>(model.lstm(drawn(which, {5, 3, 6})));
  return (model.head(states) - drawn(which, {5, 3, 3}, 1)).square().mean();
}

struct Encoder : torch::nn::Module {
  Encoder() {
    register_module("layer", layer);
    register_module("head", head);
  }
  torch::nn::TransformerEncoderLayer layer{
      torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.1)};
  torch::nn::Linear head{8, 2};
};

inline at::Tensor encoder_loss(Encoder& model, const Which& which) {
  const auto output = model.head(model.layer(drawn(which, {5, 3, 8})));
  return (output - drawn(which, {5, 3, 2}, 1)).square().mean();
}

// A tied, a frozen, an unused and a sometimes used parameter, and one straight on the model.
struct Knotted : torch::nn::Module {
  Knotted() {
    register_module("in", in);
    register_module("frozen", frozen);
    register_module("unused", unused);
    register_module("sometimes", sometimes);
    scale = register_parameter("scale", at::full({}, 1.5));
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    tied = register_parameter("tied", in->weight);
  }
  torch::nn::Linear in{5, 5}, frozen{5, 5}, unused{5, 5}, sometimes{5, 5};
  at::Tensor scale, tied;
};

inline at::Tensor knotted_loss(Knotted& model, const Which& which) {
  auto x = at::tanh(model.in(drawn(which, {6, 5}))) + model.frozen(drawn(which, {6, 5}, 1));
  if (which.rank == which.micro_batch % 2) x = x + model.sometimes(x);
  return (at::linear(x, model.tied) * model.scale - drawn(which, {6, 5}, 2)).square().mean();
}

}  // namespace equigrad::conformance
