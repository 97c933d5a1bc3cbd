// What throws in a pass or a step, on one rank or all of them: who is told, and what is left.
#include <ATen/core/grad_mode.h>

#include <stdexcept>

#include "conformance/testing/cutting_communicator.hpp"
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

TEST(EngineExceptions, APassThatThrowsLeavesTheWindowAsItWas) {
  at_every_stage(2, [](RankContext& context, int stage) {
    for (const bool bf16 : {false, true}) {
      const SmallOptions options{.stage = stage, .accumulation = 3, .bf16 = bf16};
      SmallRun run(context, options), plain(context, options);
      for (int64_t micro = 0; micro < 6; ++micro) {
        // Autograd runs the younger of two nodes first: the hook throws before the pass has reached
        // a parameter, or when it has reached all but one.
        const bool first = micro % 2 == 0, by_engine = micro % 3 != 2;
        auto loss = first ? run.loss(20) : at::Tensor();
        auto hooked = run["w1"].sum();
        hooked.register_hook([](const at::Tensor&) { throw std::runtime_error("from a hook"); });
        loss = (first ? loss : run.loss(20 + micro)) + hooked;
        try {
          by_engine ? void(run.engine->backward(loss)) : loss.backward();
          ADD_FAILURE() << "expected the hook's exception";
        } catch (const std::exception& error) {
          EXPECT_THAT(error.what(), HasSubstr("from a hook"));
        }
        run.train(micro);
        plain.train(micro);
      }
      expect_equal(run.all(), plain.all(), "after exceptions");
    }
  });
}

TEST(EngineExceptions, AnExceptionOnOneRankIsToldToTheOthersAndThePassCanBeRunAgain) {
  at_every_stage(3, [](RankContext& context, int stage) {
    const SmallOptions options{.stage = stage, .accumulation = 2};
    SmallRun run(context, options), plain(context, options);
    for (int64_t micro = 0; micro < 4; ++micro) {
      const bool throws = context.rank() == 1 && micro != 2;
      auto hooked = run["w1"].sum();
      if (throws) {
        hooked.register_hook([](const at::Tensor&) { throw std::runtime_error("from a hook"); });
      }
      std::string said;
      try {
        run.engine->backward(run.loss(20 + micro) + hooked * 0);
      } catch (const std::exception& error) {
        said = error.what();
      }
      if (throws) {
        EXPECT_THAT(said, HasSubstr("from a hook"));
      } else if (stage >= 2 && micro != 2) {
        EXPECT_THAT(said, HasSubstr("got an exception on rank 1"));
      }
      // Before stage 2 the others have not noticed, and need not: the pass is run again by rank 1.
      const bool again = stage >= 2 || throws || micro == 2;
      if (micro == 2) run.engine->zero_grad();
      if (again) run.engine->backward(run.loss(micro == 2 ? 2 : 20 + micro) + run["w1"].sum() * 0);
      run.engine->step();
      plain.engine->backward(plain.loss(micro == 2 ? 2 : 20 + micro) + plain["w1"].sum() * 0);
      plain.engine->step();
    }
    expect_equal(run.all(), plain.all(), "after exceptions on one rank");
  });
}

// More pieces than are under way at once: nobody may send the rest of them.
TEST(EngineExceptions, ALargeBucketUnderWayIsGivenUpByAllRanks) {
  for (const int stage : {2, 3}) {
    EXPECT_EQ(on_ranks(2,
                       [stage](RankContext& context) {
                         const auto small = at::ones({3}).requires_grad_();
                         const auto large = at::ones({int64_t{10} << 18}).requires_grad_();
                         EngineConfig config;
                         config.train_micro_batch_size_per_gpu = 1;
                         config.train_batch_size = 2;
                         config.zero.stage = stage;
                         config.zero.reduce_bucket_size = 1000;
                         config.communication_timeout_s = 20;
                         ParameterGroup all;
                         all.parameters = {{"small", small, ""}, {"large", large, ""}};
                         const auto engine = initialize({all}, config, context.group());
                         for (const bool throws : {true, false}) {
                           const auto last = small * 2;  // its gradient comes after the large one
                           if (throws && context.rank() == 1) {
                             last.register_hook([](const at::Tensor&) {
                               throw std::runtime_error("from a hook");
                             });
                           }
                           const auto loss = last.sum() + (large * 0.5).sum();
                           if (throws)
                             EXPECT_THROW(engine->backward(loss), std::exception);
                           else
                             engine->backward(loss);
                         }
                         EXPECT_THAT(engine->access().full_gradient("large"),
                                     HasTheBitsOf(at::full({int64_t{10} << 18}, 0.5)));
                         EXPECT_THAT(engine->access().full_gradient("small"),
                                     HasTheBitsOf(at::full({3}, 2.0)));
                       }),
              "")
        << "stage " << stage;
  }
}

