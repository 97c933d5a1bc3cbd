// The trainer: the documented order of every sum, by hand and by relations between recipes.
#include "reference/trainer.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "reference/norm.hpp"
#include "reference/tests/same_bits.hpp"
#include "reference/tests/sample_data.hpp"

namespace equigrad::reference {
namespace {

using conformance::same_bits;
using conformance::sample_data;

Recipe recipe(const std::string& model) {
  return {.model = model,
          .world = 3,
          .accumulation_steps = 3,
          .optimizer = {.lr = 0.01, .weight_decay = 0.1}};
}

std::vector<StepRecord> run(const Recipe& wanted) {
  Trainer trainer(wanted, sample_data());
  std::vector<StepRecord> records;
  for (int64_t i = 0; i < wanted.steps; ++i) records.push_back(trainer.train_step());
  return records;
}

void expect_same(const std::vector<StepRecord>& got, const std::vector<StepRecord>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(same_bits(got[i].gradients, want[i].gradients)) << "step " << i;
    EXPECT_TRUE(same_bits(got[i].parameters, want[i].parameters)) << "step " << i;
    EXPECT_TRUE(same_bits(got[i].masters, want[i].masters)) << "step " << i;
    EXPECT_EQ(got[i].grad_norm, want[i].grad_norm) << "step " << i;
    EXPECT_EQ(got[i].step_count, want[i].step_count) << "step " << i;
  }
}

TEST(Trainer, RepeatsItself) {
  for (const std::string& model : model_names()) {
    SCOPED_TRACE(model);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      Recipe wanted = recipe(model);
      wanted.compute_dtype = dtype;
      expect_same(run(wanted), run(wanted));
    }
  }
}

TEST(Trainer, OrdersAgreeWithoutAccumulation) {
  for (const std::string& model : model_names()) {
    SCOPED_TRACE(model);
    Recipe add = recipe(model), reduce = recipe(model);
    add.accumulation_steps = reduce.accumulation_steps = 1;
    add.order = SumOrder::AddThenReduce;
    reduce.order = SumOrder::ReduceThenAdd;
    expect_same(run(add), run(reduce));
    add.compute_dtype = reduce.compute_dtype = at::kBFloat16;
    add.accumulate_dtype = reduce.accumulate_dtype = at::kBFloat16;
    expect_same(run(add), run(reduce));
  }
}

TEST(Trainer, OrdersDifferWithAccumulation) {
  Recipe add = recipe("gpt"), reduce = recipe("gpt");
  add.order = SumOrder::AddThenReduce;
  reduce.order = SumOrder::ReduceThenAdd;
  EXPECT_FALSE(same_bits(run(add)[0].gradients, run(reduce)[0].gradients));
}

TEST(Trainer, RanksAndMicroBatchesAreExchangeableInExactOrder) {
  const auto trained = [](int64_t world, int64_t accumulation_steps) {
    Recipe wanted = recipe("gpt");
    wanted.world = world;
    wanted.accumulation_steps = accumulation_steps;
    Trainer trainer(wanted, make_model("gpt", 1), [=](int64_t step, int64_t rank, int64_t micro) {
      return sample_data().make_batch("gpt", {1, step, 0, micro * world + rank});
    });
    return std::vector<StepRecord>{trainer.train_step(), trainer.train_step()};
  };
  expect_same(trained(6, 1), trained(1, 6));
  expect_same(trained(2, 3), trained(3, 2));
}

TEST(Trainer, AveragesOverRanksAndMicroBatches) {
  const auto first_gradients = [](int64_t world, int64_t accumulation_steps, SumOrder order) {
    Recipe wanted = recipe("vision");
    wanted.world = world;
    wanted.accumulation_steps = accumulation_steps;
    wanted.order = order;
    Trainer trainer(wanted, make_model("vision", 1), [](int64_t, int64_t, int64_t) {
      return sample_data().make_batch("vision", {});
    });
    return trainer.train_step().gradients;
  };
  // The same batch everywhere: a power of two of equal numbers is summed without rounding.
  const TensorMap one = first_gradients(1, 1, SumOrder::Fp64);
  for (const SumOrder order : {SumOrder::AddThenReduce, SumOrder::ReduceThenAdd, SumOrder::Fp64}) {
    EXPECT_TRUE(same_bits(first_gradients(4, 2, order), one));
    EXPECT_TRUE(same_bits(first_gradients(2, 2, order), one));
  }
}

