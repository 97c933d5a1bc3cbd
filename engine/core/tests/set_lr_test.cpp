// set_lr: the rate of the next update, beside a scheduler and without, and what it refuses.
#include <cmath>
#include <limits>

#include "conformance/testing/small_run.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::error_of;
using conformance::expect_equal;
using conformance::SmallOptions;
using conformance::SmallRun;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::HasSubstr;
using Rates = std::vector<double>;

// SmallRun with groups of its own: the first parameters of the list, and the rest.
std::unique_ptr<Engine> in_two_groups(SmallRun& run, const SmallOptions& options, Rates lr) {
  run.engine.reset();
  for (auto& parameter : run.parameters) {
    const auto was = parameter.tensor;
    parameter.tensor = at::sin(at::arange(was.numel()) + 1.0).view(was.sizes().vec());
    parameter.tensor.requires_grad_(was.requires_grad());
  }
  const auto middle = run.parameters.begin() + 2;
  return initialize({ParameterGroup{{run.parameters.begin(), middle}, lr[0], {}},
                     ParameterGroup{{middle, run.parameters.end()}, lr[1], {}}},
                    conformance::config_of(options, 2), run.group);
}

TEST(SetLr, TheNextUpdatesUseIt) {
  at_every_stage(2, [](RankContext& context, int stage) {
    for (const bool momentum : {false, true}) {
      const SmallOptions options{.stage = stage, .momentum = momentum};
      SmallRun set(context, options), made(context, options);
      set.engine = in_two_groups(set, options, {0.5, 0.25});
      made.engine = in_two_groups(made, options, {0.125, 0.0});
      set.engine->set_lr({0.125, 0.0});
      EXPECT_EQ(set.engine->get_lr(), (Rates{0.125, 0.0}));
      for (const int64_t micro : {0, 1}) {
        set.train(micro);
        made.train(micro);
      }
      expect_equal(set.all(), made.all(), "set before the first update");
      set.engine->set_lr(0.0625);
      made.engine->set_lr({0.0625, 0.0625});
      EXPECT_EQ(set.engine->get_lr(), (Rates{0.0625, 0.0625}));
      // Also within a window, after its pass.
      set.engine->backward(set.loss(2));
      set.engine->set_lr(0.75);
      set.engine->step();
      made.engine->set_lr(0.75);
      made.train(2);
      expect_equal(set.all(), made.all(), "set for all groups");
    }
  });
}

SchedulerConfig warmup() {
  SchedulerConfig scheduler;
  scheduler.warmup_min_lr = {0.25};
  scheduler.warmup_max_lr = {1.25};
  scheduler.warmup_num_steps = 4;
  scheduler.warmup_type = SchedulerConfig::WarmupType::Linear;
  return scheduler;
}

TEST(SetLr, ASchedulersNextStepOverridesIt) {
  at_every_stage(2, [](RankContext& context, int stage) {
    const SmallOptions options{.stage = stage, .bf16 = true, .scheduler = warmup()};
    SmallRun run(context, options), plain(context, options);
    for (const int64_t micro : {0, 1}) {
      run.train(micro);
      plain.train(micro);
    }
    EXPECT_EQ(run.engine->get_lr(), Rates{0.5});
    run.engine->set_lr(0.0);  // weights stand still, their states do not
    const auto before = run.engine->full_parameter("w1");
    const double bad = context.rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0;
    run.engine->backward(run.loss(2) * bad);
    run.engine->step();
    EXPECT_FALSE(run.engine->was_step_applied());
    EXPECT_EQ(run.engine->get_lr(), Rates{0.0}) << "the scheduler takes no step";
    run.train(2);
    plain.train(2);
    EXPECT_THAT(run.engine->full_parameter("w1"), conformance::oracle::HasTheBitsOf(before));
    EXPECT_EQ(run.engine->get_lr(), Rates{0.75});
    EXPECT_EQ(plain.engine->get_lr(), Rates{0.75});
    run.engine->access().set_full_master("w1", plain.engine->access().full_master("w1"));
    for (const char* name : {"b1", "w2", "b2"})
      run.engine->access().set_full_master(name, plain.engine->access().full_master(name));
    run.train(3);
    plain.train(3);
    expect_equal(run.all(), plain.all(), "one update apart, and that was set right");
  });
}

TEST(SetLr, WhatIsNoRateIsRefusedAndChangesNothing) {
  at_every_stage(2, [](RankContext& context, int stage) {
    const SmallOptions options{.stage = stage};
    SmallRun run(context, options), plain(context, options);
    run.train(0);
    plain.train(0);
    auto& engine = *run.engine;
    for (const double bad : {-1e-9, std::nan(""), std::numeric_limits<double>::infinity(), 1e39})
      EXPECT_THAT(error_of([&] { engine.set_lr(bad); }),
                  HasSubstr("[engine.set_lr] expected a rate of 0 or more"));
    for (const Rates& bad : {Rates{}, Rates{0.1, 0.1}})
      EXPECT_THAT(error_of([&] { engine.set_lr(bad); }),
                  HasSubstr("expected 1 rates, one for each parameter group, got " +
                            std::to_string(bad.size())));
    EXPECT_THAT(error_of([&] { engine.set_lr(0.5 + 0.25 * context.rank()); }),
                HasSubstr("expected the same values on every rank, got others on some"));
    EXPECT_THAT(error_of([&] { engine.set_lr(context.rank() == 0 ? 0.5 : -1); }),
                HasSubstr(context.rank() == 0 ? "got refused ones on some" : "0 or more"));
    EXPECT_EQ(engine.get_lr(), plain.engine->get_lr());
    run.train(1);
    plain.train(1);
    expect_equal(run.all(), plain.all(), "after refused rates");
  });
}

