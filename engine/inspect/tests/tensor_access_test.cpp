// Getters and setters of one parameter: every value against sums done by hand, at every stage; what
// is set is what the next step works with.
#include "engine/inspect/tensor_access.hpp"

#include <algorithm>

#include "conformance/testing/linear_loss_run.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::expect_same;
using conformance::LinearLossOptions;
using conformance::LinearLossRun;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::RankContext;

constexpr auto kSgd = OptimizerConfig::Kind::Sgd;

template <class Fn>
void everywhere(Fn fn) {
  for (const int world : {1, 2, 3}) {
    at_every_stage(world, [fn](RankContext& context, int stage) {
      for (const bool bf16 : {false, true}) {
        SCOPED_TRACE(bf16 ? "bf16" : "fp32");
        fn(context, LinearLossOptions{.stage = stage, .bf16 = bf16});
      }
    });
  }
}

// All that the engine holds of every trained parameter, by the getters. Collective.
std::map<std::string, at::Tensor> held(const LinearLossRun& run) {
  std::map<std::string, at::Tensor> all;
  auto& access = run.engine->access();
  std::vector<std::string> states;
  const auto shards = run.engine->local_shards();
  for (const auto& [state, tensor] : shards.front().state) states.push_back(state);
  for (const auto& name : LinearLossRun::trained()) {
    all[name] = run.engine->full_parameter(name);
    all["gradient of " + name] = access.full_gradient(name);
    all["master of " + name] = access.full_master(name);
    for (const auto& state : states) {
      all[state + " of " + name] = access.full_optimizer_state(name, state);
    }
  }
  return all;
}

void expect_all_same(const std::map<std::string, at::Tensor>& got,
                     const std::map<std::string, at::Tensor>& want, const std::string& what) {
  for (const auto& [name, tensor] : want) {
    ASSERT_EQ(got.at(name).defined(), tensor.defined()) << name << ", " << what;
    if (tensor.defined()) expect_same(got.at(name), tensor, name + ", " + what);
  }
}

TEST(TensorAccess, AGradientIsTheAverageOverAllRanksAndThePassesSoFar) {
  everywhere([](RankContext& context, const LinearLossOptions& options) {
    LinearLossRun run(context, options), unseen(context, options);
    auto& access = run.engine->access();
    for (const auto& name : LinearLossRun::trained())
      EXPECT_FALSE(access.full_gradient(name).defined());
    std::vector<int64_t> passes;
    for (int64_t pass = 0; pass < 3; ++pass) {
      if (pass > 0) run.engine->step();
      run.backward(pass);
      unseen.train(pass);
      passes.push_back(pass);
      for (const auto& name : LinearLossRun::trained()) {
        const auto whole = access.full_gradient(name), part = access.local_gradient(name);
        ASSERT_EQ(whole.defined(), name != "unused") << name;
        ASSERT_EQ(part.defined(), name != "unused") << name;
        if (name == "unused") continue;
        const auto want = run.average(name, passes);
        expect_same(whole, want, name);
        expect_same(part, run.mine(want), "slice of " + name);
        whole.zero_();
        part.zero_();
      }
      EXPECT_EQ(access.full_gradient("empty").sizes(), (std::vector<int64_t>{0, 3}));
    }
    run.engine->step();
    for (const auto& [name, gradient] : run.of_last_step) {
      expect_same(gradient, run.mine(run.average(name, passes)), name + " in the step");
    }
    EXPECT_EQ(run.of_last_step.count("unused"), 0U);
    for (const auto& name : LinearLossRun::trained())
      EXPECT_FALSE(access.full_gradient(name).defined());
    expect_all_same(held(run), held(unseen), "seen or not");
  });
}

TEST(TensorAccess, AGradientIsWhatAStepWouldTakeThatCameNow) {
  everywhere([](RankContext& context, const LinearLossOptions& options) {
    LinearLossRun run(context, options), now(context, options);
    for (int64_t pass = 0; pass < 2; ++pass) {
      run.train(pass);
      now.engine->set_gradient_accumulation_boundary(pass == 1);
      now.train(pass);
    }
    ASSERT_GE(now.of_last_step.size(), 5U);
    for (const auto& [name, gradient] : now.of_last_step) {
      expect_same(run.engine->access().local_gradient(name), gradient, name);
    }
    run.engine->zero_grad();
    EXPECT_FALSE(run.engine->access().full_gradient("seven").defined());
  });
}

