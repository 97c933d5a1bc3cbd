// The stepper: passes of any number and kind, matched over ranks, forgotten when they throw.
#include "reference/stepper.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "conformance/contract/players/models.hpp"
#include "reference/tests/same_bits.hpp"
#include "reference/tests/sample_data.hpp"

namespace equigrad::reference {
namespace {

using conformance::same_bits;
using conformance::contract::Heads;
using conformance::contract::make_contract_model;

Recipe recipe(int64_t world, SumOrder order = SumOrder::AddThenReduce) {
  Recipe wanted;
  wanted.world = world;
  wanted.accumulation_steps = 2;
  wanted.optimizer.lr = 0.01;
  wanted.order = order;
  return wanted;
}

class Ranks {
 public:
  explicit Ranks(const Recipe& wanted) : stepper(wanted, make_contract_model("heads", 1)) {}

  at::Tensor loss(int64_t rank, int64_t number, std::size_t head = 0) {
    auto& heads = dynamic_cast<Heads&>(stepper.model());
    return heads.loss_through(
        head, conformance::sample_data().make_batch("irregular", {1, 0, rank, number}));
  }
  void pass(int64_t rank, int64_t number, std::size_t head = 0, double weight = 1) {
    stepper.pass(
        rank, [&] { loss(rank, number, head).backward(); }, weight);
  }

