#include "engine/memory/forecast.hpp"

#include <gtest/gtest.h>

#include <cstdio>

namespace equigrad {
namespace {

using memory::Category;

EngineConfig config_of(int stage, DataType param, DataType master, DataType state) {
  EngineConfig config;
  config.zero.stage = stage;
  config.precision.param = config.precision.accumulate = param;
  config.precision.master = master;
  config.precision.optimizer_state = state;
  return config;
}
EngineConfig fp32(int stage) {
  return config_of(stage, DataType::Fp32, DataType::Fp32, DataType::Fp32);
}
EngineConfig bf16(int stage) {
  return config_of(stage, DataType::Bf16, DataType::Fp32, DataType::Fp32);
}
EngineConfig low(int stage) {
  auto config = config_of(stage, DataType::Bf16, DataType::Bf16, DataType::Bf16);
  config.precision.autocast.enabled = true;
  return config;
}

// By hand: parameters of 5, 0, 7 and 3 elements on 2 ranks have slices of 3, 0, 4 and 2.
TEST(MemoryModel, PaddingIsCounted) {
  const auto of = [](const EngineConfig& config, bool on_cuda = false) {
    return forecast(table_of_sizes({5, 0, 7, 3}, config), config, {2, on_cuda, {}});
  };
  EXPECT_EQ(of(fp32(0)).of(Category::MasterWeights).idle, 15 * 4);
  EXPECT_EQ(of(fp32(0)).of(Category::Parameters).idle, 15 * 4);
  EXPECT_EQ(of(fp32(0)).of(Category::OptimizerState).idle, 15 * 8);
  EXPECT_EQ(of(fp32(0)).of(Category::Buckets).peak, 16 * 4);  // 15 in two slices
  EXPECT_EQ(of(fp32(0)).of(Category::Gathered).peak, 0);
  EXPECT_EQ(of(bf16(1)).of(Category::MasterWeights).idle, 9 * 4);
  EXPECT_EQ(of(bf16(1)).of(Category::Parameters).idle, 15 * 2);
  EXPECT_EQ(of(bf16(1)).of(Category::Gradients).peak, 9 * (2 + 4));
  EXPECT_EQ(of(bf16(2)).of(Category::Gathered).peak, 18 * 2);
  EXPECT_EQ(of(bf16(3)).of(Category::Parameters).idle, 9 * 2);
  // Below the threshold: whole, on a CPU where they have always been, without padding.
  EXPECT_EQ(of(bf16(3)).of(Category::Gathered).idle, 15 * 2);
  EXPECT_EQ(of(bf16(3)).of(Category::Gathered).peak, (15 + 18) * 2);
  EXPECT_EQ(of(bf16(3), true).of(Category::Gathered).idle, 18 * 2);
  EXPECT_EQ(of(low(3)).of(Category::Parameters).idle, 0);  // the masters are the shards
}

// DeepSpeed's threshold is the largest that stays.
TEST(MemoryModel, AParameterOfAsManyElementsAsTheThresholdStays) {
  auto config = bf16(3);
  const auto stay = [&](int64_t threshold) {
    config.zero.stage3_param_persistence_threshold = threshold;
    return forecast(table_of_sizes({5, 0, 7, 3}, config), config, {2, false, {}})
        .of(Category::Gathered)
        .idle;
  };
  EXPECT_EQ(stay(7), 15 * 2);
  EXPECT_EQ(stay(6), 8 * 2);
  EXPECT_EQ(stay(5), 8 * 2);
  EXPECT_EQ(stay(4), 3 * 2);
}

TEST(MemoryModel, MastersAndStatesCountInTheirOwnTypes) {
  const auto of = [](DataType master, DataType state) {
    const auto config = config_of(1, DataType::Bf16, master, state);
    return forecast(table_of_sizes({8}, config), config, {2, false, {}});
  };
  for (const auto master : {DataType::Fp32, DataType::Bf16}) {
    for (const auto state : {DataType::Fp32, DataType::Bf16}) {
      const auto held = of(master, state);
      EXPECT_EQ(held.of(Category::MasterWeights).idle, 4 * (master == DataType::Fp32 ? 4 : 2));
      EXPECT_EQ(held.of(Category::OptimizerState).idle, 2 * 4 * (state == DataType::Fp32 ? 4 : 2));
    }
  }
}

// The same parameters: one bucket, that waits for the last of them.
TEST(MemoryModel, APassHoldsItsBucketAndInTheEndTheWindow) {
  const auto timeline = [](const EngineConfig& config) {
    return forecast_pass(table_of_sizes({5, 0, 7, 3}, config), config, {2, false, {}});
  };
  const auto early = timeline(fp32(2)), late = timeline(fp32(0));
  ASSERT_EQ(early.size(), 4u);
  for (const std::size_t i : {0U, 1U, 2U}) {
    EXPECT_EQ(early[i].parameter, 3 - i);
    EXPECT_EQ(early[i].after_bytes, 18 * 4);
    EXPECT_EQ(early[i].most_bytes, 18 * 4);
  }
  EXPECT_EQ(early[3].most_bytes, (18 + 9) * 4);
  EXPECT_EQ(early[3].after_bytes, 9 * 4);
  EXPECT_EQ(late[3].most_bytes, 16 * 4);
  EXPECT_EQ(late[3].after_bytes, 16 * 4);
}

// Four groups of one bucket, of 4 MB, and a window of 8: one is under way and one announced when
// the third comes.
TEST(MemoryModel, TheWindowIsThereFromTheFirstSumOn) {
  constexpr std::int64_t kMb = std::int64_t{1} << 20;
  for (const bool overlaps : {true, false}) {
    auto config = fp32(2);
    config.zero.overlap_comm = overlaps;
    const auto timeline =
        forecast_pass(table_of_sizes({kMb, kMb, kMb, kMb}, config), config, {2, false, {}});
    const std::vector<std::int64_t> after =
        overlaps ? std::vector<std::int64_t>{4, 8, 16, 8} : std::vector<std::int64_t>{8, 8, 8, 8};
    const std::vector<std::int64_t> most = overlaps ? std::vector<std::int64_t>{4, 8, 20, 20}
                                                    : std::vector<std::int64_t>{12, 12, 12, 12};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(timeline[i].after_bytes, after[i] * kMb) << overlaps << i;
      EXPECT_EQ(timeline[i].most_bytes, most[i] * kMb) << overlaps << i;
    }
  }
}

// The same at stage 0: the first three are sent eagerly, before the step, and stay.
TEST(MemoryModel, WhatIsSentEagerlyStaysToo) {
  constexpr std::int64_t kMb = std::int64_t{1} << 20;
  using Bytes = std::vector<std::int64_t>;
  const auto after = [&](const EngineConfig& config) {
    Bytes all;
    const auto table = table_of_sizes({kMb, kMb, kMb, kMb}, config);
    for (const auto& arrival : forecast_pass(table, config, {2, false, {}}))
      all.push_back(arrival.after_bytes / kMb);
    return all;
  };
  const auto step = [&](const EngineConfig& config) {
    const auto table = table_of_sizes({kMb, kMb, kMb, kMb}, config);
    return forecast(table, config, {2, false, {}}).of(Category::Buckets).peak / kMb;
  };
  EXPECT_EQ(after(fp32(0)), (Bytes{4, 8, 12 + 16, 16 + 16}));
  EXPECT_EQ(step(fp32(0)), 16);
  auto wide = config_of(0, DataType::Bf16, DataType::Fp32, DataType::Fp32);
  wide.precision.communication = DataType::Fp32;  // beside what waits, what is sent
  EXPECT_EQ(after(wide), (Bytes{2, 4 + 4, 6 + 4 + 8, 8 + 4 + 8}));
  EXPECT_EQ(step(wide), 8 + 4 + 4) << "one leaves before the other has arrived";
  for (auto config : {fp32(0), wide}) {
    const std::int64_t held = config.precision.param == DataType::Fp32 ? 4 : 2;
    config.zero.overlap_comm = false;
    EXPECT_EQ(after(config), (Bytes{held, 2 * held, 3 * held, 4 * held}));
    config.zero.overlap_comm = true;
    config.gradient_accumulation_steps = 2;
    EXPECT_EQ(after(config), (Bytes{held, 2 * held, 3 * held, 4 * held}));
  }
}

TEST(MemoryModel, BucketsAreTheWindowOrTwoUnderWayAndTheNext) {
  auto config = fp32(1);
  config.zero.reduce_bucket_size = 4;
  const auto of = [&](std::optional<std::vector<std::size_t>> arrivals) {
    return forecast(table_of_sizes({4, 4, 4, 4, 4}, config), config, {1, false, arrivals})
        .of(Category::Buckets);
  };
  EXPECT_EQ(of({}).peak, 5 * 16);
  config.zero.stage = 2;
  EXPECT_EQ(of({}).peak, 2 * 16);
  EXPECT_EQ(of({}).most, 5 * 16);
  EXPECT_EQ(of({{0, 1, 2, 3, 4}}).peak, 5 * 16);  // the first one that is sent comes last
  EXPECT_EQ(of({{4, 2, 3, 1, 0}}).peak, 3 * 16);
  EXPECT_EQ(of({{4, 2, 1, 3, 0}}).peak, 4 * 16);
}

TEST(MemoryModel, BucketsThatLeaveWhenFullAreAnEighthOfALargeModel) {
  const auto peak = [&](int stage, std::size_t tensors, std::int64_t numel) {
    const auto config = fp32(stage);
    return forecast(table_of_sizes(std::vector<std::int64_t>(tensors, numel), config), config,
                    {2, false, {}})
        .of(Category::Buckets)
        .peak;
  };
  EXPECT_EQ(peak(1, 320, 100'000), 32'000'000 * 4);
  EXPECT_EQ(peak(2, 320, 100'000), 3 * 4'000'000 * 4);
  EXPECT_EQ(peak(3, 320, 100'000), 3 * 4'000'000 * 4);
  // Large parameters are buckets of their own, and leave in groups.
  EXPECT_EQ(peak(1, 32, 1'000'000), 32'000'000 * 4);
  // One group is sent, one is announced, until the next bucket is full.
  EXPECT_EQ(peak(3, 32, 1'000'000), (2 * 4'000'000 + 1'000'000) * 4);
  EXPECT_EQ(peak(3, 64, 1'000'000), (2 * 4'000'000 + 1'000'000) * 4);
  EXPECT_EQ(peak(3, 8, 10'000'000), 3 * 10'000'000 * 4);
}

TEST(MemoryModel, ALaterPassIsHeldUntilItEnds) {
  auto config = bf16(1);
  config.gradient_accumulation_steps = 2;
  const auto gradients = [&] {
    return forecast(table_of_sizes({100}, config), config, {2, false, {}}).of(Category::Gradients);
  };
  EXPECT_EQ(gradients().peak, 50 * (2 + 4));  // the step's; the pass's are 100 * 2
  config.precision.master = DataType::Bf16;
  EXPECT_EQ(gradients().peak, 100 * 2);
  config.zero.stage = 2;
  EXPECT_EQ(gradients().peak, 50 * (2 + 4));
}

TEST(MemoryModel, PassesThatTheCallerCountsAreTakenForSeveral) {
  const auto of = [](int stage, ReductionOrder order, bool managed, std::int64_t steps) {
    auto config = fp32(stage);
    config.reduction = order;
    config.managed_gradient_accumulation = managed;
    config.gradient_accumulation_steps = steps;
    const auto bytes = forecast(table_of_sizes({100, 30}, config), config, {2, false, {}});
    std::vector<std::int64_t> all;
    for (const auto& held : bytes.categories)
      all.insert(all.end(), {held.idle, held.peak, held.most});
    return all;
  };
  int larger = 0;
  for (const int stage : {0, 1, 2, 3})
    for (const auto order : {ReductionOrder::Pinned, ReductionOrder::Exact}) {
      EXPECT_EQ(of(stage, order, false, 1), of(stage, order, true, 2)) << stage;
      larger += of(stage, order, false, 1) != of(stage, order, true, 1);
    }
  EXPECT_GT(larger, 2) << "else it says nothing";
}

TEST(MemoryModel, ExactSumsAre16BytesWhereTheyAreHeld) {
  const auto of = [](EngineConfig config, int64_t passes) {
    config.reduction = ReductionOrder::Exact;
    config.precision.accumulate = DataType::Fp32;
    config.gradient_accumulation_steps = passes;
    return forecast(table_of_sizes({100}, config), config, {2, false, {}});
  };
  EXPECT_EQ(of(fp32(1), 1).of(Category::Buckets).peak, 100 * 4) << "gradients wait as they are";
  EXPECT_EQ(of(bf16(1), 1).of(Category::Buckets).peak, 100 * 2);
  EXPECT_EQ(of(bf16(1), 2).of(Category::Buckets).peak, 100 * 16);
  EXPECT_EQ(of(bf16(1), 2).of(Category::Gradients).peak, 100 * 2) << "a later pass's";
  EXPECT_EQ(of(fp32(1), 1).of(Category::Gradients).peak, 50 * 4);
  EXPECT_EQ(of(bf16(2), 1).of(Category::Buckets).peak, 100 * 2);
  EXPECT_EQ(of(bf16(2), 1).of(Category::Gradients).peak, 50 * (16 + 4)) << "and its average";
  EXPECT_EQ(of(bf16(2), 2).of(Category::Gradients).peak, 50 * (16 + 16)) << "and a later pass's";
}

TEST(MemoryModel, OffloadedStateWantsAShardAndAGradientOnTheDevice) {
  auto config = fp32(3);
  const auto of = [&](bool on_cuda, Category category) {
    return forecast(table_of_sizes({100}, config), config, {2, on_cuda, {}}).of(category);
  };
  config.offload_optimizer.to_cpu = true;
  EXPECT_EQ(of(false, Category::Parameters).idle, 0);
  EXPECT_EQ(of(true, Category::Parameters).idle, 50 * 4);
  EXPECT_EQ(of(false, Category::Gradients).peak, 50 * 4);
  EXPECT_EQ(of(true, Category::Gradients).peak, 50 * 8);
  config.zero.offload_param.to_cpu = true;
  EXPECT_EQ(of(true, Category::Parameters).idle, 0) << "the masters are there too";
  config.offload_optimizer.to_cpu = false;
  EXPECT_EQ(of(true, Category::Parameters).idle, 50 * 4);
  EXPECT_EQ(of(false, Category::Parameters).idle, 0);
}

TEST(MemoryModel, ALeafIsHereAsAWhole) {
  auto config = fp32(3);
  config.zero.stage3_param_persistence_threshold = 0;
  config.zero.stage3_max_live_parameters = 10;
  const auto of = [&](std::vector<std::vector<std::size_t>> leaves) {
    return forecast(table_of_sizes({100, 4, 20, 30, 40}, config), config, {2, false, {}, leaves})
        .of(Category::Gathered);
  };
  EXPECT_EQ(of({}).peak, 100 * 4);
  EXPECT_EQ(of({{2, 3, 4}}).peak, 100 * 4);
  EXPECT_EQ(of({{1, 3, 4}, {0, 2}}).peak, 120 * 4);
  EXPECT_EQ(of({}).most, (10 + 140) * 4 + 194 * 4) << "the limit, two more, and their block";
  EXPECT_EQ(of({{1, 2, 3, 4}}).most, 2 * 194 * 4);
}

// Figure 1 of the paper, with what this engine holds more (fp32: masters beside parameters) and
// less (bf16: no fp32 gradients; stage 3 without a copy where masters have the model's type).
TEST(MemoryModel, RatesAreThoseOfManyParameters) {
  const auto idle = [](const EngineConfig& config, int world) {
    double sum = 0;
    for (const auto& rate : rates(config, {world, false, {}})) sum += rate.idle;
    return sum;
  };
  EXPECT_EQ(idle(fp32(0), 4), 4 + 4 + 8);
  EXPECT_EQ(idle(bf16(0), 4), 2 + 4 + 8);
  EXPECT_EQ(idle(bf16(1), 4), 2 + 12 / 4.0);
  EXPECT_EQ(idle(bf16(3), 4), 14 / 4.0);
  EXPECT_EQ(idle(low(3), 4), 6 / 4.0);
  const auto buckets = [](const EngineConfig& config) {
    return rates(config, {4, false, {}})[static_cast<std::size_t>(Category::Buckets)];
  };
  EXPECT_EQ(buckets(bf16(1)).peak, 2);
  EXPECT_EQ(buckets(bf16(2)).peak, 0);
  EXPECT_EQ(buckets(bf16(2)).constant, 4 * 500'000'000LL * 2);
}

// On one rank too, where a tensor of as many elements as there are ranks has one.
TEST(MemoryModel, RatesAreTheLimitOfAForecast) {
  const std::vector<int64_t> numels(40, 1'000'000);
  for (const int world : {1, 2, 4}) {
    for (const auto& config : {fp32(0), fp32(3), bf16(1), bf16(2), bf16(3), low(1), low(3)}) {
      const auto limit = rates(config, {world, false, {}});
      const auto held = forecast(table_of_sizes(numels, config), config, {world, false, {}});
      for (const auto category : {Category::Parameters, Category::Gradients,
                                  Category::MasterWeights, Category::OptimizerState}) {
        const auto& rate = limit[static_cast<std::size_t>(category)];
        EXPECT_EQ(rate.idle * 40e6, static_cast<double>(held.of(category).idle)) << world;
        EXPECT_EQ(rate.peak * 40e6, static_cast<double>(held.of(category).peak)) << world;
      }
    }
  }
}

// The experiment of DeepSpeed's blog on 16-bit model states: 6.86e9 parameters, 4 ranks, ZeRO-3. It
// allocated 25.74 GB with fp32 masters, 16.17 GB with masters, gradients and states in bf16. If its
// GB are 2^30 bytes, 16 bytes per parameter (model 2, gradient 2, master 4, states 8) and 10 (2, 2,
// 2, 4) leave 0.18 and 0.20 GB for everything else. This engine holds 14 and 6 between steps: its
// shards of the model are the masters where the types are equal, and gradients go after the step.
// Not in the formula: activations, pages on their way, the allocator's slack.
TEST(MemoryModel, TheBlogsExperiment) {
  constexpr double kParameters = 6.86e9, kGb = 1 << 30;
  const auto gb = [](const EngineConfig& config, double window) {
    double bytes = window;
    for (const auto& rate : rates(config, {4, false, {}})) bytes += rate.idle;
    return bytes * kParameters / kGb;
  };
  std::printf("%-44s %12s %12s %12s\n", "GB of 2^30 bytes a rank", "idle", "with window",
              "the blog's");
  std::printf("%-44s %12.2f %12.2f %12.2f\n", "bf16, fp32 masters and states", gb(bf16(3), 0),
              gb(bf16(3), 2 / 4.0), 25.74);
  std::printf("%-44s %12.2f %12.2f %12.2f\n", "bf16 masters, gradients, states, autocast",
              gb(low(3), 0), gb(low(3), 2 / 4.0), 16.17);
  EXPECT_EQ(gb(bf16(3), 0), 14 / 4.0 * kParameters / kGb);
  EXPECT_EQ(gb(low(3), 0), 6 / 4.0 * kParameters / kGb);
  EXPECT_LT(gb(bf16(3), 2 / 4.0), 25.74);
  EXPECT_LT(gb(low(3), 2 / 4.0), 16.17);
  EXPECT_LT(16 / 4.0 * kParameters / kGb, 25.74);  // what is left for the rest is positive
  EXPECT_LT(10 / 4.0 * kParameters / kGb, 16.17);
}

}  // namespace
}  // namespace equigrad
