#include "property_tests/programs/network.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>
#include <utility>

#include "conformance/contract/players/reentrant.hpp"
#include "property_tests/numbers.hpp"

namespace equigrad::property_tests::programs {
namespace {

using conformance::Reentrant;

struct Planted : torch::autograd::Function<Planted> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 1;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               const torch::autograd::tensor_list&) {
    throw std::runtime_error("planted in a backward");
  }
};

json second_of(const json& setting) {
  const auto& widths = setting.at("widths");
  json second = setting;
  second["seed"] = setting.at("seed").get<int>() + 1;
  second["widths"] = setting.at("pair") == 1 ? json({widths[2], widths[1], widths[0]})
                                             : json({widths[0], widths[2], widths[1]});
  return second;
}

}  // namespace

SmallModel::SmallModel(const json& setting)
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

Outcome SmallModel::run(const at::Tensor& input, int branch, Throw where, bool may_nest) {
  auto y = branch >= 4 ? apart(input, branch) : through(input, branch, where, may_nest);
  if (where == Throw::Top) y = Planted::apply(y);
  const auto wide = y.to(at::kFloat);
  auto loss = wide.cos().mean() + wide.square().mean();
  if (branch == 3) loss = loss + first_->weight.to(at::kFloat).square().mean();
  return {y, loss};
}
at::Tensor SmallModel::output(const reference::Batch& batch) { return run(batch.input, 0).output; }

at::Tensor SmallModel::criterion(const at::Tensor& output, const reference::Batch&) {
  return output.to(at::kFloat).square().mean();
}

at::Tensor SmallModel::through(const at::Tensor& input, int branch, Throw where, bool may_nest) {
  const auto x =
      where == Throw::Late ? Planted::apply(input.detach().clone().requires_grad_()) : input;
  auto hidden = at::tanh(first_(x));
  if (frozen_.defined()) hidden = hidden + frozen_;
  if (where == Throw::Midway) hidden = Planted::apply(hidden);
  auto y = nests_ && may_nest
               ? Reentrant::apply(
                     [this](const at::Tensor& inner) { return second_(at::sin(inner)); }, hidden)
               : second_(at::sin(hidden));
  if (left_.defined() && (branch == 1 || branch == 3)) y = y * left_;
  if (left_.defined() && (branch == 2 || branch == 3))
    y = y + (branch == 3 && scalar_.defined() ? right_ * scalar_ : right_);
  return branch == 3 && empty_.defined() ? y + empty_.sum() : y;
}

at::Tensor SmallModel::apart(const at::Tensor& input, int branch) {
  if (branch == 5) return input.detach().clone().requires_grad_().sin();
  return scalar_.defined() ? first_->weight * scalar_ : first_->weight * 0.5;
}

Network::Network(const json& setting) : pair_(setting.at("pair")) {
  models_.push_back(std::make_shared<SmallModel>(setting));
  if (pair_ != 0) models_.push_back(std::make_shared<SmallModel>(second_of(setting)));
}

Kept Network::run(const at::Tensor& input, int branch, Throw where, bool may_nest) {
  const auto first = models_[0]->run(input, branch, where, may_nest);
  if (pair_ == 0) return {{first.output}, first.loss};
  const bool weights_alone = branch == 4;
  auto x = input;
  if (pair_ == 1)  // apart from the layers there is no activation
    x = branch < 4 ? first.output : at::ones({2, models_[1]->width()}, input.options());
  const auto second = models_[1]->run(x, branch >= 4 ? 1 : branch,
                                      where == Throw::Top ? where : Throw::None, may_nest);
  std::vector<at::Tensor> outputs = {second.output};
  if (pair_ == 2 || weights_alone) outputs.push_back(first.output);
  return {std::move(outputs), first.loss + second.loss};
}

at::ScalarType dtype_of(const json& setting) {
  const int precision = setting.at("precision");
  return precision == 0 ? at::kFloat : precision == 1 ? at::kBFloat16 : at::kHalf;
}

at::Tensor batch_of(const json& setting, int rank, int number) {
  const int64_t width = setting.at("widths").at(0);
  const auto stream = static_cast<uint64_t>(1000 + number * 8 + rank);
  return uniform(setting.at("seed"), stream, 2 * width, 1).view({2, width}).to(dtype_of(setting));
}

at::Tensor gradient_for(const at::Tensor& output, bool scaled) {
  const auto gradient = output.detach().to(at::kFloat).cos() * 0.3;
  return scaled ? gradient : gradient.to(output.scalar_type());
}

at::Tensor value_for(const at::Tensor& like, int number) {
  return uniform(77, static_cast<uint64_t>(number), like.numel(), 0.5F).abs().view(like.sizes());
}

}  // namespace equigrad::property_tests::programs