TEST(TensorAccess, MastersAndStatesAreThoseThatTheStepUpdates) {
  everywhere([](RankContext& context, LinearLossOptions options) {
    options.accumulation = 1;
    LinearLossRun run(context, options);
    options.stage = 0;  // holds everything whole; with one pass a window all stages are equal
    LinearLossRun whole(context, options);
    auto& access = run.engine->access();
    for (int64_t pass = 0; pass < 3; ++pass) {
      for (auto* each : {&run, &whole}) {
        if (pass == 0) continue;
        each->backward(pass);
        for (const auto& name : LinearLossRun::trained()) {
          const auto value = at::full((*each)[name].sizes(), 3.5);
          if (pass == 2) each->engine->access().set_full_gradient(name, value);
        }
        each->engine->step();
      }
      EXPECT_EQ(run.engine->get_global_grad_norm(), whole.engine->get_global_grad_norm())
          << "padding counts nowhere";
      const auto parts = run.engine->local_shards();
      const auto wholes = whole.engine->local_shards();
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto& name = parts[i].name;
        const auto shape = run[name].sizes();
        const auto master = access.full_master(name);
        expect_same(master, wholes[i].master.view(shape), "master of " + name);
        expect_same(access.local_master(name), parts[i].master, "slice of the master of " + name);
        expect_same(run.engine->full_parameter(name), master.to(run.dtype), name);
        for (const auto& [state, want] : wholes[i].state) {
          const auto got = access.full_optimizer_state(name, state);
          expect_same(got, want.view(shape), state + " of " + name);
          const auto part = access.local_optimizer_state(name, state);
          expect_same(part, parts[i].state.at(state), "slice of " + state + " of " + name);
          got.fill_(5);
          part.fill_(5);
        }
        master.fill_(5);
        access.local_master(name).fill_(5);
      }
      EXPECT_EQ(access.full_master("empty").sizes(), (std::vector<int64_t>{0, 3}));
      EXPECT_EQ(access.full_optimizer_state("empty", "exp_avg").numel(), 0);
    }
    expect_all_same(held(run), held(whole), "getters give copies");
  });
}

TEST(TensorAccess, WhatIsSetIsReadAndNothingElseChanges) {
  everywhere([](RankContext& context, const LinearLossOptions& options) {
    LinearLossRun run(context, options);
    auto& access = run.engine->access();
    for (int64_t pass = 0; pass < 4; ++pass) run.train(pass);  // one pass into a window
    uint64_t seed = 500;
    auto want = held(run);
    auto names = LinearLossRun::trained();
    for (const bool local : {false, true}) {
      std::reverse(names.begin(), names.end());
      for (const auto& name : names) {
        const auto fresh = [&] {
          return sample(run[name].numel(), ++seed).view(run[name].sizes());
        };
        auto value = fresh();
        local ? access.set_local_gradient(name, run.mine(value))
              : access.set_full_gradient(name, value);
        want["gradient of " + name] = value.clone();
        value.zero_();  // it was copied
        value = fresh();
        local ? access.set_local_master(name, run.mine(value))
              : access.set_full_master(name, value);
        want["master of " + name] = value;
        want[name] = value.to(run.dtype);
        value = fresh();
        local ? access.set_local_optimizer_state(name, "exp_avg_sq", run.mine(value))
              : access.set_full_optimizer_state(name, "exp_avg_sq", value);
        want["exp_avg_sq of " + name] = value;
        expect_same(access.local_optimizer_state(name, "exp_avg_sq"), run.mine(value), name);
      }
      expect_all_same(held(run), want, local ? "slices set" : "wholes set");
    }
    const auto nothing = at::empty({0, 3}), flat = at::empty({0});
    access.set_full_gradient("empty", nothing);
    access.set_full_master("empty", nothing);
    access.set_full_optimizer_state("empty", "exp_avg", nothing);
    access.set_local_gradient("empty", flat);
    access.set_local_master("empty", flat);
    access.set_local_optimizer_state("empty", "exp_avg", flat);
    expect_all_same(held(run), want, "an empty parameter set");
    run.train(4);
    run.train(5);
    EXPECT_EQ(run.engine->counters().global_steps, 2);
  });
}

