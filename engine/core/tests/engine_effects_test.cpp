// What the engine leaves alone, what it holds, and what other engines do beside it.

#include "conformance/testing/small_run.hpp"
#include "engine/engine.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::error_of;
using conformance::expect_equal;
using conformance::SmallOptions;
using conformance::SmallRun;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using memory::Category;
using testing::AllOf;
using testing::HasSubstr;

TEST(EngineEffects, InFp32AGradientThatIsNotFiniteIsAnErrorThatNamesTheParameter) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage}), plain(context, {.stage = stage});
    run.train(0);
    plain.train(0);
    const auto before = run.all();
    // On one rank only, and all of them hear of it.
    run.engine->backward(run.loss(1) + run["b2"][1] * (context.rank() == 1 ? INFINITY : 1.0F));
    EXPECT_THAT(error_of([&] { run.engine->step(); }),
                AllOf(HasSubstr("expected finite gradients, got 1 elements"), HasSubstr("\"b2\"")));
    expect_equal(run.all(), before, "after the error");
    EXPECT_EQ(run.engine->counters().global_steps, 1);
    run.train(2);
    plain.train(2);
    expect_equal(run.all(), plain.all(), "the window began anew");
  });
}

TEST(EngineEffects, InBf16AGradientThatIsNotFiniteIsSkippedAndCounted) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage, .bf16 = true});
    SmallRun plain(context, {.stage = stage, .bf16 = true});
    run.train(0);
    plain.train(0);
    const auto before = run.all();
    run.engine->backward(run.loss(1) + run["b2"][1] * (context.rank() == 1 ? INFINITY : 1.0F));
    run.engine->step();
    expect_equal(run.all(), before, "the skipped step");
    EXPECT_EQ(run.engine->counters().global_steps, 2);
    EXPECT_EQ(run.engine->counters().skipped_steps, 1);
    run.train(2);
    plain.train(2);
    expect_equal(run.all(), plain.all(), "after the skipped step");
    EXPECT_EQ(run.engine->counters().skipped_steps, 1);
  });
}

TEST(EngineEffects, ParametersThatNobodyUsesAndFrozenOnesKeepEveryBit) {
  at_every_stage(2, [](RankContext& context, int stage) {
    for (const bool bf16 : {false, true}) {
      SmallRun run(context, {.stage = stage, .bf16 = bf16});
      const auto before = run.all();
      for (int64_t micro = 0; micro < 3; ++micro) run.train(micro);
      const auto after = run.all();
      for (const auto& [name, tensor] : before) {
        if (name.rfind("unused", 0) != 0 && name != "frozen") continue;
        EXPECT_THAT(after.at(name), HasTheBitsOf(tensor)) << name;
      }
      EXPECT_FALSE(run["frozen"].requires_grad());
      EXPECT_EQ(run["empty"].sizes(), (std::vector<int64_t>{0}));
    }
  });
}

TEST(EngineEffects, AParameterOfAnEarlierWindowIsNotOfThisOne) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage});
    run.engine->backward(run.loss(0) + run["unused"].sum());
    run.engine->step();
    const auto before = run.all();
    run.train(1);
    const auto after = run.all();
    for (const auto& [name, tensor] : before) {
      if (name.rfind("unused", 0) != 0) continue;
      EXPECT_THAT(after.at(name), HasTheBitsOf(tensor)) << name;
    }
  });
}

TEST(EngineEffects, AParameterThatOneRankUsesIsUpdatedOnAll) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage});
    auto loss = run.loss(0);
    if (context.rank() == 1) loss = loss + run["unused"].sum();
    run.engine->backward(loss);
    run.engine->step();
    // AdamW's first step is lr * g / (|g| + ..): the gradient is 1/2, from one rank of two.
    const float g = 0.5F;
    const float m = g * static_cast<float>(1 - 0.9), v = (g * g) * static_cast<float>(1 - 0.999);
    const float root = std::sqrt(v) * static_cast<float>(1 / std::sqrt(1 - 0.999));
    const float step = (m / (root + 1e-8F)) * static_cast<float>(0.01 / (1 - 0.9));
    const auto decayed = at::sin(at::arange(4) + 4.0) * static_cast<float>(1 - 0.01 * 0.1);
    EXPECT_THAT(run.engine->full_parameter("unused"), HasTheBitsOf(decayed - step));
  });
}

