// The engine's calls: four ways into a backward pass, the accumulation window, and what each call
// refuses.
#include <torch/csrc/autograd/autograd.h>

#include "conformance/testing/counting_communicator.hpp"
#include "conformance/testing/small_run.hpp"
#include "engine/engine.hpp"

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
using testing::AllOf;
using testing::HasSubstr;

// The gradient of the loss with respect to a network's output, for output.backward(gradient).
at::Tensor gradient_of_output(const at::Tensor& output) {
  const auto leaf = output.detach().requires_grad_();
  return torch::autograd::grad({SmallRun::loss_of(leaf)}, {leaf})[0];
}

TEST(Engine, FourWaysIntoABackwardPassGiveTheSameBits) {
  at_every_stage(2, [](RankContext& context, int stage) {
    for (const bool bf16 : {false, true}) {
      const SmallOptions options{.stage = stage, .accumulation = 3, .bf16 = bf16};
      SmallRun by_engine(context, options), by_scale(context, options), by_loss(context, options),
          by_output(context, options);
      for (int64_t micro = 0; micro < 6; ++micro) {
        by_engine.engine->backward(by_engine.loss(micro));
        by_scale.engine->scale(by_scale.loss(micro)).backward();
        by_loss.loss(micro).backward();
        const auto output = by_output.output(micro);
        output.backward(gradient_of_output(output));
        for (auto* run : {&by_engine, &by_scale, &by_loss, &by_output}) run->engine->step();
      }
      const auto want = by_engine.all();
      expect_equal(by_scale.all(), want, "scale(loss).backward()");
      expect_equal(by_loss.all(), want, "loss.backward()");
      expect_equal(by_output.all(), want, "output.backward(gradient)");
      EXPECT_THAT(
          want.at("w1"),
          testing::Not(HasTheBitsOf(SmallRun(context, options).engine->full_parameter("w1"))));
    }
  });
}

TEST(Engine, BackwardReturnsTheLossItsCallerWouldLog) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       SmallRun run(context, {.accumulation = 4});
                       const auto loss = run.loss(0);
                       const auto divided = run.engine->backward(loss, /*retain_graph=*/true);
                       EXPECT_EQ(divided.item<float>(), loss.item<float>() / 4);
                       EXPECT_EQ(run.engine->backward(loss, false, false).item<float>(),
                                 loss.item<float>());
                     }),
            "");
}

TEST(Engine, APassThatIsNotDividedWeighsAsAWholeWindow) {
  at_every_stage(2, [](RankContext& context, int stage) {
    const SmallOptions options{.stage = stage, .accumulation = 2};
    SmallRun weighed(context, options), doubled(context, options);
    for (int64_t micro = 0; micro < 4; ++micro) {
      // For one call only, and by a power of two: exact.
      const bool undivided = micro % 2 == 0;
      weighed.engine->backward(weighed.loss(micro), false, !undivided);
      doubled.engine->backward(doubled.loss(micro) * (undivided ? 2 : 1));
      weighed.engine->step();
      doubled.engine->step();
    }
    expect_equal(weighed.all(), doubled.all(), "scale_wrt_gas false");
  });
}

TEST(Engine, StepActsAtTheBoundaryOnly) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage, .accumulation = 3});
    const auto before = run.all();
    EXPECT_EQ(run.engine->get_global_grad_norm(), std::nullopt);
    for (int64_t micro = 0; micro < 2; ++micro) {
      EXPECT_FALSE(run.engine->is_gradient_accumulation_boundary());
      run.train(micro);
      expect_equal(run.all(), before, "inside the window");
      EXPECT_EQ(run.engine->counters().global_steps, 0);
    }
    EXPECT_TRUE(run.engine->is_gradient_accumulation_boundary());
    run.train(2);
    EXPECT_FALSE(run.engine->is_gradient_accumulation_boundary());
    EXPECT_EQ(run.engine->counters().micro_steps, 3);
    EXPECT_EQ(run.engine->counters().global_steps, 1);
    EXPECT_GT(run.engine->get_global_grad_norm().value(), 0);
    EXPECT_THAT(run.engine->full_parameter("w1"), testing::Not(HasTheBitsOf(before.at("w1"))));
  });
}

