// 17. What one rank is refused for is known to all, at once or at the engine's next call.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/api/slice_optimizer.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

ParameterGroup two_weights() {
  return {{{"a", at::ones({5}).requires_grad_()}, {"b", at::ones({3}).requires_grad_()}}, {}, {}};
}

struct TwoWeights {
  explicit TwoWeights(Play& play, std::shared_ptr<SliceOptimizer> optimizer = nullptr)
      : group(two_weights()),
        engine(initialize({group}, parse_config(config_beside(play), play.context().world),
                          play.group(), std::move(optimizer))) {}
  at::Tensor a() const { return group.parameters[0].tensor; }
  at::Tensor loss() const { return (a() * 2).sum() + group.parameters[1].tensor.sum(); }
  ParameterGroup group;
  std::unique_ptr<Engine> engine;
};

// Calls that throw what the end of a scope of gather() could not; each a second time, after that.
struct NextCall {
  const char* name;
  std::function<void(TwoWeights&)> call;
};

const std::vector<NextCall> kNextCalls = {
    {"set_lr", [](TwoWeights& one) { one.engine->set_lr(0.5); }},
    {"set_hyper_parameters",
     [](TwoWeights& one) { one.engine->set_hyper_parameters(one.engine->hyper_parameters()); }},
    {"access", [](TwoWeights& one) { (void)one.engine->access(); }},
    {"gather", [](TwoWeights& one) { one.engine->gather({one.a()}).end(); }},
    {"full_parameter", [](TwoWeights& one) { (void)one.engine->full_parameter("a"); }},
    {"backward", [](TwoWeights& one) { one.engine->backward(one.loss()); }},
    {"step", [](TwoWeights& one) {
       if (!one.engine->access().full_gradient("a").defined()) one.engine->backward(one.loss());
       one.engine->step();
     }}};

void refuse_next_calls(Play& play) {
  TwoWeights one(play);
  const at::NoGradGuard no_grad;
  for (const auto& next : kNextCalls) {
    {
      const auto ends_quietly = one.engine->gather({one.a()});
      one.a().add_(1);
    }
    const at::AutoGradMode with_graph(true);
    play.refuse(play.fault() ? "no such message"
                             : "expected no writes without a modifier rank, got a write to \"a\"",
                [&] { next.call(one); });
    next.call(one);
    play.check(std::string("the call after it is as any: ") + next.name, true);
  }
  play.check("no write of them was kept, and one step was made",
             at::equal(one.engine->full_parameter("a"), at::full({5}, 0.0)) &&
                 one.engine->counters().global_steps == 1);
}

// A write of the modifier rank's is every rank's, and of that rank alone.
void check_modifier(Play& play) {
  const auto& context = play.context();
  TwoWeights one(play);
  const int last = context.world - 1;
  {
    const at::NoGradGuard no_grad;
    auto whole = one.engine->gather({one.a()}, last);
    if (context.rank == last) one.a().fill_(4);
    whole.end();
  }
  play.check("what the modifier rank wrote is there on every rank",
             one.engine->full_parameter("a").equal(at::full({5}, 4.0)));
}

// It steps by one, and throws when it is told to.
struct Stubborn : SliceOptimizer {
  void own(const std::vector<OwnedSlice>& slices) override { owned = slices; }
  void step(const std::vector<at::Tensor>& gradients) override {
    if (throws) throw std::runtime_error("planted in the optimizer");
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) owned[i].master.sub_(gradients[i]);
  }
  std::vector<double> lr() const override { return {1}; }
  void set_rates(const std::vector<double>&, const std::vector<double>&) override {}
  std::vector<std::string> state_names(std::size_t) const override { return {}; }
  at::Tensor state(std::size_t, const std::string&) override { return {}; }
  int64_t state_bytes() const override { return 0; }
  std::string kind() const override { return "stubborn"; }
  std::string numbers(std::size_t) const override { return {}; }
  void restore(std::size_t, const SliceStates&, const std::string&) override {}
  std::vector<OwnedSlice> owned;
  bool throws = false;
};