TEST(EngineEffects, RanksThatRunDifferentNumbersOfPassesAreAllTold) {
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_EQ(on_ranks(2,
                       [stage](RankContext& context) {
                         SmallRun run(context, {.stage = stage});
                         const auto said = error_of([&] {
                           run.engine->backward(run.loss(0));
                           if (context.rank() == 0) run.engine->backward(run.loss(1));
                           run.engine->step();
                         });
                         EXPECT_THAT(said, stage >= 2
                                               ? HasSubstr("expected every rank at the same")
                                               : HasSubstr("rank 1 at step() of engine 0 after 1 "
                                                           "backward passes"));
                       }),
              "");
  }
}

// What a rank keeps of the trainable parameters: of each, ceil(numel / W) elements.
int64_t shard_numel(int world) {
  int64_t sum = 0;
  for (const int64_t numel : {20, 5, 15, 3, 4}) sum += (numel + world - 1) / world;
  return sum;
}

TEST(EngineEffects, TheLedgerHoldsWhatTheStageSays) {
  for (const int world : {1, 2, 3}) {
    at_every_stage(world, [](RankContext& context, int stage) {
      const int64_t whole = shard_numel(1), frozen = 3;
      const int64_t shard = stage == 0 ? whole : shard_numel(context.world_size());
      for (const bool bf16 : {false, true}) {
        SmallRun run(context, {.stage = stage, .accumulation = 2, .bf16 = bf16});
        const auto& ledger = run.engine->ledger();
        const int64_t element = bf16 ? 2 : 4;
        int64_t parameters = (whole + frozen) * element;
        if (stage == 3) {
          // In fp32 a shard of a parameter is its master.
          const int64_t frozen_shard = (frozen + context.world_size() - 1) / context.world_size();
          parameters = (bf16 ? shard : 0) * element + frozen_shard * element;
        }
        const auto expect_at_rest = [&](const std::string& when) {
          EXPECT_EQ(ledger.bytes(Category::Parameters), parameters) << when;
          EXPECT_EQ(ledger.bytes(Category::MasterWeights), shard * 4) << when;
          EXPECT_EQ(ledger.bytes(Category::OptimizerState), shard * 8) << when;
          EXPECT_EQ(ledger.bytes(Category::Gathered), 0) << when;
        };
        run.train(0);
        expect_at_rest("inside the window");
        // The sums over ranks from stage 2 on, before it what this rank has for each bucket.
        const bool reduced = stage >= 2;
        EXPECT_EQ(ledger.bytes(Category::Gradients), reduced ? shard * element : 0);
        EXPECT_EQ(ledger.bytes(Category::Buckets) > 0, !reduced);
        run.train(1);
        expect_at_rest("after the boundary");
        EXPECT_EQ(ledger.bytes(Category::Gradients), 0);
        EXPECT_EQ(ledger.bytes(Category::Buckets), 0);
        EXPECT_EQ(ledger.total_bytes(), parameters + shard * 12);
        EXPECT_GE(ledger.total_peak_bytes(), ledger.total_bytes() + shard * 4);
      }
    });
  }
}

TEST(EngineEffects, TwoEnginesOfOneProcessDoNotMeet) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun alone(context, {.stage = stage});
    for (int64_t micro = 0; micro < 3; ++micro) alone.train(micro);
    const auto want = alone.all();
    SmallRun one(context, {.stage = stage}), two(context, {.stage = 3 - stage, .accumulation = 2});
    for (int64_t micro = 0; micro < 3; ++micro) {
      const auto loss = one.loss(micro);
      two.train(micro + 7);
      one.engine->backward(loss);
      two.engine->backward(two.loss(micro));
      one.engine->step();
    }
    expect_equal(one.all(), want, "beside another engine");
  });
}

TEST(EngineEffects, ParametersThatWentWithAStage3EngineAreRefused) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage});
    run.engine.reset();
    const auto again = [&] {
      run.engine = initialize({ParameterGroup{run.parameters, {}, {}}},
                              conformance::config_of({}, context.world_size()), run.group);
    };
    EXPECT_THAT(error_of(again),
                stage == 3 ? HasSubstr("expected parameter \"w1\" to hold data") : HasSubstr(""));
    if (stage < 3) run.train(0);
  });
}

}  // namespace
}  // namespace equigrad