TEST(EngineExceptions, AGatherThatFailsIsAnErrorOfTheNextCall) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto communicator =
                           std::make_shared<conformance::CuttingCommunicator>(context.group());
                       SmallRun run(context, {.stage = 3}, communicator),
                           plain(context, {.stage = 3});
                       const auto cut_loss = [&] {
                         communicator->cut = true;
                         const auto loss = run.loss(0);
                         communicator->cut = false;
                         return loss;
                       };
                       const std::string cut = "[test] communication is cut";
                       EXPECT_EQ(error_of([&] { run.engine->backward(cut_loss()); }), cut);
                       // A type of its own, on whatever way it comes.
                       EXPECT_THROW(run.engine->backward(cut_loss()), comm::CommunicationError);
                       EXPECT_THROW(cut_loss().backward(), comm::CommunicationError);
                       EXPECT_EQ(error_of([&] {
                                   cut_loss().backward();
                                   run.engine->step();
                                 }),
                                 cut);
                       run.engine->zero_grad();
                       run.train(0);
                       plain.train(0);
                       expect_equal(run.all(), plain.all(), "after failed gathers");
                     }),
            "");
}

struct Network {
  SmallRun& run;
  at::Tensor forward(int64_t micro_step) { return run.output(micro_step); }
};

TEST(EngineExceptions, AGatherThatFailsInTheEnginesForwardIsAnErrorThere) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto communicator =
                           std::make_shared<conformance::CuttingCommunicator>(context.group());
                       SmallRun run(context, {.stage = 3}, communicator),
                           plain(context, {.stage = 3});
                       Network network{run};
                       const at::Tensor before = run.engine->forward(network, 0);
                       for (int time = 0; time < 2; ++time) {
                         communicator->cut = true;
                         EXPECT_EQ(error_of([&] {
                                     const at::NoGradGuard evaluation;
                                     run.engine->forward(network, 0);
                                   }),
                                   "[test] communication is cut");
                         communicator->cut = false;
                         EXPECT_THAT(run.engine->forward(network, 0), HasTheBitsOf(before));
                       }
                       run.train(0);
                       plain.train(0);
                       expect_equal(run.all(), plain.all(), "after failed gathers");
                     }),
            "");
}

// Its gathers arrive, on the other ranks; here they fail where they are waited for.
class LateFailure final : public conformance::faults::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  comm::PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    auto pending = ForwardingCommunicator::all_gather(output, input);
    if (!fails || input.scalar_type() == at::kLong) return pending;
    ++failed;
    return std::make_unique<conformance::faults::Altered>(std::move(pending), input, [] {
      throw comm::CommunicationError("test", "it has not arrived", 1);
    });
  }

  bool fails = false;
  int failed = 0;
};

// Rank 1 reads a page when rank 0 is at the end of its pass, and serves: what comes with that is
// looked at when the pass has ended everywhere.
TEST(EngineExceptions, WhatFailsAfterAPassCountsIsAnErrorOfTheNextCall) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 const auto communicator = std::make_shared<LateFailure>(context.group());
                 SmallRun run(context, {.stage = 3}, communicator), plain(context, {.stage = 3});
                 // The oldest node of the graph runs last.
                 const auto oldest = at::ones({1}).requires_grad_() * 2;
                 oldest.register_hook([&](const at::Tensor&) {
                   const at::NoGradGuard no_grad;
                   for (int time = 0; time < 7; ++time) run["b1"].sum();  // w2 goes
                   communicator->fails = context.rank() == 0;
                   if (context.rank() == 1) run["w2"].sum();
                 });
                 EXPECT_EQ(error_of([&] { run.engine->backward(run.loss(0) + 0 * oldest.sum()); }),
                           "");
                 communicator->fails = false;
                 EXPECT_EQ(communicator->failed > 0, context.rank() == 0);
                 EXPECT_THAT(error_of([&] { run.engine->step(); }),
                             HasSubstr(context.rank() == 0 ? "it has not arrived"
                                                           : "got an exception on rank 0"));
                 run.engine->step();  // the pass has counted
                 plain.train(0);
                 expect_equal(run.all(), plain.all(), "after the failure");
               }),
      "");
}