TEST(Trainer, RefusesARecipeThatCannotBeRun) {
  Recipe wanted = recipe("conv");
  EXPECT_NO_THROW(Trainer(wanted, sample_data()));
  wanted.world = 0;
  EXPECT_THROW(Trainer(wanted, sample_data()), c10::Error);
  wanted = recipe("conv");
  wanted.compute_dtype = at::kInt;
  EXPECT_THROW(Trainer(wanted, sample_data()), c10::Error);
  EXPECT_THROW(Trainer(recipe("no such model"), sample_data()), c10::Error);
}

TEST(Trainer, RecordsTheLossOfEveryRankAndMicroBatch) {
  Recipe wanted = recipe("vision");
  wanted.world = 2;
  wanted.steps = 1;
  const StepRecord record = run(wanted)[0];
  ASSERT_EQ(record.losses.size(), 6U);
  const auto model = make_model("vision", wanted.seed);
  for (int64_t i = 0; i < 6; ++i) {
    const Batch batch = sample_data().make_batch("vision", {wanted.seed, 0, i % 2, i / 2});
    EXPECT_TRUE(same_bits(record.losses[static_cast<size_t>(i)], model->loss(batch).detach())) << i;
  }
}

TEST(Trainer, AddsRanksAndPassesInTheDocumentedOrder) {
  Recipe wanted = recipe("vision");
  wanted.steps = 1;
  const auto model = make_model("vision", wanted.seed);
  const at::Tensor weight = model->named_parameters()["mix.weight"];
  at::Tensor c[3][3];  // [pass][rank]
  for (int64_t i = 0; i < 9; ++i) {
    model->zero_grad();
    model->loss(sample_data().make_batch("vision", {wanted.seed, 0, i % 3, i / 3})).backward();
    c[i / 3][i % 3] = weight.grad().clone();
  }
  const at::Tensor factor = at::full({}, static_cast<float>(1.0 / 9));
  at::Tensor rank[3], pass[3];
  for (int i = 0; i < 3; ++i) {
    rank[i] = (c[0][i] + c[1][i]) + c[2][i];
    pass[i] = (c[i][0] + c[i][1]) + c[i][2];
  }
  wanted.order = SumOrder::AddThenReduce;
  EXPECT_TRUE(same_bits(run(wanted)[0].gradients.at("mix.weight"),
                        ((rank[0] + rank[1]) + rank[2]) * factor));
  wanted.order = SumOrder::ReduceThenAdd;
  EXPECT_TRUE(same_bits(run(wanted)[0].gradients.at("mix.weight"),
                        ((pass[0] + pass[1]) + pass[2]) * factor));
}

// Whether any batch of the step takes the branch of the irregular model.
bool takes_branch(const Recipe& wanted, int64_t step) {
  bool taken = false;
  for (int64_t i = 0; i < wanted.world * wanted.accumulation_steps; ++i) {
    const Draw draw{.seed = wanted.seed,
                    .step = step,
                    .rank = i % wanted.world,
                    .micro_batch = i / wanted.world};
    taken = taken || sample_data().make_batch("irregular", draw).input[0][0].item<float>() < 0;
  }
  return taken;
}

TEST(Trainer, LeavesAloneWhatNobodyUsed) {
  Recipe wanted = recipe("irregular");
  wanted.world = 2;
  wanted.accumulation_steps = 1;
  wanted.steps = 40;
  const auto before = unique_parameters(*make_model("irregular", wanted.seed));
  TensorMap previous(before.begin(), before.end());
  int64_t used = 0, step = 0;
  for (const StepRecord& record : run(wanted)) {
    for (const std::string name : {"unused.weight", "unused.bias", "frozen"}) {
      EXPECT_EQ(record.gradients.count(name), 0U);
      EXPECT_TRUE(same_bits(record.parameters.at(name), previous.at(name))) << name;
    }
    EXPECT_EQ(record.gradients.count("empty") + record.masters.count("empty"), 0U);
    EXPECT_EQ(record.parameters.count("empty"), 1U);
    const bool taken = record.gradients.count("sometimes.weight") != 0;
    EXPECT_EQ(taken, takes_branch(wanted, step++));
    used += taken ? 1 : 0;
    EXPECT_EQ(record.step_count.at("sometimes.weight"), used);
    EXPECT_EQ(static_cast<bool>(same_bits(record.parameters.at("sometimes.weight"),
                                          previous.at("sometimes.weight"))),
              !taken);
    previous = record.parameters;
  }
  EXPECT_GT(used, 0);
  EXPECT_LT(used, wanted.steps);
}

TEST(Trainer, UsesTheSettingsOfTheGroups) {
  Recipe wanted = recipe("irregular");
  wanted.optimizer.lr = 0;  // the first group stands still; the second has its own
  wanted.steps = 1;
  const StepRecord record = run(wanted)[0];
  for (const auto& [name, parameter] : unique_parameters(*make_model("irregular", wanted.seed))) {
    if (record.gradients.count(name) == 0) continue;
    EXPECT_EQ(static_cast<bool>(same_bits(record.parameters.at(name), parameter)),
              parameter.dim() >= 2)
        << name;
  }
}

