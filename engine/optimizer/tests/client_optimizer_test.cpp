// Optimizers of the caller's on slices: torch's own against the same optimizers on whole
// parameters, their states and rates, and what is refused.
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>

#include <limits>

#include "conformance/testing/small_run.hpp"
#include "engine/memory/ledger.hpp"
#include "engine/schedule/schedule.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::error_of;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;
using torch::optim::OptimizerParamGroup;
using Groups = std::vector<OptimizerParamGroup>;
using Optimizer = std::shared_ptr<torch::optim::Optimizer>;
using Rates = std::vector<double>;

// Sizes that neither ranks nor vectors divide; `spare` is used in some steps only.
struct Net : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor spare;
  Net() {
    first = register_module("first", torch::nn::Linear(7, 13));
    second = register_module("second", torch::nn::Linear(13, 3));
    spare = register_parameter("spare", at::empty({37}));
    const at::NoGradGuard no_grad;
    double shift = 0;
    for (auto& parameter : parameters())
      parameter.copy_(at::sin(at::arange(parameter.numel()) + ++shift).view(parameter.sizes()));
  }
  at::Tensor loss(int64_t step, int rank) {
    const auto input = at::cos(at::arange(28) + static_cast<double>(10 * step + rank)).view({4, 7});
    const auto output = second(at::tanh(first(input)));
    return uses_spare(step) ? output.square().mean() + spare.square().sum()
                            : output.square().mean();
  }
  static bool uses_spare(int64_t step) { return step % 3 != 1; }
  Groups groups() {
    auto rest = second->parameters();
    rest.push_back(spare);
    return {OptimizerParamGroup(first->parameters()), OptimizerParamGroup(rest)};
  }
};

struct Kind {
  std::string name;
  std::vector<std::string> states;
  std::function<Optimizer(const Groups&)> make;
};

template <class Torch, class Options>
Kind kind(const std::string& name, std::vector<std::string> states, const Options& options) {
  return {name, std::move(states), [options](const Groups& groups) {
            auto optimizer = std::make_shared<Torch>(groups, options);
            auto& second = optimizer->param_groups()[1].options();
            second.set_lr(second.get_lr() / 3);
            return optimizer;
          }};
}

std::vector<Kind> all_kinds() {
  using namespace torch::optim;
  const std::vector<std::string> moments{"exp_avg", "exp_avg_sq"};
  return {
      kind<SGD>("SGD", {}, SGDOptions(0.1).weight_decay(0.03)),
      kind<SGD>("momentum", {"momentum_buffer"}, SGDOptions(0.1).momentum(0.9).dampening(0.3)),
      kind<SGD>("Nesterov", {"momentum_buffer"},
                SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.03)),
      kind<Adam>("Adam", moments, AdamOptions(0.01).weight_decay(0.03)),
      kind<Adam>("AMSGrad", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
                 AdamOptions(0.01).amsgrad(true)),
      kind<AdamW>("AdamW", moments, AdamWOptions(0.01).weight_decay(0.03)),
      kind<RMSprop>("RMSprop", {"square_avg"}, RMSpropOptions(0.01)),
      kind<RMSprop>("centered RMSprop", {"square_avg", "momentum_buffer", "grad_avg"},
                    RMSpropOptions(0.01).centered(true).momentum(0.9).weight_decay(0.03)),
      kind<Adagrad>("Adagrad", {"sum"},
                    AdagradOptions(0.01).lr_decay(0.1).initial_accumulator_value(0.5)),
  };
}

const Kind& kind_of(const std::string& name) {
  static const auto kinds = all_kinds();
  for (const auto& one : kinds)
    if (one.name == name) return one;
  throw Error("test", "no kind " + name);
}

std::string config_of(int stage, const std::string& more = "") {
  return R"({"train_micro_batch_size_per_gpu": 1, "communication_timeout_s": 30,
             "zero_optimization": {"stage": )" +
         std::to_string(stage) +
         R"(, "reduce_bucket_size": 60, "stage3_param_persistence_threshold": 0})" + more + "}";
}