TEST(EngineExceptions, ReadingAnEngineThatARankHasDestroyedIsAnErrorOnAllAtOnce) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       SmallRun one(context, {.stage = 3}), two(context, {.stage = 3}),
                           plain(context, {.stage = 3});
                       if (context.rank() == 0) one.engine.reset();
                       const auto said = error_of([&] {
                         context.rank() == 0 ? two.train(0)
                                             : void(one.engine->full_parameter("w1"));
                       });
                       EXPECT_THAT(said, AllOf(HasSubstr("got rank 0, which has destroyed it"),
                                               HasSubstr("while rank 1 reads its parameters")));
                       two.engine->zero_grad();
                       two.train(1);
                       plain.train(1);
                       expect_equal(two.all(), plain.all(), "after an engine was destroyed");
                     }),
            "");
}

TEST(EngineExceptions, AnObserverThatThrowsOnOneRankStopsTheStepOnAll) {
  at_every_stage(3, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage}), plain(context, {.stage = stage});
    const auto before = run.all();
    if (context.rank() == 1) {
      run.engine->on_step([](const std::vector<LocalShard>&) { throw Error("test", "observed"); });
    }
    run.engine->backward(run.loss(0));
    EXPECT_THAT(error_of([&] { run.engine->step(); }),
                HasSubstr(context.rank() == 1 ? "observed" : "got an exception on rank 1"));
    expect_equal(run.all(), before, "nothing was written");
    run.engine->on_step({});
    run.train(1);
    plain.train(1);
    expect_equal(run.all(), plain.all(), "after the observer threw");
  });
}

TEST(EngineExceptions, ALossThatOneRankCannotUseIsToldToTheOthers) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage}), plain(context, {.stage = stage});
    const auto loss = context.rank() == 0 ? at::zeros({}) : run.loss(0);
    const auto said = error_of([&] { run.engine->backward(loss); });
    if (context.rank() == 0) EXPECT_THAT(said, HasSubstr("requires no gradient"));
    if (context.rank() == 1 && stage >= 2) EXPECT_THAT(said, HasSubstr("exception on rank 0"));
    run.engine->zero_grad();
    run.train(1);
    plain.train(1);
    expect_equal(run.all(), plain.all(), "after a loss that was refused");
  });
}

TEST(EngineExceptions, AnExceptionUnderTwoEnginesIsToldOnceAndBothWorkOn) {
  EXPECT_EQ(
      on_ranks(
          2,
          [](RankContext& context) {
            for (const int stage : {1, 2, 3}) {
              SmallRun one(context, {.stage = stage}), two(context, {.stage = 2});
              SmallRun plain_one(context, {.stage = stage}), plain_two(context, {.stage = 2});
              for (int64_t micro = 0; micro < 3; ++micro) {
                // The younger term runs first: one engine has gradients, the other none.
                auto late = one["w1"].sum();
                if (context.rank() == 0) {
                  late.register_hook([](const at::Tensor&) { throw Error("test", "from a hook"); });
                }
                const auto loss = late + two.loss(micro);
                EXPECT_THAT(error_of([&] { loss.backward(); }),
                            HasSubstr(context.rank() == 0 ? "from a hook" : "exception on rank 0"));
                (one.loss(micro) + two.loss(micro)).backward();
                (plain_one.loss(micro) + plain_two.loss(micro)).backward();
                for (auto* run : {&one, &two, &plain_one, &plain_two}) run->engine->step();
              }
              expect_equal(one.all(), plain_one.all(), "the first engine");
              expect_equal(two.all(), plain_two.all(), "the second engine");
            }
          }),
      "");
}

TEST(EngineExceptions, ASparseGradientIsRefusedOnEveryRankAndTheEngineGoesOn) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage}), plain(context, {.stage = stage});
    const auto index = at::tensor({1, 2}, at::kLong);
    const auto sparse_loss = [&] {
      return at::embedding(run["w1"], index, -1, false, /*sparse=*/true).sum() + run["b1"].sum();
    };
    const auto is_refusal = AllOf(HasSubstr("[backward] expected a dense gradient"),
                                  HasSubstr("\"w1\""), HasSubstr("sparse(false)"));
    EXPECT_THAT(error_of([&] { run.engine->backward(sparse_loss()); }), is_refusal);
    EXPECT_THAT(error_of([&] { sparse_loss().backward(); }), is_refusal);
    for (int64_t micro = 0; micro < 2; ++micro) {
      run.train(micro);
      plain.train(micro);
    }
    expect_equal(run.all(), plain.all(), "after the refusals");
  });
}

}  // namespace
}  // namespace equigrad
