// The window's length: by count, by hand, without step() inside of no_sync(), and set anew between
// windows.
#include "engine/gradient/micro_batches.hpp"

#include <torch/csrc/autograd/autograd.h>

#include "conformance/testing/counting_communicator.hpp"
#include "conformance/testing/small_run.hpp"

namespace equigrad::gradient {
namespace {

using conformance::at_every_stage;
using conformance::error_of;
using conformance::expect_equal;
using conformance::SmallOptions;
using conformance::SmallRun;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;

// One micro-batch; whether it ended the window.
bool step(MicroBatches& batches, int passes = 1) {
  for (int pass = 0; pass < passes; ++pass) batches.end_pass();
  batches.check_step();
  const bool boundary = batches.is_boundary();
  batches.end_step();
  return boundary;
}

std::vector<bool> steps(MicroBatches& batches, int count) {
  std::vector<bool> boundaries;
  for (int i = 0; i < count; ++i) boundaries.push_back(step(batches));
  return boundaries;
}

TEST(MicroBatches, AWindowEndsAfterSoManySteps) {
  MicroBatches one(1), three(3);
  EXPECT_EQ(steps(one, 3), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(steps(three, 6), (std::vector<bool>{false, false, true, false, false, true}));
  EXPECT_FALSE(step(three, 5)) << "passes of one micro-batch are not counted";
}

TEST(MicroBatches, ABoundaryThatWasSetHoldsUntilItIsSetAgain) {
  MicroBatches batches(3);
  batches.set_boundary(true);
  EXPECT_EQ(steps(batches, 2), (std::vector<bool>{true, true}));
  batches.set_boundary(false);
  EXPECT_EQ(steps(batches, 4), (std::vector<bool>{false, false, false, false}));
  batches.set_boundary(std::nullopt);
  EXPECT_EQ(steps(batches, 4), (std::vector<bool>{true, false, false, true}))
      << "the window was overdue, the next one is counted";
  EXPECT_FALSE(step(batches));
  batches.set_boundary(true);
  EXPECT_TRUE(step(batches)) << "early";
  batches.set_boundary(std::nullopt);
  EXPECT_EQ(steps(batches, 3), (std::vector<bool>{false, false, true})) << "counted anew";
}

TEST(MicroBatches, AStepNeedsAPassSinceTheLast) {
  MicroBatches batches(2);
  const std::string none = "[engine.step] expected a backward pass since the last step(), got none";
  EXPECT_THAT(error_of([&] { batches.check_step(); }), HasSubstr(none));
  EXPECT_FALSE(step(batches));
  EXPECT_THAT(error_of([&] { batches.check_step(); }), HasSubstr(none));
  EXPECT_TRUE(step(batches)) << "a refused step is not counted";
}

TEST(MicroBatches, AStepIsExpectedAtTheBoundaryOutsideOfNoSync) {
  MicroBatches batches(2);
  EXPECT_FALSE(batches.expects_step());
  batches.set_boundary(true);
  EXPECT_TRUE(batches.expects_step());
  auto guard = batches.no_sync();
  EXPECT_FALSE(batches.expects_step());
  guard.reset();
  EXPECT_TRUE(batches.expects_step());
}

TEST(MicroBatches, NoStepWhileTheGuardOfNoSyncLives) {
  MicroBatches batches(1);
  auto guard = batches.no_sync();
  batches.end_pass();
  EXPECT_THAT(error_of([&] { batches.check_step(); }),
              HasSubstr("[engine.step] expected to be outside of no_sync()"));
  EXPECT_THAT(error_of([&] { (void)batches.no_sync(); }),
              HasSubstr("[engine.no_sync] expected no guard, got one that still lives"));
  const auto copy = guard;
  guard.reset();
  EXPECT_NE(error_of([&] { batches.check_step(); }), "") << "a copy lives";
}

TEST(MicroBatches, TheGuardOfNoSyncMayOutliveThem) {
  std::shared_ptr<void> guard;
  {
    MicroBatches batches(1);
    guard = batches.no_sync();
    guard.reset();
    batches.end_pass();
    EXPECT_EQ(error_of([&] { batches.check_step(); }), "");
    guard = batches.no_sync();
  }
  EXPECT_TRUE(guard);
}

TEST(MicroBatches, TheBatchSizeChangesBetweenWindowsAndInMultiples) {
  MicroBatches batches(2);
  for (const int64_t wrong : {-6, 0, 3, 7}) {
    EXPECT_THAT(error_of([&] { batches.set_train_batch_size(wrong, 6); }),
                AllOf(HasSubstr("[engine.set_train_batch_size] expected a multiple of 6"),
                      HasSubstr("got " + std::to_string(wrong))));
  }
  batches.end_pass();
  EXPECT_THAT(error_of([&] { batches.set_train_batch_size(18, 6); }),
              HasSubstr("got 0 micro-batches and 1 passes into one"));
  EXPECT_FALSE(step(batches, 0));
  EXPECT_THAT(error_of([&] { batches.set_train_batch_size(18, 6); }),
              HasSubstr("got 1 micro-batches and 0 passes into one"));
  EXPECT_EQ(batches.accumulation_steps(), 2);
  EXPECT_TRUE(step(batches));
  batches.set_train_batch_size(18, 6);
  EXPECT_EQ(batches.accumulation_steps(), 3);
  EXPECT_EQ(steps(batches, 6), (std::vector<bool>{false, false, true, false, false, true}));
}

TEST(MicroBatches, WhereTheCallerCountsEveryStepEndsAWindow) {
  MicroBatches batches(3, /*is_managed=*/false);
  EXPECT_TRUE(batches.is_boundary());
  EXPECT_EQ(steps(batches, 4), (std::vector<bool>{true, true, true, true}));
  EXPECT_TRUE(step(batches, 5));
  EXPECT_FALSE(batches.expects_step()) << "no pass is known to be the last";
  batches.set_boundary(false);
  EXPECT_EQ(steps(batches, 2), (std::vector<bool>{false, false}));
  batches.set_boundary(true);
  EXPECT_FALSE(batches.expects_step());
  EXPECT_TRUE(step(batches));
  batches.set_boundary(std::nullopt);
  EXPECT_TRUE(step(batches));
  EXPECT_THAT(error_of([&] { batches.check_step(); }), HasSubstr("got none"));
  batches.set_train_batch_size(12, 6);
  EXPECT_EQ(batches.accumulation_steps(), 2);
}

// ---- On an engine.

TEST(MicroBatches, PassesInsideOfNoSyncAddUpAsAnyOthers) {
  at_every_stage(2, [](RankContext& context, int stage) {
    for (const bool bf16 : {false, true}) {
      const SmallOptions options{.stage = stage, .accumulation = 2, .bf16 = bf16};
      SmallRun run(context, options), plain(context, options);
      if (stage >= 2) {
        EXPECT_THAT(
            error_of([&] { (void)run.engine->no_sync(); }),
            HasSubstr("expected ZeRO stage 0 or 1, got " + std::to_string(stage) + ", which"));
      }
      for (int64_t micro = 0; micro < 4; ++micro) {
        for (const int64_t half : {0, 20}) {
          const auto guard = stage < 2 ? run.engine->no_sync() : nullptr;
          run.engine->backward(run.loss(micro + half));
          plain.engine->backward(plain.loss(micro + half));
          if (!guard) continue;
          EXPECT_THAT(error_of([&] { run.engine->step(); }), HasSubstr("outside of no_sync()"));
          EXPECT_THAT(error_of([&] { (void)run.engine->no_sync(); }), HasSubstr("nested"));
        }
        run.engine->step();
        plain.engine->step();
      }
      expect_equal(run.all(), plain.all(), "no_sync");
      EXPECT_EQ(run.engine->counters().micro_steps, 4);
      EXPECT_EQ(run.engine->counters().global_steps, 2);
    }
  });
}

TEST(MicroBatches, AnEarlyBoundaryIsAWindowWhoseOtherPassesWereZero) {
  for (const int world : {1, 2, 3}) {
    at_every_stage(world, [](RankContext& context, int stage) {
      for (const bool bf16 : {false, true}) {
        const SmallOptions options{.stage = stage, .accumulation = 3, .bf16 = bf16};
        SmallRun early(context, options), plain(context, options);
        for (int64_t window = 0; window < 2; ++window) {
          early.engine->set_gradient_accumulation_boundary(false);
          early.train(10 * window);
          early.engine->set_gradient_accumulation_boundary(true);
          EXPECT_TRUE(early.engine->is_gradient_accumulation_boundary());
          early.train(10 * window + 1);
          plain.train(10 * window);
          plain.train(10 * window + 1);
          plain.engine->backward(plain.loss(10 * window + 2) * 0);
          plain.engine->step();
        }
        expect_equal(early.all(), plain.all(), "an early boundary");
        EXPECT_EQ(early.engine->counters().global_steps, 2);
        early.engine->set_gradient_accumulation_boundary(std::nullopt);
        for (int64_t micro = 30; micro < 33; ++micro) {
          early.train(micro);
          plain.train(micro);
        }
        expect_equal(early.all(), plain.all(), "by count again");
      }
    });
  }
}

using Tensors = std::map<std::string, at::Tensor>;

// SmallRun's gradients by torch alone, of one rank's pass; of every fourth, twice as much.
Tensors plain_gradients(const Tensors& weights, int64_t micro, int rank) {
  const auto seed = static_cast<double>(10 * micro + rank);
  const auto input = at::cos(at::arange(8) + seed).view({2, 4});
  const auto hidden = at::tanh(at::linear(input, weights.at("w1"), weights.at("b1")));
  const auto output =
      at::linear(hidden, weights.at("w2"), weights.at("b2")) + weights.at("frozen").detach();
  Tensors gradients;
  for (const char* name : {"w1", "b1", "w2", "b2"})
    gradients[name] = torch::autograd::grad({SmallRun::loss_of(output)}, {weights.at(name)}, {},
                                            /*retain_graph=*/true)[0] *
                      (micro % 4 == 3 ? 2 : 1);
  return gradients;
}

void add(Tensors& sums, const Tensors& terms) {
  for (const auto& [name, term] : terms)
    sums[name] = sums.contains(name) ? sums[name] + term : term;
}

// Stages 0 and 1 add passes, then ranks; 2 and 3 the other way round. Divided by accumulation x
// ranks, a power of two, whatever the number of passes is.
Tensors plain_averages(const SmallRun& run, const std::vector<int64_t>& passes, int stage) {
  Tensors weights, sums, others;
  for (const char* name : {"w1", "b1", "w2", "b2", "frozen"})
    weights[name] = run.engine->full_parameter(name).requires_grad_();
  for (const int64_t micro : passes) {
    auto here = plain_gradients(weights, micro, 0);
    const auto there = plain_gradients(weights, micro, 1);
    stage <= 1 ? add(others, there) : add(here, there);
    add(sums, here);
  }
  add(sums, others);
  for (auto& [name, sum] : sums) sum = sum.view({-1}) / 4;
  return sums;
}

TEST(MicroBatches, PassesThatTheCallerCountsArePlainSums) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallOptions options{.stage = stage, .accumulation = 2};
    SmallRun managed(context, options);
    options.managed = false;
    SmallRun run(context, options);
    int64_t micro = 0, steps = 0;
    for (const int64_t count : {1, 3, 2, 4}) {
      std::vector<int64_t> passes;
      for (int64_t i = 0; i < count; ++i) passes.push_back(micro++);
      const auto want = plain_averages(run, passes, stage);
      std::size_t compared = 0;
      run.engine->on_step([&](const std::vector<LocalShard>& shards) {
        for (const auto& shard : shards) {
          if (!shard.gradient.defined() || shard.begin == shard.end) continue;
          EXPECT_THAT(shard.gradient,
                      HasTheBitsOf(want.at(shard.name).slice(0, shard.begin, shard.end)))
              << shard.name << ", " << count << " passes";
          ++compared;
        }
      });
      for (const int64_t pass : passes) {
        EXPECT_TRUE(run.engine->is_gradient_accumulation_boundary());
        const bool divides = pass % 4 != 3;  // what is not divided weighs as two
        const auto loss = run.loss(pass);
        EXPECT_EQ(run.engine->backward(loss, false, divides).item<float>(),
                  (divides ? loss / 2.0 : loss).item<float>());
        managed.engine->set_gradient_accumulation_boundary(pass == passes.back());
        managed.engine->backward(managed.loss(pass), false, divides);
        managed.engine->step();
      }
      run.engine->step();
      EXPECT_GE(compared, 3U);
      EXPECT_EQ(run.engine->counters().global_steps, ++steps);
      EXPECT_EQ(run.engine->counters().micro_steps, steps);
      expect_equal(run.all(), managed.all(), "the same boundaries, set by hand");
    }
  });
}