// What torch keeps for a whole parameter.
at::Tensor state_of(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                    const std::string& name) {
  using namespace torch::optim;
  const auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
  const auto moment = [&](const auto& adam) {
    return name == "exp_avg"      ? adam.exp_avg()
           : name == "exp_avg_sq" ? adam.exp_avg_sq()
                                  : adam.max_exp_avg_sq();
  };
  if (const auto* sgd = dynamic_cast<const SGDParamState*>(&state)) return sgd->momentum_buffer();
  if (const auto* adam = dynamic_cast<const AdamParamState*>(&state)) return moment(*adam);
  if (const auto* adam = dynamic_cast<const AdamWParamState*>(&state)) return moment(*adam);
  if (const auto* adagrad = dynamic_cast<const AdagradParamState*>(&state)) return adagrad->sum();
  const auto& rmsprop = dynamic_cast<const RMSpropParamState&>(state);
  return name == "square_avg"        ? rmsprop.square_avg()
         : name == "momentum_buffer" ? rmsprop.momentum_buffer()
                                     : rmsprop.grad_avg();
}

// An engine, and beside it torch's optimizer on whole parameters, in this process alone, with the
// gradients that the engine has averaged.
struct Pair {
  int rank;
  const Kind& kind;
  Net net;
  Optimizer optimizer;
  std::unique_ptr<Engine> engine;
  std::map<std::string, at::Tensor> whole;
  Optimizer plain;

  Pair(RankContext& context, int stage, const Kind& of, const std::string& more = "")
      : rank(context.rank()),
        kind(of),
        optimizer(kind.make(net.groups())),
        engine(initialize(net, config_of(stage, more), optimizer, context.group())) {
    for (const char* name : {"first.weight", "first.bias", "second.weight", "second.bias", "spare"})
      whole[name] = engine->full_parameter(name).requires_grad_();
    plain = kind.make(
        {OptimizerParamGroup({whole["first.weight"], whole["first.bias"]}),
         OptimizerParamGroup({whole["second.weight"], whole["second.bias"], whole["spare"]})});
  }
  void step(int64_t number) {
    engine->backward(net.loss(number, rank));
    for (auto& [name, parameter] : whole)
      parameter.mutable_grad() = engine->access().full_gradient(name);
    engine->step();
    plain->step();
  }
  void expect_equal_bits(const std::string& what) {
    for (const auto& [name, parameter] : whole) {
      const auto say = kind.name + ", " + name + ", " + what;
      EXPECT_THAT(engine->full_parameter(name), HasTheBitsOf(parameter.detach())) << say;
      EXPECT_THAT(engine->access().full_master(name), HasTheBitsOf(parameter.detach())) << say;
      for (const auto& state : kind.states)
        EXPECT_THAT(engine->access().full_optimizer_state(name, state),
                    HasTheBitsOf(state_of(*plain, parameter, state)))
            << say << ", " << state;
    }
  }
};

// Equal for all of them: no kernel of theirs rounds otherwise at the end of a tensor.
void slices_are_as_whole_parameters(const std::string& name) {
  for (const int world : {1, 2, 3}) {
    at_every_stage(world, [&](RankContext& context, int stage) {
      Pair pair(context, stage, kind_of(name));
      const auto before = pair.engine->full_parameter("spare");
      for (int64_t step = 0; step < 6; ++step) {
        const auto spare = pair.engine->full_parameter("spare");
        pair.step(step);
        pair.expect_equal_bits("step " + std::to_string(step));
        if (!Net::uses_spare(step)) {
          EXPECT_THAT(pair.engine->full_parameter("spare"), HasTheBitsOf(spare)) << "unused";
        }
      }
      EXPECT_THAT(pair.engine->full_parameter("spare"), testing::Not(HasTheBitsOf(before)));
    });
  }
}

TEST(ClientOptimizer, SgdIsTorchsOnWholeParameters) { slices_are_as_whole_parameters("SGD"); }
TEST(ClientOptimizer, MomentumIsTorchsOnWholeParameters) {
  slices_are_as_whole_parameters("momentum");
}
TEST(ClientOptimizer, NesterovIsTorchsOnWholeParameters) {
  slices_are_as_whole_parameters("Nesterov");
}
TEST(ClientOptimizer, AdamIsTorchsOnWholeParameters) { slices_are_as_whole_parameters("Adam"); }
TEST(ClientOptimizer, AmsGradIsTorchsOnWholeParameters) {
  slices_are_as_whole_parameters("AMSGrad");
}
TEST(ClientOptimizer, AdamWIsTorchsOnWholeParameters) { slices_are_as_whole_parameters("AdamW"); }
TEST(ClientOptimizer, RmspropIsTorchsOnWholeParameters) {
  slices_are_as_whole_parameters("RMSprop");
}
TEST(ClientOptimizer, CenteredRmspropIsTorchsOnWholeParameters) {
  slices_are_as_whole_parameters("centered RMSprop");
}
TEST(ClientOptimizer, AdagradIsTorchsOnWholeParameters) {
  slices_are_as_whole_parameters("Adagrad");
}

