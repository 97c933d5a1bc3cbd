// What getters and setters refuse: names, shapes, types, values that differ, and ranks that come to
// different calls. After each the engine goes on as if it had not been asked.
#include "engine/api/access.hpp"

#include <stdexcept>

#include "conformance/testing/linear_loss_run.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::error_of;
using conformance::expect_same;
using conformance::LinearLossOptions;
using conformance::LinearLossRun;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;

void expect_equal_runs(const LinearLossRun& run, const LinearLossRun& plain) {
  const auto got = run.engine->local_shards(), want = plain.engine->local_shards();
  for (std::size_t i = 0; i < want.size(); ++i) {
    expect_same(got[i].master, want[i].master, want[i].name);
    for (const auto& [state, tensor] : want[i].state) {
      expect_same(got[i].state.at(state), tensor, state + " of " + want[i].name);
    }
    expect_same(run.engine->full_parameter(want[i].name),
                plain.engine->full_parameter(want[i].name), want[i].name);
  }
}

// Each is asked within a window; both runs then end it and do another.
template <class Ask>
void expect_no_trace(RankContext& context, const LinearLossOptions& options, Ask ask) {
  LinearLossRun run(context, options), plain(context, options);
  for (auto* each : {&run, &plain}) each->train(0);
  ask(run);
  for (int64_t pass = 1; pass < 6; ++pass) {
    run.train(pass);
    plain.train(pass);
  }
  expect_equal_runs(run, plain);
}

// Every call with one name and, for setters, one value.
std::vector<std::function<void()>> all_calls(Access& access, const std::string& name,
                                             const at::Tensor& value) {
  return {[&access, name] { access.full_gradient(name); },
          [&access, name] { access.full_master(name); },
          [&access, name] { access.full_optimizer_state(name, "exp_avg"); },
          [&access, name] { access.local_gradient(name); },
          [&access, name] { access.local_master(name); },
          [&access, name] { access.local_optimizer_state(name, "exp_avg"); },
          [&access, name, value] { access.set_full_gradient(name, value); },
          [&access, name, value] { access.set_full_master(name, value); },
          [&access, name, value] { access.set_full_optimizer_state(name, "exp_avg", value); },
          [&access, name, value] { access.set_local_gradient(name, value); },
          [&access, name, value] { access.set_local_master(name, value); },
          [&access, name, value] { access.set_local_optimizer_state(name, "exp_avg", value); }};
}

TEST(Access, ANameThatIsUnknownOrFrozenIsRefused) {
  at_every_stage(2, [](RankContext& context, int stage) {
    expect_no_trace(context, {.stage = stage}, [](LinearLossRun& run) {
      auto& access = run.engine->access();
      for (const auto& call : all_calls(access, "sevne", at::zeros({7}))) {
        EXPECT_THAT(error_of(call), AllOf(HasSubstr("\"sevne\""), HasSubstr("seven")));
      }
      for (const auto& call : all_calls(access, "frozen", at::zeros({3}))) {
        EXPECT_THAT(error_of(call),
                    HasSubstr("[engine.access] expected a parameter that is trained, got "
                              "\"frozen\", which is frozen. Read it with full_parameter"));
      }
    });
  });
}

TEST(Access, AStateThatTheOptimizerDoesNotKeepIsRefused) {
  at_every_stage(2, [](RankContext& context, int stage) {
    for (const auto kind : {OptimizerConfig::Kind::AdamW, OptimizerConfig::Kind::Sgd}) {
      expect_no_trace(context, {.stage = stage, .kind = kind}, [kind](LinearLossRun& run) {
        auto& access = run.engine->access();
        const auto want =
            AllOf(HasSubstr(kind == OptimizerConfig::Kind::AdamW ? "[exp_avg, exp_avg_sq]" : "[]"),
                  HasSubstr("of \"seven\", got \"momentum\""));
        const auto whole = at::zeros({7}), part = run.mine(whole);
        EXPECT_THAT(error_of([&] { access.full_optimizer_state("seven", "momentum"); }), want);
        EXPECT_THAT(error_of([&] { access.local_optimizer_state("seven", "momentum"); }), want);
        EXPECT_THAT(error_of([&] { access.set_full_optimizer_state("seven", "momentum", whole); }),
                    want);
        EXPECT_THAT(error_of([&] { access.set_local_optimizer_state("seven", "momentum", part); }),
                    want);
      });
    }
  });
}

TEST(Access, AValueOfAnotherShapeOrTypeIsRefused) {
  at_every_stage(3, [](RankContext& context, int stage) {
    expect_no_trace(context, {.stage = stage}, [](LinearLossRun& run) {
      auto& access = run.engine->access();
      const auto refused = [&](const at::Tensor& full, const at::Tensor& part,
                               const std::string& got) {
        const auto with_full = all_calls(access, "grid", full);
        const auto with_part = all_calls(access, "grid", part);
        for (std::size_t i = 6; i < 9; ++i) {
          EXPECT_THAT(error_of(with_full[i]),
                      AllOf(HasSubstr("values of shape [5, 4] for \"grid\", got " + got)));
        }
        const auto mine = run.mine(at::zeros({20})).numel();
        for (std::size_t i = 9; i < 12; ++i) {
          EXPECT_THAT(error_of(with_part[i]), HasSubstr("values of shape [" + std::to_string(mine) +
                                                        "] for \"grid\", got"));
        }
      };
      refused(at::zeros({4, 5}), at::zeros({21}), "Float of shape [4, 5]");
      refused(at::zeros({20}), at::zeros({5, 4}), "Float of shape [20]");
      refused(at::zeros({5, 4}, at::kLong), run.mine(at::zeros({20}, at::kLong)),
              "Long of shape [5, 4]");
      refused({}, {}, "an undefined tensor");
    });
  });
}

