#include "property_tests/programs/network.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "conformance/contract/players/reentrant.hpp"
#include "engine/parallel/regions.hpp"
#include "engine/parallel/split_marks.hpp"
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

// Along which tensor ranks cut it; nothing: each has it whole.
std::optional<int64_t> cut_dimension(const std::string& name) {
  if (name == "first.weight" || name == "first.bias") return 0;
  return name == "second.weight" ? std::optional<int64_t>(1) : std::nullopt;
}

at::Tensor mean_loss(const at::Tensor& y) {
  const auto wide = y.to(at::kFloat);
  return wide.cos().mean() + wide.square().mean();
}

// Of all parts of a sequence.
at::Tensor sequence_loss(const Parts& parts, const Pieces& y) {
  Pieces sums;
  for (const auto& part : y) {
    const auto wide = part.to(at::kFloat);
    sums.push_back(wide.cos().sum() + wide.square().sum());
  }
  return parts.add_up(sums) / static_cast<double>(y[0].numel() * parts.sequence());
}

json second_of(const json& setting) {
  const auto& widths = setting.at("widths");
  json second = setting;
  second["seed"] = setting.at("seed").get<int>() + 1;
  second["widths"] = setting.at("pair") == 1 ? json({widths[2], widths[1], widths[0]})
                                             : json({widths[0], widths[2], widths[1]});
  return second;
}

}  // namespace

SmallModel::SmallModel(const json& setting, const TensorRank& of)
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
  numel_ = first_->weight.numel();
  take_part(of);
}

void SmallModel::take_part(const TensorRank& of) {
  if (of.size == 1) return;
  for (auto& [name, parameter] : reference::unique_parameters(*this)) {
    const auto dimension = cut_dimension(name);
    if (!dimension) continue;
    const auto split = parallel::unpacked(parameter.sizes().vec(), *dimension);
    at::Tensor(parameter).set_data(parallel::part_of(parameter.detach(), split, of.rank, of.size));
    parallel::mark_split(parameter, split, of.size);
  }
}

Outcome SmallModel::run(const Parts& parts, const Pieces& input, int branch, Throw where,
                        bool may_nest) {
  const bool is_apart = branch >= 4;
  auto y = is_apart ? Pieces{apart(parts, input[0], branch)}
                    : through(parts, input, branch, where, may_nest);
  if (where == Throw::Top)
    for (auto& one : y) one = Planted::apply(one);
  auto loss = is_apart || parts.sequence() == 1 ? mean_loss(y[0]) : sequence_loss(parts, y);
  if (branch == 3)
    loss = loss +
           parts.squares_of(parts.used(first_->weight, parts.own())) / static_cast<double>(numel_);
  return {std::move(y), loss};
}

at::Tensor SmallModel::output(const reference::Batch& batch) {
  return run(*parts_of_rank({}), {batch.input}, 0).outputs[0];
}

at::Tensor SmallModel::criterion(const at::Tensor& output, const reference::Batch&) {
  return output.to(at::kFloat).square().mean();
}

Pieces SmallModel::through(const Parts& parts, const Pieces& input, int branch, Throw where,
                           bool may_nest) {
  std::vector<Pieces> hidden;
  for (std::size_t part = 0; part < input.size(); ++part) {
    const auto& rows = input[part];
    const auto x =
        where == Throw::Late ? Planted::apply(rows.detach().clone().requires_grad_()) : rows;
    hidden.push_back(parts.column(x, first_->weight, first_->bias, part));
    for (auto& one : hidden.back()) {
      one = at::tanh(one);
      if (frozen_.defined()) one = one + frozen_;
      if (where == Throw::Midway) one = Planted::apply(one);
    }
  }
  Pieces y;
  if (nests_ && may_nest) {
    y = {Reentrant::apply([this](const at::Tensor& inner) { return second_(at::sin(inner)); },
                          hidden.at(0).at(0))};
  } else {
    const auto sines = parts.sine(hidden);
    for (std::size_t part = 0; part < sines.size(); ++part)
      y.push_back(parts.row(sines[part], second_->weight, second_->bias, part));
  }
  for (std::size_t part = 0; part < y.size(); ++part)
    y[part] = behind(parts, y[part], branch, part);
  return y;
}