TEST(ClientOptimizer, StatesAreReadAndWrittenByTorchsNames) {
  at_every_stage(3, [](RankContext& context, int stage) {
    Pair pair(context, stage, kind_of("Adam"));
    auto& access = pair.engine->access();
    EXPECT_THAT(error_of([&] { access.full_optimizer_state("first.bias", "exp_avg"); }),
                AllOf(HasSubstr("states [] of \"first.bias\""), HasSubstr("its first step on")));
    pair.step(1);
    EXPECT_THAT(error_of([&] { access.full_optimizer_state("first.bias", "max_exp_avg_sq"); }),
                HasSubstr("states [exp_avg, exp_avg_sq] of \"first.bias\""));
    EXPECT_THAT(error_of([&] { access.full_optimizer_state("spare", "exp_avg"); }),
                HasSubstr("states [] of \"spare\""));  // which no rank has used
    const auto value = at::arange(13) / 64.0;
    access.set_full_optimizer_state("first.bias", "exp_avg", value);
    state_of(*pair.plain, pair.whole["first.bias"], "exp_avg").copy_(value);
    const auto local = access.local_optimizer_state("first.weight", "exp_avg_sq");
    access.set_local_optimizer_state("first.weight", "exp_avg_sq", local * 4);
    state_of(*pair.plain, pair.whole["first.weight"], "exp_avg_sq").mul_(4);
    for (const auto& shard : pair.engine->local_shards()) {
      if (shard.name != "first.bias") continue;
      EXPECT_THAT(shard.state.at("exp_avg"), HasTheBitsOf(value.slice(0, shard.begin, shard.end)));
    }
    pair.step(0);
    pair.expect_equal_bits("after the setters");
  });
}

TEST(ClientOptimizer, RatesAreThoseOfItsGroups) {
  at_every_stage(2, [](RankContext& context, int stage) {
    Pair pair(context, stage, kind_of("SGD"));
    EXPECT_EQ(pair.engine->get_lr(), (Rates{0.1, 0.1 / 3}));
    pair.engine->set_lr({0.25, 0.5});
    for (const auto& optimizer : {pair.plain, pair.optimizer}) {
      if (optimizer == pair.plain) {
        optimizer->param_groups()[0].options().set_lr(0.25);
        optimizer->param_groups()[1].options().set_lr(0.5);
      }
      EXPECT_EQ(optimizer->param_groups()[1].options().get_lr(), 0.5);
    }
    pair.step(0);
    pair.expect_equal_bits("set_lr");
    pair.optimizer->param_groups()[0].options().set_lr(0.125);  // as a scheduler of the user's does
    EXPECT_EQ(pair.engine->get_lr(), (Rates{0.125, 0.5}));
  });
}

template <class Options>
void a_configured_scheduler_acts(RankContext& context, int stage, const std::string& kind) {
  Pair pair(context, stage, kind_of(kind), R"(, "scheduler": {"type": "OneCycle", "params": {
        "cycle_min_lr": 0.5, "cycle_max_lr": 1.5, "cycle_first_step_size": 2,
        "cycle_min_mom": 0.25, "cycle_max_mom": 0.75}})");
  const auto rates = schedule::make_schedule(*pair.engine->config().scheduler, {0.01, 0.01 / 3});
  for (int64_t step = 0; step < 4; ++step) {
    const auto now = rates->current();
    EXPECT_EQ(pair.engine->get_lr(), now.lr);
    for (std::size_t group = 0; group < 2; ++group) {
      auto& options = dynamic_cast<Options&>(pair.plain->param_groups()[group].options());
      options.set_lr(now.lr[group]);
      options.betas({now.beta1.at(group), std::get<1>(options.betas())});
    }
    rates->step();
    pair.step(step);
    pair.expect_equal_bits(kind + ", iteration " + std::to_string(step));
  }
}

