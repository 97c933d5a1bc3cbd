// What one rank was given otherwise is named on all of them, before anything is trained.
#include "engine/core/same_start.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/config/values.hpp"

namespace equigrad::core {
namespace {

using conformance::error_of;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::HasSubstr;

at::Tensor ones(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::ones(sizes, type).requires_grad_(true);
}

struct Given {
  EngineConfig config;
  std::vector<ParameterGroup> groups = {{{{"w", ones({3, 2})}, {"b", ones({3})}}, 0.5, {}}};
};

// What rank 1 of three is told where its own differ; empty: nothing.
std::string told(const std::function<void(Given&)>& differ) {
  const auto error = on_ranks(3, [&](RankContext& context) {
    Given given;
    if (context.rank() == 1) differ(given);
    const auto said =
        error_of([&] { require_same_start(given.groups, given.config, context.group()); });
    if (!said.empty()) throw std::runtime_error(said);
  });
  return error;
}

TEST(SameStart, WhatIsTheSameIsNotTold) {
  EXPECT_EQ(told([](Given&) {}), "");
}

TEST(SameStart, TheFirstKeyThatDiffersIsNamedOnEveryRank) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Given given;
                       given.config.optimizer.lr = 0.1;
                       if (context.rank() == 2) given.config.optimizer.lr = 0.2;
                       EXPECT_EQ(error_of([&] {
                                   require_same_start(given.groups, given.config, context.group());
                                 }),
                                 "[initialize] expected one configuration on all ranks, got "
                                 "optimizer.params.lr 0.1 on rank 0 and optimizer.params.lr 0.2 on "
                                 "rank 2. Give every rank the same.");
                     }),
            "");
}

TEST(SameStart, EveryPartOfAModelIsCompared) {
  const auto expect = [](const std::function<void(Given&)>& differ, const std::string& words) {
    EXPECT_THAT(told(differ), HasSubstr(words));
  };
  expect([](Given& given) { given.groups[0].parameters[0].name = "v"; },
         "parameter \"w\" of Float [3, 2] on rank 0 and parameter \"v\" of Float [3, 2] on rank 1");
  expect(
      [](Given& given) {
        given.groups[0].parameters[1].tensor = ones({1, 3});
      },
      "parameter \"b\" of Float [1, 3] on rank 1");
  expect([](Given& given) { given.groups[0].parameters[1].tensor = ones({3}, at::kHalf); },
         "parameter \"b\" of Half [3] on rank 1");
  expect([](Given& given) { given.groups[0].parameters.pop_back(); },
         "parameter \"b\" of Float [3] on rank 0 and none on rank 1");
  expect([](Given& given) { given.groups[0].parameters[0].tensor.requires_grad_(false); },
         "parameter \"w\" of Float [3, 2], frozen on rank 1");
  expect([](Given& given) { given.groups[0].lr = 0.25; }, "learning rate 0.25");
  expect([](Given& given) { given.groups[0].weight_decay = 0.5; }, "weight decay 0.5");
  expect([](Given& given) { given.groups[0].settings = "torch.optim.SGD lr=0.5"; },
         "parameter group 0 with torch.optim.SGD lr=0.5 on rank 1");
  const auto error = on_ranks(2, [&](RankContext& context) {
    Given given;
    given.groups[0].settings = "torch.optim.SGD lr=0.5";
    if (context.rank() == 1) given.groups[0].parameters[0].name = "v";
    require_same_start(given.groups, given.config, context.group());
  });
  EXPECT_THAT(error, HasSubstr("parameter \"v\" of Float [3, 2] on rank 1"));
}

// Parts of a split parameter need not be alike; a rate must be.
TEST(SameStart, RanksOfATensorGroupHaveOneConfigurationAndModelsOfTheirOwn) {
  for (const bool of_rate : {false, true}) {
    const auto error = on_ranks(2, [&](RankContext& context) {
      const auto mesh = comm::make_mesh(
          context.rank(), {.tensor = 2},
          [&](const auto& group, int rank, int size) { return context.group(group, rank, size); });
      Given given;
      if (context.rank() == 1 && of_rate) given.config.optimizer.lr = 0.25;
      if (context.rank() == 1) given.groups[0].parameters[0].tensor = ones({2, 2});
      const auto said = error_of([&] { require_same_start(given.groups, given.config, mesh); });
      if (!said.empty()) throw std::runtime_error(said);
    });
    EXPECT_EQ(error.empty(), !of_rate) << error;
    if (of_rate) EXPECT_THAT(error, HasSubstr("optimizer.params.lr 0.25 on rank 1"));
  }
}

TEST(SameStart, RanksHaveTheirNumbersAmongAll) {
  const auto error = on_ranks(4, [&](RankContext& context) {
    const auto mesh = comm::make_mesh(
        context.rank(), {.data = 2, .tensor = 2},
        [&](const auto& group, int rank, int size) { return context.group(group, rank, size); });
    Given given;
    if (context.rank() == 3) given.groups[0].parameters[0].name = "v";
    const auto said = error_of([&] { require_same_start(given.groups, given.config, mesh); });
    if (!said.empty()) throw std::runtime_error(said);
  });
  EXPECT_THAT(error, HasSubstr("parameter \"w\" of Float [3, 2] on rank 1 and parameter \"v\" of "
                               "Float [3, 2] on rank 3."));
}

// Keys that only one rule of update has.
TEST(SameStart, AKeyThatHoldsForThisConfigurationIsCompared) {
  EXPECT_THAT(told([](Given& given) { given.config.optimizer.beta2 = 0.95; }),
              HasSubstr("optimizer.params.betas [0.9,0.95] on rank 1"));
  const auto sgd = [](EngineConfig& config) { config.optimizer.kind = OptimizerConfig::Kind::Sgd; };
  const auto said = on_ranks(2, [&](RankContext& context) {
    Given given;
    sgd(given.config);
    given.config.optimizer.momentum = context.rank() == 1 ? 0.5 : 0.25;
    const auto told =
        error_of([&] { require_same_start(given.groups, given.config, context.group()); });
    if (!told.empty()) throw std::runtime_error(told);
  });
  EXPECT_THAT(said, HasSubstr("optimizer.params.momentum 0.5 on rank 1"));
}

TEST(SameStart, WhatIsARanksOwnMayDiffer) {
  EXPECT_EQ(told([](Given& given) {
              given.config.flops_profiler.output_file = "rank1.txt";
              given.config.communication_timeout_s = 60;
            }),
            "");
}

TEST(SameStart, EveryKeyThatHoldsAValueIsALine) {
  const auto lines = values_of({});
  EXPECT_GT(lines.size(), 40U);
  EngineConfig other;
  other.gradient_clipping = 1;
  other.zero.stage = 2;
  other.reduction = ReductionOrder::Exact;
  other.tensor_parallel.autotp_size = 2;
  std::size_t differing = 0;
  for (const auto& line : values_of(other))
    differing += std::find(lines.begin(), lines.end(), line) == lines.end();
  EXPECT_GE(differing, 4U);
}

}  // namespace
}  // namespace equigrad::core
