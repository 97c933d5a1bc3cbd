// The zoo: what is in each model, and the relations that every gradient obeys.
#include "reference/models/model.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <set>
#include <string>

#include "reference/tests/same_bits.hpp"
#include "reference/tests/sample_data.hpp"

namespace equigrad::reference {
namespace {

using conformance::same_bits;
using conformance::sample_data;
using TensorMap = std::map<std::string, at::Tensor>;

int64_t count(const Model& model, bool trainable_only) {
  int64_t numel = 0;
  for (const auto& [name, parameter] : unique_parameters(model)) {
    if (parameter.requires_grad() || !trainable_only) numel += parameter.numel();
  }
  return numel;
}

TEST(Model, HasItsNumberOfParameters) {
  const std::map<std::string, int64_t> kCounts = {
      {"gpt", 27168}, {"irregular", 527}, {"vision", 2232}, {"conv", 4266}};
  ASSERT_EQ(kCounts.size(), model_names().size());
  for (const auto& [name, numel] : kCounts) {
    EXPECT_EQ(count(*make_model(name, 1), false), numel) << name;
  }
  EXPECT_EQ(count(*make_model("irregular", 1), true), 527 - 13);
  EXPECT_EQ(count(*make_gpt({}, 1), false), 391008);
}

TEST(Model, DependsOnTheSeedAlone) {
  for (const std::string& name : model_names()) {
    at::manual_seed(1);
    const auto first = unique_parameters(*make_model(name, 5));
    at::manual_seed(2);
    const auto again = unique_parameters(*make_model(name, 5));
    const auto other = unique_parameters(*make_model(name, 6));
    ASSERT_EQ(first.size(), again.size());
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(same_bits(again[i].second, first[i].second)) << name << " " << first[i].first;
      if (first[i].second.numel() == 0) continue;
      EXPECT_FALSE(same_bits(other[i].second, first[i].second)) << name << " " << first[i].first;
    }
  }
}

TEST(Model, GroupsHoldEveryTrainableParameterOnce) {
  for (const std::string& name : model_names()) {
    const auto model = make_model(name, 1);
    std::multiset<std::string> grouped, trainable;
    for (const GroupSpec& group : model->groups()) {
      grouped.insert(group.names.begin(), group.names.end());
    }
    for (const auto& [parameter_name, parameter] : unique_parameters(*model)) {
      if (parameter.requires_grad()) trainable.insert(parameter_name);
    }
    EXPECT_EQ(grouped, trainable) << name;
  }
}

TEST(Model, NastyIsNasty) {
  const auto model = make_model("irregular", 1);
  const auto named = model->named_parameters();
  EXPECT_TRUE(named["encode.weight"].is_same(named["decode.weight"]));
  EXPECT_EQ(unique_parameters(*model).size() + 1, named.size());
  EXPECT_EQ(named["empty"].numel(), 0);
  EXPECT_EQ(named["scalar"].dim(), 0);
  EXPECT_FALSE(named["frozen"].requires_grad());
  EXPECT_EQ(model->groups().size(), 2U);
  EXPECT_TRUE(model->penalty().defined());
  int64_t taken = 0;
  for (int64_t rank = 0; rank < 32; ++rank) {
    model->zero_grad();
    model->loss(sample_data().make_batch("irregular", {1, 0, rank, 0})).backward();
    EXPECT_FALSE(named["unused.weight"].grad().defined());
    EXPECT_FALSE(named["frozen"].grad().defined());
    EXPECT_TRUE(named["scalar"].grad().defined());
    taken += named["sometimes.weight"].grad().defined() ? 1 : 0;
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, 32);
}

// The gradients after `backward`, of the used and not empty parameters.
TensorMap gradients(const std::string& name, at::ScalarType dtype,
                    const std::function<void(Model&, const Batch&)>& backward) {
  const auto model = make_model(name, 3);
  model->to(dtype);
  backward(*model, to_dtype(sample_data().make_batch(name, {1, 0, 2, 1}), dtype));
  TensorMap found;
  for (const auto& [parameter_name, parameter] : unique_parameters(*model)) {
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined() && gradient.numel() > 0) found[parameter_name] = gradient;
  }
  return found;
}