  Stepper stepper;
};

TensorMap after_a_failure(bool fails) {
  Ranks run(recipe(1));
  run.pass(0, 0);
  if (fails) {
    const auto planted = [&] {
      run.loss(0, 1).backward();
      throw std::runtime_error("planted");
    };
    EXPECT_THROW(run.stepper.pass(0, planted), std::runtime_error);
  }
  run.pass(0, 2);
  return run.stepper.step().gradients;
}

TEST(Stepper, APassThatThrowsGivesNothing) {
  EXPECT_TRUE(same_bits(after_a_failure(true), after_a_failure(false)));
}

TEST(Stepper, WhatAStepRecordedStaysAsItWas) {
  Ranks run(recipe(1));
  const auto copied = [](const TensorMap& tensors) {
    TensorMap copies;
    for (const auto& [name, tensor] : tensors) copies[name] = tensor.clone();
    return copies;
  };
  run.pass(0, 0);
  const auto record = run.stepper.step();
  const auto parameters = copied(record.parameters), masters = copied(record.masters);
  run.pass(0, 1);
  const auto later = run.stepper.step();
  EXPECT_FALSE(same_bits(later.parameters, parameters));
  EXPECT_TRUE(same_bits(record.parameters, parameters));
  EXPECT_TRUE(same_bits(record.masters, masters));
}

TEST(Stepper, DiscardForgetsOneRanksPasses) {
  Ranks run(recipe(2)), plain(recipe(2));
  for (const int64_t rank : {0, 1}) {
    run.pass(rank, 5);
    run.stepper.discard(rank);
    run.pass(rank, 1);
    plain.pass(rank, 1);
  }
  EXPECT_TRUE(same_bits(run.stepper.step().gradients, plain.stepper.step().gradients));
}

TEST(Stepper, PassesOfRanksMustBeAsMany) {
  Ranks run(recipe(2));
  run.pass(0, 0);
  EXPECT_THROW(run.stepper.step(), c10::Error);
}

TEST(Stepper, AWeightIsAProductInFp32) {
  for (const SumOrder order : {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd}) {
    const std::vector<float> values = {1 / 3.0F, 0.1F};
    const Contributions one = {{at::full({1}, values[0])}, {at::full({1}, values[1])}};
    const float sum = sum_contributions(one, order, at::kFloat, {3, 1}).item<float>();
    EXPECT_EQ(sum, values[0] * 3.0F + values[1]);
    EXPECT_NE(sum, sum_contributions(one, order, at::kFloat).item<float>());
  }
}

TEST(Stepper, AWeightCountsForItsPass) {
  Ranks twice(recipe(1)), plain(recipe(1));
  twice.pass(0, 0, 0, 2);  // a power of two: no rounding
  twice.pass(0, 1);
  plain.pass(0, 0);
  plain.pass(0, 0);
  plain.pass(0, 1);
  EXPECT_TRUE(same_bits(twice.stepper.step().gradients, plain.stepper.step().gradients));
}

TEST(Stepper, AParameterThatNoRankUsedRests) {
  Ranks run(recipe(2));
  for (const int64_t rank : {0, 1}) run.pass(rank, 0, static_cast<std::size_t>(rank));
  const auto record = run.stepper.step();
  EXPECT_EQ(record.step_count.at("a.weight"), 1);
  EXPECT_EQ(record.step_count.at("b.weight"), 1);
  EXPECT_EQ(record.step_count.at("c.weight"), 0);
  EXPECT_FALSE(record.gradients.contains("c.weight"));
}

TEST(Stepper, PartsOfOnePassAreAddedOneByOne) {
  const auto gradients = [](SumOrder order, bool parts) {
    Ranks run(recipe(3, order));
    for (int64_t rank = 0; rank < 3; ++rank) {
      // Rank 1 comes in two parts, as a backward inside of a backward would.
      if (parts || rank == 1) {
        run.stepper.pass(rank, [&] {
          run.loss(rank, 0).backward();
          run.loss(rank, 1).backward();
        });
      } else {
        run.stepper.pass(rank, [&] { (run.loss(rank, 0) + run.loss(rank, 1)).backward(); });
      }
    }
    return run.stepper.step().gradients;
  };
  EXPECT_FALSE(same_bits(gradients(SumOrder::ReduceThenAdd, true),
                         gradients(SumOrder::ReduceThenAdd, false)));
  Ranks two_passes(recipe(3, SumOrder::ReduceThenAdd));
  for (int64_t rank = 0; rank < 3; ++rank)
    for (const int64_t number : {0, 1}) two_passes.pass(rank, number);
  EXPECT_TRUE(
      same_bits(gradients(SumOrder::ReduceThenAdd, true), two_passes.stepper.step().gradients));
}

TEST(Stepper, PassesAreAddedToAGradientThatWasSet) {
  Ranks run(recipe(1)), later(recipe(1));
  const auto value = at::full({5, 9}, 0.25F);
  run.pass(0, 0);
  run.stepper.set("gradient", "a.weight", value);
  EXPECT_TRUE(same_bits(run.stepper.get("gradient", "a.weight"), value));
  run.pass(0, 1);
  later.pass(0, 1);
  const auto got = run.stepper.step(), of_later = later.stepper.step();
  EXPECT_TRUE(same_bits(got.gradients.at("a.weight"), of_later.gradients.at("a.weight") + value));
  EXPECT_FALSE(run.stepper.get("gradient", "a.weight").defined()) << "the window has ended";
}

TEST(Stepper, AMasterThatWasSetIsTheModelsWeightAtOnce) {
  auto wanted = recipe(1);
  wanted.compute_dtype = wanted.accumulate_dtype = at::kBFloat16;
  Ranks run(wanted);
  const auto value = at::full({5, 9}, 0.3F);
  run.stepper.set("master", "a.weight", value);
  run.stepper.set("exp_avg", "a.weight", value);
  EXPECT_TRUE(same_bits(run.stepper.get("master", "a.weight"), value));
  EXPECT_TRUE(same_bits(run.stepper.get("exp_avg", "a.weight"), value));
  EXPECT_TRUE(same_bits(run.stepper.model().named_parameters()["a.weight"].detach(),
                        value.to(at::kBFloat16)));
  EXPECT_THROW(run.stepper.get("master", "a.wieght"), c10::Error);
}

TEST(Stepper, AGradientThatIsNotFiniteWritesNothing) {
  Ranks run(recipe(1)), fresh(recipe(1));
  run.stepper.pass(0,
                   [&] { (run.loss(0, 0) * std::numeric_limits<double>::infinity()).backward(); });
  const auto record = run.stepper.step();
  EXPECT_TRUE(record.skipped);
  EXPECT_FALSE(std::isfinite(record.grad_norm));
  EXPECT_EQ(record.step_count.at("a.weight"), 0);
  EXPECT_TRUE(same_bits(record.masters, fresh.stepper.step().masters));
}

// As one that is made of its masters.
TEST(Stepper, WhatIsForgottenBeginsAnew) {
  auto wanted = recipe(1);
  wanted.precision.loss_scale = {
      .policy = LossScaleSpec::Policy::DeepSpeed, .initial = 8, .window = 1};
  Ranks run(wanted), fresh(wanted);
  for (int step = 0; step < 3; ++step) {
    run.pass(0, step);
    run.stepper.step();
  }
  EXPECT_GT(run.stepper.loss_scale(), 8);
  run.stepper.forget_states();
  EXPECT_GT(run.stepper.loss_scale(), 8);
  run.stepper.forget_loss_scale();
  EXPECT_EQ(run.stepper.loss_scale(), 8);
  for (const auto& [name, parameter] : unique_parameters(run.stepper.model()))
    fresh.stepper.set("master", name, run.stepper.get("master", name));
  run.pass(0, 5);
  fresh.pass(0, 5);
  const auto got = run.stepper.step(), want = fresh.stepper.step();
  EXPECT_TRUE(same_bits(got.masters, want.masters));
  EXPECT_TRUE(same_bits(got.state.at("exp_avg_sq"), want.state.at("exp_avg_sq")));
  EXPECT_EQ(got.step_count, want.step_count);
}

// ---- Groups ----

// Two parameters of ones; the gradient of both is ones.
class Two : public Model {
 public:
  explicit Two(std::vector<GroupSpec> groups) : groups_(std::move(groups)) {
    for (const char* name : {"a", "b"}) register_parameter(name, at::ones({2}));
  }
  at::Tensor output(const Batch& /*batch*/) override {
    return named_parameters()["a"] + named_parameters()["b"];
  }
  at::Tensor criterion(const at::Tensor& output, const Batch& /*batch*/) override {
    return output.sum();
  }
  std::vector<GroupSpec> groups() override { return groups_; }