TEST(Trainer, KeepsMastersFromBeforeTheRounding) {
  for (const std::string& model : model_names()) {
    Recipe wanted = recipe(model);
    wanted.compute_dtype = at::kBFloat16;
    wanted.optimizer = {.rule = Rule::Sgd, .lr = 0};
    wanted.steps = 1;
    const auto start = make_model(model, wanted.seed);
    const std::vector<std::string> still_names = start->groups()[0].names;  // with that lr
    const StepRecord still = run(wanted)[0];
    for (const auto& [name, parameter] : unique_parameters(*start)) {
      if (std::count(still_names.begin(), still_names.end(), name) == 0) continue;
      EXPECT_TRUE(same_bits(still.parameters.at(name), parameter.detach().to(at::kBFloat16)));
      if (still.masters.count(name) == 0) continue;
      EXPECT_TRUE(same_bits(still.masters.at(name), parameter.detach())) << name;
    }
    wanted.optimizer.lr = 0.5;
    const StepRecord moved = run(wanted)[0];
    EXPECT_FALSE(same_bits(moved.masters, still.masters));
    for (const auto& [name, master] : moved.masters) {
      EXPECT_TRUE(same_bits(moved.parameters.at(name), master.to(at::kBFloat16))) << name;
    }
  }
}

TEST(Trainer, ClipsByTheNormOfTheWholeGradient) {
  Recipe wanted = recipe("conv");
  wanted.steps = 1;
  const StepRecord open = run(wanted)[0];
  double squares = 0, largest = 0;
  int64_t terms = 0;
  for (const auto& [name, gradient] : open.gradients) {
    const double part = gradient.to(at::kDouble).square().sum().item<double>();
    squares += part;
    largest = std::max(largest, part);
    terms += gradient.numel();
  }
  // Any order of fp64 sums of n squares is within n u of the exact one; the root halves that.
  EXPECT_LE(std::abs(open.grad_norm - std::sqrt(squares)),
            open.grad_norm * static_cast<double>(terms + 4) * 0x1p-53);
  EXPECT_GT(squares, largest);

  wanted.gradient_clipping = open.grad_norm * 2;
  EXPECT_TRUE(same_bits(run(wanted)[0].gradients, open.gradients));
  wanted.gradient_clipping = open.grad_norm / 3;
  const StepRecord clipped = run(wanted)[0];
  EXPECT_EQ(clipped.grad_norm, open.grad_norm);
  const float factor = static_cast<float>(wanted.gradient_clipping / (open.grad_norm + 1e-6));
  TensorMap scaled = open.gradients;
  for (auto& item : scaled) item.second = item.second * at::full({}, factor);
  EXPECT_TRUE(same_bits(clipped.gradients, scaled));
}

TEST(Trainer, FloatGradientsLieInsideTheirBoundAroundTheOracle) {
  // Precision alone: the contributions themselves are fp32, so compare one step of the sum, the
  // exact order against the pinned one, on equal weights: error <= gamma_h * sum |c| / n, where h
  // counts the additions on the longest path and the two roundings of the average.
  Recipe exact = recipe("gpt"), pinned = recipe("gpt");
  exact.steps = pinned.steps = 1;
  pinned.order = SumOrder::AddThenReduce;
  const StepRecord want = run(exact)[0], got = run(pinned)[0];
  const double height = 3 + 2 + 2 + 2;
  const double gamma = height * 0x1p-24 / (1 - height * 0x1p-24);
  for (const auto& [name, gradient] : got.gradients) {
    const at::Tensor error = (gradient.to(at::kDouble) - want.gradients.at(name)).abs();
    EXPECT_TRUE((error <= want.absolute_sum.at(name) * gamma).all().item<bool>()) << name;
  }
}

TEST(Trainer, LearnsTheTextAndTheOracleIsDouble) {
  Recipe wanted = recipe("gpt");
  wanted.compute_dtype = at::kDouble;
  wanted.steps = 30;
  const std::vector<StepRecord> records = run(wanted);
  EXPECT_EQ(records[0].masters.at("head.weight").scalar_type(), at::kDouble);
  EXPECT_EQ(records[0].state.at("exp_avg_sq").at("head.weight").scalar_type(), at::kDouble);
  EXPECT_EQ(records[0].losses.size(), 9U);
  EXPECT_LT(records[29].losses[0].item<double>(), records[0].losses[0].item<double>());
}

}  // namespace
}  // namespace equigrad::reference