TEST(TensorAccess, AStepTakesTheGradientThatWasSetAndThePassesAfterIt) {
  everywhere([](RankContext& context, LinearLossOptions options) {
    options.kind = kSgd;
    for (const bool local : {false, true}) {
      LinearLossRun run(context, options);
      auto& access = run.engine->access();
      const auto before = held(run);
      const auto value = [&](const std::string& name, uint64_t seed) {
        return sample(run[name].numel(), seed).view(run[name].sizes());
      };
      const auto set = [&](const std::string& name, uint64_t seed) {
        local ? access.set_local_gradient(name, run.mine(value(name, seed)))
              : access.set_full_gradient(name, value(name, seed));
      };
      set("seven", 800);  // before any pass
      run.train(0);
      for (const std::string name : {"grid", "one", "unused"}) set(name, 801);
      run.train(1);
      set("scalar", 802);
      set("one", 803);
      std::map<std::string, at::Tensor> want{
          {"seven", at::add(run.average("seven", {0, 1}), value("seven", 800))},
          {"grid", at::add(run.average("grid", {1}), value("grid", 801))},
          {"unused", value("unused", 801)},
          {"scalar", value("scalar", 802)},
          {"one", value("one", 803)},
          {"lone", run.average("lone", {0, 1})}};
      for (const auto& [name, gradient] : want) {
        expect_same(access.full_gradient(name), gradient, name);
      }
      run.engine->set_gradient_accumulation_boundary(true);
      run.engine->backward(run["scalar"].sum() * 0);
      run.engine->step();
      for (const auto& [name, gradient] : want) {
        const auto master = at::sub(before.at("master of " + name), gradient);
        expect_same(access.full_master(name), master, "master of " + name);
        expect_same(run.engine->full_parameter(name), master.to(run.dtype), name);
      }
      // It is of that window only; zero_grad() forgets it as well.
      set("seven", 804);
      run.engine->zero_grad();
      run.train(3);
      EXPECT_EQ(run.of_last_step.count("unused"), 0U);
      expect_same(run.of_last_step.at("seven"), run.mine(run.average("seven", {3})), "seven");
    }
  });
}

TEST(TensorAccess, TheModelsParameterFollowsAMasterThatIsSetAtOnce) {
  everywhere([](RankContext& context, LinearLossOptions options) {
    for (const int64_t persistent_numel : {0, 10, 1000}) {
      options.persistent_numel = persistent_numel;
      LinearLossRun run(context, options);
      auto& access = run.engine->access();
      for (const auto& name : LinearLossRun::trained()) {
        const auto value = sample(run[name].numel(), 900).view(run[name].sizes());
        at::mul(run[name].detach(), 2);  // at stage 3 it is gathered now
        const auto old = (run[name] * run[name]).sum();
        name == "grid" ? access.set_local_master(name, run.mine(value))
                       : access.set_full_master(name, value);
        EXPECT_THAT(at::mul(run[name].detach(), 2), HasTheBitsOf(value.to(run.dtype) * 2)) << name;
        EXPECT_THROW(old.backward(), c10::Error)
            << "a graph from before must not be used: " << name;
      }
      run.train(0);
      EXPECT_THAT(at::mul(run["frozen"], 2), HasTheBitsOf(sample(3, 77, run.dtype) * 2));
    }
  });
}

TEST(TensorAccess, AStateThatIsSetBeforeTheFirstStepCounts) {
  everywhere([](RankContext& context, LinearLossOptions options) {
    options.accumulation = 1;
    const auto decay = at::full({}, 0.9, at::kFloat), rest = at::full({}, 1 - 0.9, at::kFloat);
    for (const bool sgd : {false, true}) {
      options.kind = sgd ? kSgd : OptimizerConfig::Kind::AdamW;
      options.momentum = 0.9;
      const std::string state = sgd ? "momentum_buffer" : "exp_avg";
      for (const bool local : {false, true}) {
        LinearLossRun run(context, options);
        auto& access = run.engine->access();
        const auto value = sample(20, 950).view({5, 4});
        local ? access.set_local_optimizer_state("grid", state, run.mine(value))
              : access.set_full_optimizer_state("grid", state, value);
        run.train(0);
        const auto gradient = run.average("grid", {0});
        expect_same(access.full_optimizer_state("grid", state),
                    at::add(at::mul(value, decay), sgd ? gradient : at::mul(gradient, rest)),
                    state);
      }
    }
  });
}

}  // namespace
}  // namespace equigrad