// Of the caller's own code in a step: on the last rank, or on none.
void refuse_in_step(Play& play, bool in_observer) {
  const auto& context = play.context();
  const int last = context.world - 1;
  const auto optimizer = std::make_shared<Stubborn>();
  TwoWeights one(play, optimizer);
  auto& engine = *one.engine;
  const bool throws = context.rank == last;
  if (in_observer && throws)
    engine.on_step([](const auto&) { throw std::runtime_error("planted in the observer"); });
  optimizer->throws = !in_observer && throws;
  engine.backward(one.loss());
  play.refuse(throws ? "planted in the"
                     : "expected every rank to finish its step(), got an exception on rank " +
                           std::to_string(last),
              [&] { engine.step(); });
  play.check("a step that one rank's own code refused is none",
             !engine.was_step_applied() && engine.counters().global_steps == 0 &&
                 !engine.access().full_gradient("a").defined());
  engine.on_step(nullptr);
  optimizer->throws = false;
  if (!in_observer) return;  // masters may be written in part
  engine.backward(one.loss());
  engine.step();
  play.check("the next is one", engine.was_step_applied() &&
                                    at::equal(engine.full_parameter("a"), at::full({5}, -1.0)) &&
                                    at::equal(engine.full_parameter("b"), at::full({3}, 0.0)));
}

// Reads of whole parameters are calls that ranks make together where no rank has them all.
void refuse_other_reads(Play& play) {
  const auto& context = play.context();
  TwoWeights one(play);
  const std::string mine = context.rank == 0 ? "a" : "b";
  const auto read = [&] { (void)one.engine->full_parameter(mine); };
  if (context.stage == 3 && context.world > 1)
    play.refuse("expected every rank at the same place, got rank 0 at", read);
  else
    read();
  play.check("after it every rank reads the same",
             one.engine->full_parameter("a").equal(at::ones({5})));
}

void hyper_parameters_refused(Play& play) {
  TwoWeights one(play);
  auto& engine = *one.engine;
  const auto before = engine.hyper_parameters();
  const auto refuse = [&](const std::string& named, std::function<void(OptimizerConfig&)> make) {
    auto all = before;
    make(all.back());
    play.refuse(named, [&] { engine.set_hyper_parameters(all); });
    play.check("nothing is set of what is refused", engine.hyper_parameters() == before);
  };
  const std::string kept =
      "expected an optimizer of the same kind with the same states, got "
      "another, or SGD that gets or loses its momentum. Make a new engine.";
  refuse("optimizer.params.lr: expected at least 0, got -1.0.",
         [](OptimizerConfig& config) { config.lr = -1; });
  refuse("optimizer.params.nesterov: expected a momentum above 0",
         [](OptimizerConfig& config) { config.nesterov = true; });
  refuse(kept, [](OptimizerConfig& config) { config.momentum = 0.5; });
  refuse(kept, [](OptimizerConfig& config) { config.kind = OptimizerConfig::Kind::AdamW; });
  play.refuse("[engine.set_hyper_parameters] expected 1 groups, got 0.",
              [&] { engine.set_hyper_parameters({}); });
  auto all = before;
  all.back().weight_decay = 0.5;
  all.back().lr = 0.25;
  engine.set_hyper_parameters(all);
  play.check("what is right is set", engine.hyper_parameters() == all && all != before &&
                                         engine.get_lr() == std::vector<double>{0.25});
}

void refused_on_all(Play& play) {
  if (play.group()) {
    refuse_next_calls(play);
    check_modifier(play);
    refuse_in_step(play, /*in_observer=*/true);
    refuse_in_step(play, /*in_observer=*/false);
    refuse_other_reads(play);
    hyper_parameters_refused(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> refused_calls() {
  return {case_beside(
      {.section = "17",
       .name = "what_one_rank_is_refused_for",
       .sentence = "what one rank's call, or its own code, is refused for is known to all ranks",
       .fault = "another message is expected",
       .program = refused_on_all})};
}

}  // namespace equigrad::conformance::contract