TEST(ClientOptimizer, AConfiguredSchedulerActsOnItsGroups) {
  at_every_stage(2, [](RankContext& context, int stage) {
    a_configured_scheduler_acts<torch::optim::AdamOptions>(context, stage, "Adam");
    a_configured_scheduler_acts<torch::optim::AdamWOptions>(context, stage, "AdamW");
  });
}

TEST(ClientOptimizer, ASkippedStepIsNone) {
  at_every_stage(2, [](RankContext& context, int stage) {
    Pair pair(context, stage, kind_of("Adam"), R"(, "bf16": {"enabled": true})");
    const auto before = pair.engine->access().full_master("first.weight");
    const double bad = context.rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0;
    const auto input = at::ones({4, 7}, at::kBFloat16);
    pair.engine->backward(pair.net.second(at::tanh(pair.net.first(input))).sum() * bad);
    pair.engine->step();
    EXPECT_FALSE(pair.engine->was_step_applied());
    EXPECT_THAT(pair.engine->access().full_master("first.weight"), HasTheBitsOf(before));
    EXPECT_TRUE(pair.optimizer->state().empty());
  });
}

TEST(ClientOptimizer, ItsStatesAreInTheLedger) {
  at_every_stage(3, [](RankContext& context, int stage) {
    Pair adam(context, stage, kind_of("Adam")), adagrad(context, stage, kind_of("Adagrad"));
    int64_t owned_bytes = 0;
    for (const auto& shard : adam.engine->local_shards())
      owned_bytes += 4 * (shard.end - shard.begin);
    const auto held = [](const Pair& pair) {
      return pair.engine->ledger().bytes(memory::Category::OptimizerState);
    };
    EXPECT_EQ(held(adam), 0);
    EXPECT_EQ(held(adagrad), owned_bytes) << "from its construction on";
    for (int64_t step = 0; step < 2; ++step) {
      adam.step(step);
      adagrad.step(step);
    }
    EXPECT_EQ(held(adam), 2 * owned_bytes);
    EXPECT_EQ(held(adagrad), owned_bytes);
  });
}

// ---- What is no optimizer of torch's own.

struct SignState final : torch::optim::OptimizerParamState {
  at::Tensor last;
};

// Steps by the sign of the gradient, and keeps it in a state of its own class.
struct SignDescent final : torch::optim::Optimizer {
  explicit SignDescent(const Groups& groups)
      : Optimizer(groups, std::make_unique<torch::optim::SGDOptions>(0.125)) {}
  torch::Tensor step(LossClosure /*closure*/) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups_)
      for (auto& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto state = std::make_unique<SignState>();
        state->last = parameter.grad().sign();
        parameter.sub_(state->last * group.options().get_lr());
        state_[parameter.unsafeGetTensorImpl()] = std::move(state);
      }
    return {};
  }
};

TEST(ClientOptimizer, OneOfTheUsersOwnClassWorksAndItsStatesHaveNoNames) {
  static const Kind sign{"signs", {}, [](const Groups& groups) -> Optimizer {
                           return std::make_shared<SignDescent>(groups);
                         }};
  at_every_stage(2, [](RankContext& context, int stage) {
    Pair pair(context, stage, sign);
    for (int64_t step = 0; step < 3; ++step) pair.step(step);
    pair.expect_equal_bits("signs");
    EXPECT_THAT(error_of([&] { pair.engine->access().full_optimizer_state("spare", "last"); }),
                HasSubstr("states [] of \"spare\""));
  });
}

// Throws on one rank, in its third step, before it writes.
struct Failing final : torch::optim::Optimizer {
  Failing(const Groups& groups, bool fails)
      : Optimizer(groups, std::make_unique<torch::optim::SGDOptions>(0.125)), fails_(fails) {}
  torch::Tensor step(LossClosure /*closure*/) override {
    if (++steps_ == 3 && fails_) throw std::runtime_error("the third step");
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups_)
      for (auto& parameter : group.params())
        if (parameter.grad().defined()) parameter.sub_(parameter.grad() * 0.125);
    return {};
  }

 private:
  bool fails_;
  int steps_ = 0;
};

