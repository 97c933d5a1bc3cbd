// SmallModel: a network of 3 to 8 parameters and fewer than 60 elements, with every kind that is
// easy to get wrong, and the ways through it that a program chooses.
//
//   input [2, w0] -> first -> tanh (+ frozen) -> sin -> second -> y [2, w2]
//   branch 0: y   1: y left   2: y + right   3: y left + right scalar, penalty   4: weights alone
//          5: no parameter at all
//
// Invariants: weights and batches depend on the setting alone, a batch on its rank and number too.
// Shapes: above. "extras" is a set of bits: see kHeads and the others.
// Errors: std::runtime_error("planted ...") from the backward of a pass that is to throw.
// Depends on: reference/models/model.hpp, property_tests/numbers.hpp, torch autograd.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "conformance/contract/players/reentrant.hpp"
#include "property_tests/numbers.hpp"
#include "property_tests/programs/command_seeds.hpp"
#include "reference/models/model.hpp"

namespace equigrad::property_tests::programs {

using conformance::Reentrant;

// Midway: the second layer has its gradients. Late: all parameters have. Top: none has.
enum class Throw { None, Midway, Top, Late };

struct Planted : torch::autograd::Function<Planted> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 1;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               const torch::autograd::tensor_list&) {
    throw std::runtime_error("planted in a backward");
  }
};

struct Outcome {
  at::Tensor output, loss;
};

class SmallModel final : public reference::Model {
 public:
  explicit SmallModel(const json& setting)
      : nests_((setting.at("extras").get<int>() & kNests) != 0) {
    const auto widths = setting.at("widths").get<std::vector<int64_t>>();
    const int extras = setting.at("extras");
    const auto linear = [&](int64_t in, int64_t out) {
      return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias((extras & kBias) != 0));
    };
    if ((extras & kEmpty) != 0) empty_ = register_parameter("empty", at::empty({0}));
    if ((extras & kHeads) != 0) {
      left_ = register_parameter("left", at::empty({widths[2]}));
      right_ = register_parameter("right", (extras & kTied) != 0 ? left_ : at::empty({widths[2]}));
    }
    if ((extras & kScalar) != 0) scalar_ = register_parameter("scalar", at::empty({}));
    if ((extras & kFrozen) != 0) frozen_ = register_parameter("frozen", at::empty({1}), false);
    if ((extras & kNever) != 0) register_parameter("never", at::empty({2, 3}));
    first_ = register_module("first", linear(widths[0], widths[1]));
    second_ = register_module("second", linear(widths[1], widths[2]));
    const at::NoGradGuard no_grad;
    uint64_t stream = 0;
    for (auto& [name, parameter] : reference::unique_parameters(*this))
      parameter.copy_(
          uniform(setting.at("seed"), ++stream, parameter.numel(), 0.7F).view_as(parameter));
  }

  // `may_nest`: activation checkpointing by a backward inside of the backward, if it is set.
  Outcome run(const at::Tensor& input, int branch, Throw where = Throw::None,
              bool may_nest = true) {
    auto y = branch >= 4 ? apart(input, branch) : through(input, branch, where, may_nest);
    if (where == Throw::Top) y = Planted::apply(y);
    const auto wide = y.to(at::kFloat);
    auto loss = wide.cos().mean() + wide.square().mean();
    if (branch == 3) loss = loss + first_->weight.to(at::kFloat).square().mean();
    return {y, loss};
  }
  const at::Tensor& weight() const { return first_->weight; }
  int64_t width() const { return first_->weight.size(1); }

  at::Tensor output(const reference::Batch& batch) override { return run(batch.input, 0).output; }
  at::Tensor criterion(const at::Tensor& output, const reference::Batch&) override {
    return output.to(at::kFloat).square().mean();
  }

 private:
  at::Tensor through(const at::Tensor& input, int branch, Throw where, bool may_nest) {
    const auto x =
        where == Throw::Late ? Planted::apply(input.detach().clone().requires_grad_()) : input;
    auto hidden = at::tanh(first_(x));
    if (frozen_.defined()) hidden = hidden + frozen_;
    if (where == Throw::Midway) hidden = Planted::apply(hidden);
    auto y =
        nests_ && may_nest
            ? Reentrant::apply([this](const at::Tensor& x) { return second_(at::sin(x)); }, hidden)
            : second_(at::sin(hidden));
    if (left_.defined() && (branch == 1 || branch == 3)) y = y * left_;
    if (left_.defined() && (branch == 2 || branch == 3))
      y = y + (branch == 3 && scalar_.defined() ? right_ * scalar_ : right_);
    return branch == 3 && empty_.defined() ? y + empty_.sum() : y;
  }

  at::Tensor apart(const at::Tensor& input, int branch) {
    if (branch == 5) return input.detach().clone().requires_grad_().sin();
    return scalar_.defined() ? first_->weight * scalar_ : first_->weight * 0.5;
  }

  torch::nn::Linear first_{nullptr}, second_{nullptr};
  at::Tensor left_, right_, scalar_, empty_, frozen_;
  bool nests_;
};

inline at::ScalarType dtype_of(const json& setting) {
  const int precision = setting.at("precision");
  return precision == 0 ? at::kFloat : precision == 1 ? at::kBFloat16 : at::kHalf;
}

inline at::Tensor batch_of(const json& setting, int rank, int number) {
  const int64_t width = setting.at("widths").at(0);
  const auto stream = static_cast<uint64_t>(1000 + number * 8 + rank);
  return uniform(setting.at("seed"), stream, 2 * width, 1).view({2, width}).to(dtype_of(setting));
}

// An uneven gradient for output.backward(gradient); in fp32 for engine.scale(output).
inline at::Tensor gradient_for(const at::Tensor& output, bool scaled) {
  const auto gradient = output.detach().to(at::kFloat).cos() * 0.3;
  return scaled ? gradient : gradient.to(output.scalar_type());
}

// What a setter is given: the same on every rank; a state may not be negative.
inline at::Tensor value_for(const at::Tensor& like, int number) {
  return uniform(77, static_cast<uint64_t>(number), like.numel(), 0.5F).abs().view(like.sizes());
}

}  // namespace equigrad::property_tests::programs
