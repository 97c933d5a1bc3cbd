// Network: what a program trains: one small model, or two with an engine each.
//
//   "pair" 0: input -> first
//          1: input -> first -> second, chained     2: input -> first, input -> second, one loss
//
// Invariants: every forward reaches the second model. What throws is in the first model, but at
// the top, where it is before all parameters of both.
// Shapes: those of small_model.hpp.   Errors: those of small_model.hpp.
// Depends on: small_model.hpp.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "property_tests/programs/small_model.hpp"

namespace equigrad::property_tests::programs {

inline json second_of(const json& setting) {
  const auto& widths = setting.at("widths");
  json second = setting;
  second["seed"] = setting.at("seed").get<int>() + 1;
  second["widths"] = setting.at("pair") == 1 ? json({widths[2], widths[1], widths[0]})
                                             : json({widths[0], widths[2], widths[1]});
  return second;
}

// What a forward leaves to differentiate.
struct Kept {
  std::vector<at::Tensor> outputs;
  at::Tensor loss;
};

class Network {
 public:
  explicit Network(const json& setting) : pair_(setting.at("pair")) {
    models_.push_back(std::make_shared<SmallModel>(setting));
    if (pair_ != 0) models_.push_back(std::make_shared<SmallModel>(second_of(setting)));
  }

  const std::vector<std::shared_ptr<SmallModel>>& models() const { return models_; }
  const at::Tensor& weight() const { return models_[0]->weight(); }

  Kept run(const at::Tensor& input, int branch, Throw where = Throw::None, bool may_nest = true) {
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

 private:
  int pair_;
  std::vector<std::shared_ptr<SmallModel>> models_;
};

}  // namespace equigrad::property_tests::programs