TEST(Engine, SeveralPassesOfOneMicroBatchAddUp) {
  at_every_stage(2, [](RankContext& context, int stage) {
    // Two losses of one micro-batch: what a sum of them gives, where every sum is exact.
    const SmallOptions options{.stage = stage};
    SmallRun twice(context, options), once(context, options);
    const auto loss = twice.loss(0);
    twice.engine->backward(loss, /*retain_graph=*/true);
    twice.engine->backward(loss);
    twice.engine->step();
    once.engine->backward(once.loss(0) * 2);
    once.engine->step();
    expect_equal(twice.all(), once.all(), "two passes");
  });
}

// As an engine that had this length from the start: the same bits, and as many messages.
TEST(Engine, AnotherNumberOfAccumulationStepsIsThatOfTheNextWindow) {
  at_every_stage(2, [](RankContext& context, int stage) {
    for (const auto reduction : {ReductionOrder::Pinned, ReductionOrder::Exact}) {
      for (const auto& [before, after] : {std::pair<int64_t, int64_t>{1, 2}, {3, 1}}) {
        SmallOptions options{.stage = stage, .accumulation = before, .reduction = reduction};
        const auto communicator =
            std::make_shared<conformance::CountingCommunicator>(context.group());
        SmallRun run(context, options, communicator);
        options.accumulation = after;
        const auto plain_communicator =
            std::make_shared<conformance::CountingCommunicator>(context.group());
        SmallRun plain(context, options, plain_communicator);
        run.engine->set_train_batch_size(after * context.world_size());
        communicator->reset();
        plain_communicator->reset();
        for (int64_t micro = 0; micro < 4; ++micro) {
          run.train(micro);
          plain.train(micro);
        }
        // In the pinned order a window of one pass has smaller buckets, which are made once.
        if (reduction == ReductionOrder::Exact) {
          EXPECT_EQ(communicator->counts().messages, plain_communicator->counts().messages)
              << before << " to " << after;
        }
        EXPECT_EQ(run.engine->counters().global_steps, 4 / after);
        expect_equal(run.all(), plain.all(), "after another batch size");
      }
    }
  });
}

TEST(Engine, ZeroGradCancelsTheWindow) {
  at_every_stage(2, [](RankContext& context, int stage) {
    const SmallOptions options{.stage = stage};
    SmallRun cancelled(context, options), plain(context, options);
    for (int64_t micro = 0; micro < 3; ++micro) {
      cancelled.engine->backward(cancelled.loss(100 + micro));
      cancelled.engine->zero_grad();
      cancelled.train(micro);
      plain.train(micro);
    }
    expect_equal(cancelled.all(), plain.all(), "zero_grad");
    EXPECT_EQ(cancelled.engine->get_global_grad_norm(), plain.engine->get_global_grad_norm());
  });
}

TEST(Engine, StepWithoutABackwardIsAnErrorAndChangesNothing) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun refused(context, {.stage = stage}), plain(context, {.stage = stage});
    for (int64_t micro = 0; micro < 2; ++micro) {
      EXPECT_THAT(error_of([&] { refused.engine->step(); }),
                  HasSubstr("[engine.step] expected a backward pass since the last step(), got "
                            "none"));
      EXPECT_EQ(refused.engine->counters().micro_steps, micro);
      refused.train(micro);
      plain.train(micro);
    }
    expect_equal(refused.all(), plain.all(), "after a refused step");
  });
}

TEST(Engine, ALossThatIsNoScalarOrHasNoGraphIsRefused) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       SmallRun run(context, {}), plain(context, {});
                       EXPECT_THAT(error_of([&] { run.engine->backward(run.output(0)); }),
                                   AllOf(HasSubstr("[engine.backward]"), HasSubstr("shape [2, 3]"),
                                         HasSubstr("output.backward(gradient)")));
                       EXPECT_THAT(error_of([&] { run.engine->backward({}); }),
                                   HasSubstr("an undefined tensor"));
                       EXPECT_THAT(error_of([&] { run.engine->backward(at::zeros({})); }),
                                   HasSubstr("requires no gradient"));
                       EXPECT_THAT(error_of([&] { run.engine->scale(at::zeros({2})); }),
                                   HasSubstr("[engine.scale]"));
                       run.train(0);
                       plain.train(0);
                       expect_equal(run.all(), plain.all(), "after refused losses");
                     }),
            "");
}

