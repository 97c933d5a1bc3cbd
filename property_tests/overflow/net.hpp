// Net: a small network with one gradient that can be made to overflow, and its batches.
//
// Invariants: parameters and batches depend on the case only; the overflow happens in the passes
// for which it is armed. A gradient is infinite or NaN as it reaches its leaf, or ("scaled") it is
// finite in its type and overflows by any scale of at least 2.
// Shapes: widths.front() -> widths.back(), batches of one.   Errors: none.
// Depends on: torch::nn, reference/models/model.hpp, numbers.hpp.
#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "property_tests/numbers.hpp"
#include "reference/models/model.hpp"

namespace equigrad::property_tests::overflow {

using nlohmann::json;
using torch::nn::Linear;

// One gradient that overflows: in the pass `armed` is set for.
struct Overflow {
  std::string kind;  // inf, -inf, nan, scaled
  std::size_t parameter = 0;
  int64_t element = 0;
  bool armed = false;

  at::Tensor pass_on(const at::Tensor& gradient) const {
    if (!armed || kind == "scaled") return gradient;
    auto broken = gradient.clone();
    constexpr auto kInfinity = std::numeric_limits<double>::infinity();
    const double value = kind == "inf"    ? kInfinity
                         : kind == "-inf" ? -kInfinity
                                          : std::numeric_limits<double>::quiet_NaN();
    broken.view({-1})[element % broken.numel()] = value;
    return broken;
  }
};

// A tanh network; every parameter is used by every batch, but for one layer.
class Net : public reference::Model {
 public:
  Net(const json& one, Overflow& overflow) : overflow_(overflow) {
    const auto widths = one.at("widths").get<std::vector<int64_t>>();
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers_.push_back(
          register_module("layer" + std::to_string(i), Linear(widths[i], widths[i + 1])));
    }
    gain_ = register_parameter("gain", at::ones({widths.back()}));
    register_module("never", Linear(2, 3));
    const at::NoGradGuard no_grad;
    uint64_t stream = 0;
    for (auto& [name, parameter] : reference::unique_parameters(*this))
      parameter.copy_(
          uniform(one.at("seed"), ++stream, parameter.numel(), 0.7F).view_as(parameter));
    for (const auto& layer : layers_) used_.insert(used_.end(), {layer->weight, layer->bias});
    used_.push_back(gain_);
    used_[overflow.parameter % used_.size()].register_hook(
        [this](const at::Tensor& gradient) { return overflow_.pass_on(gradient); });
  }

  at::Tensor output(const reference::Batch& batch) override {
    auto x = batch.input;
    for (auto& layer : layers_) x = at::tanh(layer(x));
    return x * gain_;
  }
  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override {
    return (output.to(at::kFloat) - batch.target.to(at::kFloat)).square().mean();
  }
  // Its gradient is finite in the type it has, and no more after the least scale of a trial.
  at::Tensor penalty() override {
    if (!overflow_.armed || overflow_.kind != "scaled") return {};
    const auto& leaf = used_[overflow_.parameter % used_.size()];
    const double most = leaf.scalar_type() == at::kHalf ? 60'000 : 3e38;
    const auto flat = leaf.view({-1});
    return flat[overflow_.element % flat.numel()].to(at::kFloat) * most;
  }

 private:
  Overflow& overflow_;
  std::vector<Linear> layers_;
  at::Tensor gain_;
  std::vector<at::Tensor> used_;
};

inline reference::Batch batch_of(const json& one, int64_t step, int64_t rank, int64_t micro,
                                 at::ScalarType dtype) {
  const int64_t first = one.at("widths").front(), last = one.at("widths").back();
  const auto stream = static_cast<uint64_t>(1000 + step * 10'000 + rank * 1000 + micro);
  return reference::to_dtype({uniform(one.at("seed"), stream * 2, first, 1).view({1, first}),
                              uniform(one.at("seed"), stream * 2 + 1, last, 1).view({1, last})},
                             dtype);
}

}  // namespace equigrad::property_tests::overflow