class Gradient : public testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {
 protected:
  TensorMap after(const std::function<void(Model&, const Batch&)>& backward) const {
    return gradients(std::get<0>(GetParam()), std::get<1>(GetParam()), backward);
  }
  TensorMap plain() const {
    return after([](Model& model, const Batch& batch) { model.loss(batch).backward(); });
  }
};

TEST_P(Gradient, ReachesEveryUsedParameterAndDependsOnTheData) {
  const TensorMap other =
      gradients(std::get<0>(GetParam()), std::get<1>(GetParam()), [&](Model& model, const Batch&) {
        const Draw draw{.seed = 1, .step = 1, .rank = 2, .micro_batch = 1};
        const Batch batch = sample_data().make_batch(std::get<0>(GetParam()), draw);
        model.loss(to_dtype(batch, std::get<1>(GetParam()))).backward();
      });
  const TensorMap found = plain();
  for (const auto& [name, parameter] : unique_parameters(*make_model(std::get<0>(GetParam()), 1))) {
    const std::string part = name.substr(0, name.find('.'));
    if (part == "unused" || part == "sometimes" || part == "frozen" || part == "empty") continue;
    EXPECT_EQ(found.count(name), 1U) << name;
  }
  for (const auto& [name, gradient] : found) {
    EXPECT_TRUE(gradient.ne(0).any().item<bool>()) << name;
    if (other.count(name) != 0) {
      EXPECT_FALSE(same_bits(other.at(name), gradient)) << name;
    }
  }
}

TEST_P(Gradient, OfTheSameStepIsTheSame) { EXPECT_TRUE(same_bits(plain(), plain())); }

TEST_P(Gradient, ThroughTheOutputIsThatOfTheLoss) {
  const TensorMap through = after([](Model& model, const Batch& batch) {
    const at::Tensor output = model.output(batch);
    const at::Tensor leaf = output.detach().requires_grad_();
    model.criterion(leaf, batch).backward();
    const at::Tensor penalty = model.penalty();
    if (penalty.defined()) {
      torch::autograd::backward({output, penalty}, {leaf.grad(), at::ones_like(penalty)});
    } else {
      output.backward(leaf.grad());
    }
  });
  EXPECT_TRUE(same_bits(through, plain()));
}

TEST_P(Gradient, OfTheNegatedLossIsTheNegatedGradient) {
  TensorMap negated =
      after([](Model& model, const Batch& batch) { (-model.loss(batch)).backward(); });
  for (auto& item : negated) item.second = -item.second;
  EXPECT_TRUE(same_bits(negated, plain()));
}

TEST_P(Gradient, OfRepeatedBackwardsIsAMultiple) {
  for (int n = 2; n <= 5; ++n) {
    TensorMap once = plain();
    for (auto& item : once) item.second = item.second * n;
    const TensorMap repeated = after([n](Model& model, const Batch& batch) {
      const at::Tensor loss = model.loss(batch);
      for (int i = 0; i < n; ++i) loss.backward({}, /*retain_graph=*/true);
    });
    EXPECT_TRUE(same_bits(repeated, once)) << n;
  }
}

TEST_P(Gradient, OfAZeroUpstreamGradientIsZero) {
  TensorMap zeros = plain();
  for (auto& item : zeros) item.second = at::zeros_like(item.second);
  const TensorMap found = after([](Model& model, const Batch& batch) {
    const at::Tensor loss = model.loss(batch);
    loss.backward(at::zeros_like(loss));
  });
  EXPECT_TRUE(same_bits(found, zeros));
}

INSTANTIATE_TEST_SUITE_P(Zoo, Gradient,
                         testing::Combine(testing::ValuesIn(model_names()),
                                          testing::Values(at::kFloat, at::kBFloat16)));

}  // namespace
}  // namespace equigrad::reference