TEST(SetLr, HyperParametersOfTheNextUpdatesAreThoseThatAreSet) {
  at_every_stage(2, [](RankContext& context, int stage) {
    for (const bool momentum : {false, true}) {
      const SmallOptions options{.stage = stage, .momentum = momentum};
      SmallRun set(context, options), made(context, options);
      auto config = conformance::config_of(options, 2);
      auto& optimizer = config.optimizer;
      optimizer.weight_decay = 0.125;
      optimizer.beta1 = 0.5;
      optimizer.beta2 = 0.75;
      optimizer.eps = 0.25;
      if (momentum) optimizer.momentum = 0.5;
      if (momentum) optimizer.dampening = 0.25;
      made.engine.reset();
      for (auto& parameter : made.parameters)
        if (parameter.name != "empty")
          parameter.tensor = set.engine->full_parameter(parameter.name)
                                 .requires_grad_(parameter.tensor.requires_grad());
      made.engine = initialize({ParameterGroup{made.parameters, {}, {}}}, config, made.group);
      ASSERT_EQ(set.engine->hyper_parameters().size(), 1);
      EXPECT_NE(set.engine->hyper_parameters().front(), optimizer);
      set.engine->set_hyper_parameters({optimizer});
      EXPECT_EQ(set.engine->hyper_parameters(), std::vector{optimizer});
      for (const int64_t micro : {0, 1, 2}) {
        set.train(micro);
        made.train(micro);
      }
      expect_equal(set.all(), made.all(), "set before the first update");
    }
  });
}

TEST(SetLr, HyperParametersOfAnotherOptimizerAreRefusedAndChangeNothing) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage, .momentum = true});
    const auto before = run.engine->hyper_parameters();
    const auto refused = [&](auto change) {
      auto all = before;
      change(all);
      return error_of([&] { run.engine->set_hyper_parameters(all); });
    };
    using All = std::vector<OptimizerConfig>;
    EXPECT_THAT(refused([](All& all) { all.push_back(all[0]); }),
                HasSubstr("expected 1 groups, got 2"));
    EXPECT_THAT(refused([](All& all) { all[0].kind = OptimizerConfig::Kind::Adam; }),
                HasSubstr("expected an optimizer of the same kind"));
    EXPECT_THAT(refused([](All& all) { all[0].momentum = 0; }), HasSubstr("loses its momentum"));
    EXPECT_THAT(refused([](All& all) { all[0].weight_decay = -1; }), HasSubstr("weight_decay"));
    EXPECT_THAT(refused([&](All& all) { all[0].weight_decay = 0.5 * context.rank(); }),
                HasSubstr("expected the same values on every rank"));
    EXPECT_EQ(run.engine->hyper_parameters(), before);
  });
}

TEST(SetLr, EveryHyperParameterIsTheSameOnEveryRank) {
  using Field = double OptimizerConfig::*;
  const std::vector<Field> of_sgd{&OptimizerConfig::lr, &OptimizerConfig::weight_decay,
                                  &OptimizerConfig::momentum, &OptimizerConfig::dampening};
  const std::vector<Field> of_adam{&OptimizerConfig::lr, &OptimizerConfig::weight_decay,
                                   &OptimizerConfig::beta1, &OptimizerConfig::beta2,
                                   &OptimizerConfig::eps};
  EXPECT_EQ(on_ranks(2,
                     [&](RankContext& context) {
                       for (const bool momentum : {false, true}) {
                         SmallRun run(context, {.stage = 1, .momentum = momentum});
                         auto all = run.engine->hyper_parameters();
                         for (const Field field : momentum ? of_sgd : of_adam) {
                           auto other = all;
                           other[0].*field = 0.125 + 0.25 * context.rank();
                           EXPECT_THAT(error_of([&] { run.engine->set_hyper_parameters(other); }),
                                       HasSubstr("expected the same values on every rank"));
                         }
                         if (!momentum) continue;
                         all[0].dampening = 0;
                         all[0].nesterov = context.rank() == 1;
                         EXPECT_THAT(error_of([&] { run.engine->set_hyper_parameters(all); }),
                                     HasSubstr("expected the same values on every rank"));
                       }
                     }),
            "");
}

// Ranks that come to different calls: all get an error, and none sets a rate.
TEST(SetLr, OnOneRankOnlyItIsAnErrorOnAll) {
  at_every_stage(2, [](RankContext& context, int stage) {
    SmallRun run(context, {.stage = stage});
    const auto rate = run.engine->get_lr();
    run.engine->backward(run.loss(0));
    EXPECT_THAT(error_of([&] {
                  if (context.rank() == 0) return run.engine->set_lr(0.5);
                  run.engine->step();
                }),
                HasSubstr("set_lr() or set_hyper_parameters() of engine"));
    EXPECT_EQ(run.engine->get_lr(), rate);
  });
}

}  // namespace
}  // namespace equigrad