// In a managed window of one pass the reduction begins with the pass.
TEST(MicroBatches, NothingLeavesBeforeTheStepWhereTheCallerCounts) {
  for (const bool is_managed : {true, false}) {
    at_every_stage(2, [is_managed](RankContext& context, int stage) {
      if (stage >= 2) return;  // their passes reduce
      const auto communicator =
          std::make_shared<conformance::CountingCommunicator>(context.group());
      SmallRun run(context, {.stage = stage, .managed = is_managed}, communicator);
      communicator->reset();
      run.engine->backward(run.loss(0));
      EXPECT_EQ(communicator->counts().messages > 0, is_managed);
      run.engine->step();
    });
  }
}

TEST(MicroBatches, ABoundaryThatIsSetHoldsWhereTheCallerCounts) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage, .managed = false});
    run.engine->set_gradient_accumulation_boundary(false);
    EXPECT_FALSE(run.engine->is_gradient_accumulation_boundary());
    run.train(0);
    EXPECT_EQ(run.engine->counters().global_steps, 0);
    run.engine->set_gradient_accumulation_boundary(std::nullopt);
    run.train(1);
    EXPECT_EQ(run.engine->counters().global_steps, 1);
    SmallRun once(context, {.stage = stage, .managed = false});
    for (const int64_t micro : {0, 1}) once.engine->backward(once.loss(micro));
    once.engine->step();
    expect_equal(run.all(), once.all(), "the boundary was held back");
  });
}