TEST(ClientOptimizer, WhatItThrowsComesOutAndTheOtherRanksAreTold) {
  at_every_stage(2, [](RankContext& context, int stage) {
    const Kind kind{"failing", {}, [&](const Groups& groups) -> Optimizer {
                      return std::make_shared<Failing>(groups, context.rank() == 1);
                    }};
    Pair pair(context, stage, kind);
    const auto train = [&](int64_t step) {
      pair.engine->backward(pair.net.loss(step, context.rank()));
      pair.engine->step();
    };
    train(0);
    train(1);
    try {
      train(2);
      ADD_FAILURE() << "no exception";
    } catch (const std::exception& error) {
      const bool is_mine = dynamic_cast<const Error*>(&error) == nullptr;
      EXPECT_EQ(is_mine, context.rank() == 1);
      EXPECT_THAT(error.what(), HasSubstr(is_mine ? "the third step" : "rank 1"));
    }
    EXPECT_FALSE(pair.engine->was_step_applied());
    train(3);  // the ranks are together again
    EXPECT_TRUE(pair.engine->was_step_applied());
  });
}

TEST(ClientOptimizer, ItsHyperParametersAreInItsGroups) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       Pair pair(context, 1, kind_of("Adam"));
                       EXPECT_TRUE(pair.engine->hyper_parameters().empty());
                       EXPECT_THAT(error_of([&] { pair.engine->set_hyper_parameters({{}}); }),
                                   HasSubstr("for the optimizer is the caller's"));
                     }),
            "");
}

// ---- What is refused.

TEST(ClientOptimizer, WhatCannotBeCutIsRefusedByName) {
  EXPECT_EQ(
      on_ranks(1,
               [](RankContext& context) {
                 Net net;
                 const auto refused = [&](const Optimizer& optimizer,
                                          const std::string& more = "") {
                   return error_of(
                       [&] { initialize(net, config_of(1, more), optimizer, context.group()); });
                 };
                 using torch::optim::SGD;
                 const torch::optim::SGDOptions options(0.1);
                 const auto sgd = [&](const std::vector<at::Tensor>& parameters) {
                   return std::make_shared<SGD>(parameters, options);
                 };
                 EXPECT_THAT(refused(nullptr), HasSubstr("got a null pointer"));
                 EXPECT_THAT(refused(std::make_shared<torch::optim::LBFGS>(net.parameters())),
                             HasSubstr("got LBFGS"));
                 EXPECT_THAT(refused(sgd(net.first->parameters())),
                             HasSubstr("in the optimizer's groups, got none that has"));
                 auto tensors = net.parameters();
                 tensors.push_back(at::ones({3}).requires_grad_());
                 EXPECT_THAT(refused(sgd(tensors)), HasSubstr("a tensor that is none of them"));
                 tensors.back() = net.spare;
                 EXPECT_THAT(refused(sgd(tensors)), HasSubstr("got \"spare\" twice"));
                 EXPECT_THAT(refused(sgd(net.parameters()),
                                     R"(, "bf16": {"enabled": true,
                                               "bf16_master_weights_and_grads": true,
                                               "bf16_optimizer_states": true})"),
                             HasSubstr("got 16 bits"));
                 EXPECT_THAT(refused(sgd(net.parameters()), R"(, "optimizer": {"type": "SGD"})"),
                             HasSubstr("expected no optimizer beside the one"));
                 const auto stepped = std::make_shared<SignDescent>(net.groups());
                 net.loss(0, 0).backward();
                 stepped->step(nullptr);
                 EXPECT_THAT(refused(stepped), HasSubstr("that cannot be cut"));
                 EXPECT_EQ(refused(sgd(net.parameters())), "") << "the model is unharmed";
               }),
      "");
}

// What has stepped already goes on from its states.
TEST(ClientOptimizer, StatesOfWholeParametersAreCut) {
  at_every_stage(3, [](RankContext& context, int stage) {
    Net net, other;
    const auto& adam = kind_of("Adam");
    const auto optimizer = adam.make(net.groups()), plain = adam.make(other.groups());
    for (auto* of : {&net, &other}) of->loss(0, 0).backward();
    optimizer->step();
    plain->step();
    const auto engine = initialize(net, config_of(stage), optimizer, context.group());
    const auto named = other.named_parameters();
    for (int64_t step = 1; step < 3; ++step) {
      engine->backward(net.loss(step, context.rank()));
      for (const auto& item : named)
        other.named_parameters()[item.key()].mutable_grad() =
            engine->access().full_gradient(item.key());
      engine->step();
      plain->step();
    }
    for (const auto& item : named)
      EXPECT_THAT(engine->full_parameter(item.key()), HasTheBitsOf(item.value().detach()));
  });
}

}  // namespace
}  // namespace equigrad