TEST(Engine, ClippingMultipliesByTheThresholdOverTheNorm) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage, .clipping = 1e-3});
    SmallRun free(context, {.stage = stage}), loose(context, {.stage = stage, .clipping = 1e6});
    std::map<std::string, at::Tensor> clipped, whole;
    const auto keep = [](std::map<std::string, at::Tensor>& into) {
      return [&into](const std::vector<LocalShard>& shards) {
        for (const auto& shard : shards) {
          if (shard.gradient.defined()) into[shard.name] = shard.gradient.clone();
        }
      };
    };
    run.engine->on_step(keep(clipped));
    free.engine->on_step(keep(whole));
    for (auto* each : {&run, &free, &loose}) each->train(0);
    const double norm = free.engine->get_global_grad_norm().value();
    EXPECT_EQ(run.engine->get_global_grad_norm(), norm) << "the norm before clipping";
    ASSERT_EQ(whole.size(), 4U);
    EXPECT_EQ(whole.count("unused"), 0U);
    for (const auto& [name, gradient] : whole) {
      if (gradient.numel() == 0) continue;
      EXPECT_THAT(clipped.at(name), HasTheBitsOf(gradient * (1e-3 / (norm + 1e-6)))) << name;
    }
    expect_equal(loose.all(), free.all(), "below the threshold");
  });
}

TEST(Engine, AFullParameterIsACopyAndItsNameIsChecked) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage});
    const auto want = at::sin(at::arange(20)).view({5, 4});
    run.engine->full_parameter("w1").zero_();
    EXPECT_THAT(run.engine->full_parameter("w1"), HasTheBitsOf(want));
    EXPECT_EQ(run.engine->full_parameter("empty").numel(), 0);
    EXPECT_THAT(error_of([&] { run.engine->full_parameter("w11"); }), HasSubstr("w1"));
  });
}

// Rank 0 used w2 last and has its page, rank 1 has given it back; it must be served all the same,
// before a collective of the caller's own.
TEST(Engine, AFullParameterIsReadWhereOneRankAloneHasItsPage) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       SmallRun run(context, {.stage = 3, .max_live = 20});
                       const auto want = SmallRun(context, {.stage = 0})["w2"].detach().clone();
                       const auto first = at::mul(run[run.rank == 0 ? "w1" : "w2"], 2);
                       const auto last = at::mul(run[run.rank == 0 ? "w2" : "w1"], 2);
                       EXPECT_THAT(run.engine->full_parameter("w2"), HasTheBitsOf(want));
                       const auto ranks = at::ones({1});
                       run.group->all_reduce_sum(ranks)->wait();
                       EXPECT_EQ(ranks.item<float>(), 2);
                       run.engine->backward(run.loss(0));
                       run.engine->step();
                     }),
            "");
}

TEST(Engine, LocalShardsCoverEveryTrainableParameterOnce) {
  at_every_stage(3, [](RankContext& context, int stage) {
    const SmallRun run(context, {.stage = stage, .momentum = true});
    const auto shards = run.engine->local_shards();
    ASSERT_EQ(shards.size(), 5U);
    for (const auto& shard : shards) {
      const int64_t numel = run[shard.name].numel();
      const int64_t slice = (numel + 2) / 3;
      const auto begin = stage == 0 ? 0 : std::min(numel, context.rank() * slice);
      const auto end = stage == 0 ? numel : std::min(numel, begin + slice);
      EXPECT_EQ(shard.begin, begin) << shard.name;
      EXPECT_EQ(shard.end, end) << shard.name;
      EXPECT_FALSE(shard.gradient.defined());
      EXPECT_EQ(shard.state.at("momentum_buffer").numel(), end - begin);
      const auto whole = run.engine->full_parameter(shard.name).view({-1});  // collective
      if (end == begin) continue;
      EXPECT_THAT(shard.master, HasTheBitsOf(whole.slice(0, begin, end)));
    }
  });
}

}  // namespace
}  // namespace equigrad
