// The update rules: by hand where every number is a small binary fraction, and against
// torch::optim in fp64 under a bound that is carried along step by step.
#include "reference/optimizer.hpp"

#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

namespace equigrad::reference {
namespace {

struct One {  // a parameter with one element
  float parameter = 0;
  float first = 0;   // exp_avg or momentum_buffer
  float second = 0;  // exp_avg_sq
};

void step(const OptimizerSpec& spec, int64_t t, float gradient, One& one) {
  std::vector<float*> states = {&one.first, &one.second};
  states.resize(state_names(spec).size());
  update<float>(spec, t, 1, &one.parameter, states, &gradient);
}

TEST(Sgd, TakesTheWeightDecayIntoTheGradient) {
  One one{.parameter = 2};
  step({.rule = Rule::Sgd, .lr = 0.25, .weight_decay = 0.5}, 1, 3, one);
  EXPECT_EQ(one.parameter, 2 - 0.25F * (3 + 0.5F * 2));
}

TEST(Sgd, StartsTheMomentumWithTheWholeGradient) {
  const OptimizerSpec spec{.rule = Rule::Sgd, .lr = 0.5, .momentum = 0.5, .dampening = 0.25};
  One one{.parameter = 8};
  step(spec, 1, 4, one);
  EXPECT_EQ(one.first, 4);
  EXPECT_EQ(one.parameter, 6);
  step(spec, 2, 8, one);
  EXPECT_EQ(one.first, 8);  // 4 * 0.5 + 8 * 0.75
  EXPECT_EQ(one.parameter, 2);
}

TEST(Sgd, LooksAheadWithNesterov) {
  const OptimizerSpec spec{.rule = Rule::Sgd, .lr = 0.5, .momentum = 0.5, .nesterov = true};
  One one{.parameter = 8};
  step(spec, 1, 4, one);
  EXPECT_EQ(one.parameter, 5);  // 8 - (4 + 4 * 0.5) * 0.5
  step(spec, 2, 2, one);
  EXPECT_EQ(one.first, 4);      // 4 * 0.5 + 2
  EXPECT_EQ(one.parameter, 3);  // 5 - (2 + 4 * 0.5) * 0.5
}

TEST(Adam, CorrectsTheBiasOfBothMoments) {
  const OptimizerSpec spec{.rule = Rule::Adam, .lr = 0.25, .beta1 = 0.5, .beta2 = 0.75, .eps = 2};
  One one{.parameter = 1};
  step(spec, 1, 2, one);
  EXPECT_EQ(one.first, 1);           // 2 * 0.5
  EXPECT_EQ(one.second, 1);          // 4 * 0.25
  EXPECT_EQ(one.parameter, 0.875F);  // 1 - (1 / (1 / 0.5 + 2)) * (0.25 / 0.5)
}

TEST(Adam, CountsTheStepsInTheCorrection) {
  const OptimizerSpec spec{.rule = Rule::Adam, .lr = 0.75, .beta1 = 0.5, .beta2 = 0, .eps = 0};
  One one{.parameter = 1, .first = 4};
  step(spec, 2, 4, one);  // m = 4, v = 16, lr / (1 - 0.25) = 1
  EXPECT_EQ(one.parameter, 0);
}

TEST(Adam, DecaysThroughTheGradientAndAdamWDoesNot) {
  const OptimizerSpec adam{
      .rule = Rule::Adam, .lr = 0.5, .weight_decay = 0.5, .beta1 = 0, .beta2 = 0, .eps = 2};
  One coupled{.parameter = 4};
  step(adam, 1, 0, coupled);
  EXPECT_EQ(coupled.first, 2);          // 4 * 0.5
  EXPECT_EQ(coupled.parameter, 3.75F);  // 4 - 2 / (2 + 2) * 0.5
  OptimizerSpec adamw = adam;
  adamw.rule = Rule::AdamW;
  One decoupled{.parameter = 4};
  step(adamw, 1, 0, decoupled);
  EXPECT_EQ(decoupled.first, 0);
  EXPECT_EQ(decoupled.parameter, 3);  // 4 * (1 - 0.5 * 0.5)
}

TEST(Update, OfASliceIsThatOfTheWhole) {
  const OptimizerSpec spec{.weight_decay = 0.1};
  const int64_t n = 37;
  const at::Tensor gradient = at::arange(n, at::kFloat).sin();
  for (int64_t cut = 1; cut < n; ++cut) {
    at::Tensor whole = at::arange(n, at::kFloat).cos(), pieces = whole.clone();
    at::Tensor m = at::full({n}, 0.3F), v = at::full({n}, 0.7F), m2 = m.clone(), v2 = v.clone();
    float *p = pieces.mutable_data_ptr<float>(), *a = m2.mutable_data_ptr<float>();
    float* b = v2.mutable_data_ptr<float>();
    const float* g = gradient.const_data_ptr<float>();
    update<float>(spec, 3, n, whole.mutable_data_ptr<float>(),
                  {m.mutable_data_ptr<float>(), v.mutable_data_ptr<float>()}, g);
    update<float>(spec, 3, cut, p, {a, b}, g);
    update<float>(spec, 3, n - cut, p + cut, {a + cut, b + cut}, g + cut);
    ASSERT_TRUE(at::equal(whole, pieces) && at::equal(m, m2) && at::equal(v, v2)) << cut;
  }
}

// Runs both for some steps. `bound` is what two correct programs may differ by: every rounding of
// either costs at most kUnit times the size of its result, and each recurrence carries what was
// there before. kUnit is twice the unit roundoff: it covers both programs and all higher orders,
// and the counts of roundings below are upper counts.
constexpr double kUnit = 0x1p-52;

struct Pair {
  at::Tensor ours, theirs, bound;
};

template <class Torch>
Pair run_both(const OptimizerSpec& spec, int steps, std::function<Torch(at::Tensor)> make,
              const std::function<at::Tensor(at::Tensor, at::Tensor, int)>& grow) {
  const int64_t n = 101;
  const at::Tensor start = at::arange(1, n + 1, at::kDouble).cos();
  Pair pair{start.clone(), start.clone().requires_grad_(), at::zeros({n}, at::kDouble)};
  Torch optimizer = make(pair.theirs);
  std::vector<at::Tensor> states;
  for (size_t i = 0; i < state_names(spec).size(); ++i) states.push_back(at::zeros_like(start));
  std::vector<double*> pointers;
  for (at::Tensor& state : states) pointers.push_back(state.mutable_data_ptr<double>());
  for (int t = 1; t <= steps; ++t) {
    const at::Tensor gradient = (at::arange(1, n + 1, at::kDouble) * t).sin();
    pair.theirs.mutable_grad() = gradient.clone();
    optimizer.step();
    update<double>(spec, t, n, pair.ours.mutable_data_ptr<double>(), pointers,
                   gradient.const_data_ptr<double>());
    pair.bound = pair.bound + grow(pair.ours, gradient, t);
  }
  return pair;
}

void expect_inside(const Pair& pair) {
  const at::Tensor error = (pair.ours - pair.theirs.detach()).abs();
  EXPECT_TRUE((error <= pair.bound).all().item<bool>())
      << "worst " << (error / pair.bound).max().item<double>() << " of its bound";
  EXPECT_GT((pair.ours - at::arange(1, 102, at::kDouble).cos()).abs().min().item<double>(), 0);
}

TEST(Sgd, AgreesWithTorch) {
  const OptimizerSpec spec{.rule = Rule::Sgd, .lr = 0.1, .weight_decay = 0.01, .momentum = 0.9};
  const auto make = [&](at::Tensor p) {
    return torch::optim::SGD(
        {p},
        torch::optim::SGDOptions(spec.lr).momentum(spec.momentum).weight_decay(spec.weight_decay));
  };
  at::Tensor size = at::zeros({101}, at::kDouble), error = size.clone();
  const auto grow = [&](const at::Tensor& p, const at::Tensor& g, int) {
    const at::Tensor d = g.abs() + spec.weight_decay * p.abs();
    size = spec.momentum * size + d;                             // the buffer is below this
    error = spec.momentum * error + kUnit * (3 * d + 3 * size);  // two products, two sums, lr
    return spec.lr * (error + 2 * kUnit * size) + 2 * kUnit * p.abs();
  };
  // Decay feeds a difference in p back into d: at most lr * wd / (1 - mu) = 1 % a step.
  Pair pair = run_both<torch::optim::SGD>(spec, 10, make, grow);
  pair.bound = pair.bound * std::pow(1.01, 10);
  expect_inside(pair);
}

void expect_adam(Rule rule) {
  const OptimizerSpec spec{.rule = rule, .lr = 0.01, .weight_decay = 0.1};
  at::Tensor first = at::zeros({101}, at::kDouble), second = first.clone();
  const auto grow = [&](const at::Tensor& p, const at::Tensor& gradient, int t) {
    const bool coupled = rule == Rule::Adam;
    const at::Tensor g = coupled ? gradient + spec.weight_decay * p : gradient;
    const at::Tensor size = coupled ? gradient.abs() + spec.weight_decay * p.abs() : g.abs();
    first = spec.beta1 * first + (1 - spec.beta1) * size;
    second = spec.beta2 * second + (1 - spec.beta2) * g.square();
    const double correction = 1 - std::pow(spec.beta1, t);
    const at::Tensor root = (second / (1 - std::pow(spec.beta2, t))).sqrt() + spec.eps;
    // m: 5 roundings for each of the t terms in it; v: 8 (a relative error, no cancellation, halved
    // by the root); then 8 in the corrections, the quotient and the product.
    const at::Tensor moved = spec.lr * first / correction / root;
    return kUnit * (moved * (5 * t + 8 * t + 8) + 4 * p.abs());
  };
  Pair pair;
  if (rule == Rule::AdamW) {
    using Torch = torch::optim::AdamW;
    pair = run_both<Torch>(
        spec, 10,
        [&](at::Tensor p) {
          return Torch({p}, torch::optim::AdamWOptions(spec.lr).weight_decay(spec.weight_decay));
        },
        grow);
  } else {
    using Torch = torch::optim::Adam;
    pair = run_both<Torch>(
        spec, 10,
        [&](at::Tensor p) {
          return Torch({p}, torch::optim::AdamOptions(spec.lr).weight_decay(spec.weight_decay));
        },
        grow);
  }
  expect_inside(pair);
}

TEST(AdamW, AgreesWithTorch) { expect_adam(Rule::AdamW); }

TEST(Adam, AgreesWithTorch) { expect_adam(Rule::Adam); }

}  // namespace
}  // namespace equigrad::reference