TEST(Access, ValuesThatDifferBetweenRanksAreRefusedOnAll) {
  for (const int world : {2, 3}) {
    at_every_stage(world, [](RankContext& context, int stage) {
      expect_no_trace(context, {.stage = stage}, [](LinearLossRun& run) {
        auto& access = run.engine->access();
        // By one bit, in an element that belongs to one rank only.
        auto value = at::ones({5, 4});
        if (run.rank == 1) value[0][0] = std::nextafter(1.0F, 2.0F);
        const auto calls = all_calls(access, "grid", value);
        for (std::size_t i = 6; i < 9; ++i) {
          EXPECT_THAT(error_of(calls[i]),
                      HasSubstr("expected the same values on every rank for \"grid\", got others"));
        }
        EXPECT_NE(error_of([&] {
                    access.full_optimizer_state("grid", run.rank == 0 ? "exp_avg" : "exp_avg_sq");
                  }),
                  "");
      });
    });
  }
}

TEST(Access, AtStage0ASliceIsTheWholeAndMayNotDifferBetweenRanks) {
  for (const int world : {2, 3}) {
    EXPECT_EQ(conformance::ranks::on_ranks(
                  world,
                  [](RankContext& context) {
                    expect_no_trace(context, {}, [](LinearLossRun& run) {
                      auto& access = run.engine->access();
                      const auto value = at::full({20}, run.rank + 1.0);
                      EXPECT_THAT(error_of([&] { access.set_local_gradient("grid", value); }),
                                  HasSubstr("expected the same values on every rank"));
                      EXPECT_THAT(error_of([&] { access.set_local_master("grid", value); }),
                                  HasSubstr("expected the same values on every rank"));
                    });
                  }),
              "");
  }
}

TEST(Access, RanksThatComeToDifferentCallsAreAllToldAndCanGoOn) {
  for (const int world : {2, 3}) {
    at_every_stage(world, [](RankContext& context, int stage) {
      expect_no_trace(context, {.stage = stage, .accumulation = 1}, [](LinearLossRun& run) {
        auto& access = run.engine->access();
        auto& engine = *run.engine;
        const bool first = run.rank == 0;
        const auto told = [](const std::function<void()>& call, const std::string& one,
                             const std::string& other) {
          EXPECT_THAT(error_of(call), AllOf(HasSubstr("expected every rank at the same place"),
                                            HasSubstr(one), HasSubstr(other)));
        };
        engine.zero_grad();
        run.backward(9);
        const std::string asks = "rank 0 at the getter of", sets = "rank 0 at the setter of",
                          steps = "rank 1 at step()";
        told([&] { first ? void(access.full_gradient("seven")) : engine.step(); }, asks, steps);
        told([&] { first ? void(access.full_master("seven")) : engine.step(); }, asks, steps);
        told([&] { first ? access.set_full_gradient("seven", at::ones({7})) : engine.step(); },
             sets, steps);
        told(
            [&] {
              first ? access.set_local_master("one", run.mine(at::ones({1}))) : engine.step();
            },
            sets, steps);
        told([&] { access.full_master(first ? "seven" : "grid"); }, "parameter 0", "parameter 1");
        told([&] { first ? access.full_gradient("seven") : access.full_master("seven"); },
             "rank 0 at the getter of a gradient", "rank 1 at the getter of a master");
        EXPECT_EQ(engine.counters().micro_steps, 1);
        expect_same(access.full_gradient("seven"), run.average("seven", {9}), "nothing was lost");
        engine.zero_grad();
      });
    });
  }
}

TEST(Access, AGradientOfDifferentNumbersOfPassesIsRefused) {
  at_every_stage(2, [](RankContext& context, int stage) {
    if (stage >= 2) return;  // their passes meet
    expect_no_trace(context, {.stage = stage}, [](LinearLossRun& run) {
      run.engine->zero_grad();
      run.backward(0);
      if (run.rank == 0) run.backward(1);
      EXPECT_THAT(error_of([&] { run.engine->access().local_gradient("seven"); }),
                  HasSubstr("expected as many backward passes on every rank for \"seven\""));
      run.engine->zero_grad();
      run.backward(0);
    });
  });
}

TEST(Access, AfterAFailedMeetingAnExceptionIsStillToldToTheOthers) {
  at_every_stage(2, [](RankContext& context, int stage) {
    if (stage < 2) return;  // their passes do not meet
    expect_no_trace(context, {.stage = stage}, [](LinearLossRun& run) {
      auto& access = run.engine->access();
      EXPECT_NE(error_of([&] { access.full_master(run.rank == 0 ? "seven" : "grid"); }), "");
      auto hooked = run["one"].sum();
      if (run.rank == 1)
        hooked.register_hook([](const at::Tensor&) { throw std::runtime_error("from a hook"); });
      std::string said;
      try {
        run.engine->backward(run.loss(50) + hooked);
      } catch (const std::exception& error) {
        said = error.what();
      }
      EXPECT_THAT(said, HasSubstr(run.rank == 1 ? "from a hook" : "got an exception on rank 1"));
    });
  });
}

}  // namespace
}  // namespace equigrad