 private:
  std::vector<GroupSpec> groups_;
};

const std::vector<GroupSpec> kInReverse = {{.names = {"b"}, .lr = 0.25, .weight_decay = 0.5},
                                           {.names = {}, .lr = 0.125},
                                           {.names = {"a"}}};

Stepper of_two(Rule rule, std::vector<GroupSpec> groups = kInReverse) {
  Recipe wanted = recipe(1, SumOrder::Fp64);
  wanted.accumulation_steps = 1;
  wanted.optimizer = {.rule = rule, .lr = 0.5};
  return {wanted, std::make_shared<Two>(std::move(groups))};
}

StepRecord one_step(Stepper& stepper) {
  stepper.pass(0, [&stepper] { stepper.model().loss({}).backward(); });
  return stepper.step();
}

at::Tensor both(float value) { return at::full({2}, value); }

TEST(StepperGroups, HaveTheirOwnSettingsOrTheRecipes) {
  Stepper stepper = of_two(Rule::Sgd);
  EXPECT_EQ(stepper.lr(), (std::vector<double>{0.25, 0.125, 0.5}));
  const StepRecord record = one_step(stepper);
  EXPECT_TRUE(same_bits(record.masters.at("a"), both(0.5F)));
  EXPECT_TRUE(same_bits(record.masters.at("b"), both(1 - 0.25F * (1 + 0.5F))));
}

TEST(StepperGroups, TakeARateEachInTheModelsOrder) {
  Stepper stepper = of_two(Rule::Sgd);
  stepper.set_lr({0.125, 8, 0.75});
  EXPECT_EQ(stepper.lr(), (std::vector<double>{0.125, 8, 0.75}));
  const StepRecord record = one_step(stepper);
  EXPECT_TRUE(same_bits(record.masters.at("a"), both(0.25F)));
  EXPECT_TRUE(same_bits(record.masters.at("b"), both(1 - 0.125F * (1 + 0.5F))));
}

TEST(StepperGroups, TakeOneRateForAll) {
  Stepper stepper = of_two(Rule::Sgd);
  stepper.set_lr(0.0);
  EXPECT_EQ(stepper.lr(), (std::vector<double>{0, 0, 0}));
  for (const auto& item : one_step(stepper).masters) EXPECT_TRUE(same_bits(item.second, both(1)));
}

TEST(StepperGroups, TakeAFirstBetaEach) {
  Stepper stepper = of_two(Rule::AdamW);
  stepper.set_beta1({0.25, 0, 0.5});
  const StepRecord first = one_step(stepper);
  EXPECT_TRUE(same_bits(first.state.at("exp_avg").at("a"), both(0.5F)));
  EXPECT_TRUE(same_bits(first.state.at("exp_avg").at("b"), both(0.75F)));
  stepper.set_beta1({0.5, 0, 0.75});
  const StepRecord second = one_step(stepper);
  EXPECT_TRUE(same_bits(second.state.at("exp_avg").at("a"), both(0.5F * 0.75F + 0.25F)));
  EXPECT_TRUE(same_bits(second.state.at("exp_avg").at("b"), both(0.75F * 0.5F + 0.5F)));
}

TEST(StepperGroups, OtherNumbersOfValuesAreErrors) {
  Stepper stepper = of_two(Rule::AdamW);
  const std::vector<double> two = {0.1, 0.2};
  EXPECT_THROW(stepper.set_lr(two), c10::Error);
  EXPECT_THROW(stepper.set_beta1(two), c10::Error);
  EXPECT_EQ(stepper.lr(), (std::vector<double>{0.25, 0.125, 0.5}));
}

TEST(StepperGroups, HoldEveryTrainableParameterOnce) {
  EXPECT_THROW(of_two(Rule::Sgd, {{.names = {"a"}}}), c10::Error);
  EXPECT_THROW(of_two(Rule::Sgd, {{.names = {"a", "b"}}, {.names = {"b"}}}), c10::Error);
  EXPECT_NO_THROW(of_two(Rule::Sgd, {{.names = {"b"}}, {.names = {"a"}}}));
}

// One parameter, [2, 3], of which every element has a gradient of its own.
class Matrix : public Model {
 public:
  explicit Matrix(bool is_transposed) : Model("Matrix") {
    const auto values = at::arange(6, at::kFloat).reshape({2, 3}) * 0.25 - 0.5;
    auto place = is_transposed ? at::empty({3, 2}).t() : at::empty({2, 3});
    weight = register_parameter("weight", place.copy_(values));
  }
  at::Tensor output(const Batch&) override { return {}; }
  at::Tensor criterion(const at::Tensor&, const Batch&) override { return {}; }
  at::Tensor loss(int64_t rank) const {
    const auto factors = at::arange(6, at::kFloat).reshape({2, 3}) + static_cast<double>(rank);
    return (weight * factors).sin().sum();
  }