at::Tensor SmallModel::behind(const Parts& parts, at::Tensor y, int branch,
                              std::size_t part) const {
  const auto used = [&](const at::Tensor& parameter) { return parts.used(parameter, part); };
  if (left_.defined() && (branch == 1 || branch == 3)) y = y * used(left_);
  if (left_.defined() && (branch == 2 || branch == 3))
    y = y + (branch == 3 && scalar_.defined() ? used(right_) * used(scalar_) : used(right_));
  return branch == 3 && empty_.defined() ? y + used(empty_).sum() : y;
}

at::Tensor SmallModel::apart(const Parts& parts, const at::Tensor& input, int branch) const {
  if (branch == 5) return input.detach().clone().requires_grad_().sin();
  const auto weight = parts.whole_of(parts.used(first_->weight, parts.own()));
  return scalar_.defined() ? weight * parts.used(scalar_, parts.own()) : weight * 0.5;
}

Network::Network(const json& setting, const TensorRank& of) : pair_(setting.at("pair")) {
  models_.push_back(std::make_shared<SmallModel>(setting, of));
  if (pair_ != 0) models_.push_back(std::make_shared<SmallModel>(second_of(setting), of));
}

// What is of weights alone, or of no parameter, is whole on every rank.
Kept Network::run(const Parts& parts, const at::Tensor& input, int branch, Throw where,
                  bool may_nest) {
  const auto rows = parts.rows(input);
  const bool is_apart = branch >= 4;
  const auto first =
      models_[0]->run(parts, is_apart ? Pieces{input} : rows, branch, where, may_nest);
  const auto own_of_first = first.outputs[is_apart ? 0 : parts.own()];
  if (pair_ == 0) return {{own_of_first}, first.loss};
  auto x = rows;
  if (pair_ == 1)  // apart from the layers there is no activation
    x = is_apart ? parts.rows(at::ones({2, models_[1]->width()}, input.options())) : first.outputs;
  const auto second = models_[1]->run(parts, x, is_apart ? 1 : branch,
                                      where == Throw::Top ? where : Throw::None, may_nest);
  std::vector<at::Tensor> outputs = {second.outputs[parts.own()]};
  if (pair_ == 2 || branch == 4) outputs.push_back(own_of_first);
  return {std::move(outputs), first.loss + second.loss};
}

at::ScalarType dtype_of(const json& setting) {
  const int precision = setting.at("precision");
  return precision == 0 ? at::kFloat : precision == 1 ? at::kBFloat16 : at::kHalf;
}

at::Tensor batch_of(const json& setting, int data_rank, int number) {
  const int64_t width = setting.at("widths").at(0);
  const auto stream = static_cast<uint64_t>(1000 + number * 8 + data_rank);
  return uniform(setting.at("seed"), stream, 2 * width, 1).view({2, width}).to(dtype_of(setting));
}

at::Tensor part_of(const std::string& name, const at::Tensor& whole, const TensorRank& of) {
  const auto dimension = cut_dimension(name);
  if (!dimension || of.size == 1) return whole;
  return parallel::part_of(whole, parallel::unpacked(whole.sizes().vec(), *dimension), of.rank,
                           of.size);
}

std::vector<int64_t> whole_sizes(const std::string& name, at::IntArrayRef part,
                                 const TensorRank& of) {
  auto sizes = part.vec();
  if (const auto dimension = cut_dimension(name))
    sizes.at(static_cast<std::size_t>(*dimension)) *= of.size;
  return sizes;
}

at::Tensor gradient_for(const at::Tensor& output, bool scaled) {
  const auto gradient = output.detach().to(at::kFloat).cos() * 0.3;
  return scaled ? gradient : gradient.to(output.scalar_type());
}

at::Tensor value_for(const at::Tensor& like, const json& call) {
  const uint64_t number = call.at("value");
  const auto values = uniform(77, number, like.numel(), 0.5F).abs();
  if (call.value("infinite", false))
    values[static_cast<int64_t>(number) % like.numel()] = std::numeric_limits<float>::infinity();
  return values.view(like.sizes());
}

}  // namespace equigrad::property_tests::programs