TEST(MicroBatches, ExactSumsAreThoseOfAManagedWindow) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallOptions options{.stage = stage, .accumulation = 2, .reduction = ReductionOrder::Exact};
    SmallRun managed(context, options);
    options.managed = false;
    SmallRun run(context, options);
    for (int64_t micro = 0; micro < 4; ++micro) {
      managed.train(micro);
      run.engine->backward(run.loss(micro));
      if (micro % 2 == 1) run.engine->step();
    }
    expect_equal(run.all(), managed.all(), "exact sums");
  });
}

TEST(MicroBatches, AnotherBatchSizeGivesTheBitsOfAnEngineThatStartedWithIt) {
  for (const int world : {1, 2, 3}) {
    at_every_stage(world, [](RankContext& context, int stage) {
      SmallRun run(context, {.stage = stage, .accumulation = 2});
      SmallRun three(context, {.stage = stage, .accumulation = 3});
      const int64_t ranks = context.world_size();
      EXPECT_THAT(
          error_of([&] { run.engine->set_train_batch_size(ranks == 1 ? 0 : 3 * ranks + 1); }),
          HasSubstr("expected a multiple of " + std::to_string(ranks)));
      run.engine->set_train_batch_size(3 * ranks);
      EXPECT_EQ(run.engine->config().gradient_accumulation_steps, 3);
      EXPECT_EQ(run.engine->config().train_batch_size, 3 * ranks);
      for (int64_t micro = 0; micro < 6; ++micro) {
        if (micro % 3 != 0) {
          EXPECT_THAT(error_of([&] { run.engine->set_train_batch_size(2 * ranks); }),
                      HasSubstr("expected to be between windows"));
        }
        // What backward returns, and what a pass that is not divided weighs, go by it too.
        const auto loss = run.loss(micro);
        EXPECT_EQ(run.engine->backward(loss, false, micro != 1).item<float>(),
                  (micro != 1 ? loss / 3.0 : loss).item<float>());
        run.engine->step();
        three.engine->backward(three.loss(micro), false, micro != 1);
        three.engine->step();
      }
      expect_equal(run.all(), three.all(), "another batch size");
      EXPECT_EQ(run.engine->counters().global_steps, 2);
    });
  }
}

}  // namespace
}  // namespace equigrad::gradient