  at::Tensor weight;
};

StepRecord matrix_step(bool is_transposed, SumOrder order) {
  const auto matrix = std::make_shared<Matrix>(is_transposed);
  auto wanted = recipe(2, order);
  wanted.accumulation_steps = 1;
  Stepper stepper(wanted, matrix);
  for (int64_t rank = 0; rank < 2; ++rank)
    stepper.pass(rank, [&] { matrix->loss(rank).backward(); });
  return stepper.step();
}

TEST(Stepper, StridesOfAParameterChangeNoBit) {
  for (const auto order :
       {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd, SumOrder::ExactGrid, SumOrder::Fp64}) {
    const auto plain = matrix_step(false, order), transposed = matrix_step(true, order);
    for (const auto& [got, want] : {std::pair{transposed.gradients, plain.gradients},
                                    {transposed.masters, plain.masters},
                                    {transposed.parameters, plain.parameters}})
      EXPECT_TRUE(same_bits(got.at("weight").contiguous(), want.at("weight").contiguous()))
          << static_cast<int>(order);
    for (const auto& [name, states] : plain.state)
      EXPECT_TRUE(same_bits(transposed.state.at(name).at("weight").contiguous(),
                            states.at("weight").contiguous()))
          << name;
  }
}

}  // namespace
}  // namespace equigrad::reference
