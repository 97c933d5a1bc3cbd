// 8. step() acts at the boundary only.  9. Gradients that are not finite.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

void off_the_boundary(Play& play) {
  const auto& context = play.context();
  for (int64_t number = 0; number < context.accumulation; ++number) {
    play.see("parameter before the boundary", play.parameter("head.weight"));
    if (auto* engine = play.engine()) {
      const int64_t last = context.accumulation - (play.fault() ? 2 : 1);
      play.check("the boundary comes with the last micro-batch",
                 engine->is_gradient_accumulation_boundary() == (number == last));
      play.check("micro_steps counts calls of step()",
                 engine->counters().micro_steps == context.window * context.accumulation + number);
      play.check("global_steps counts boundaries",
                 engine->counters().global_steps == context.window);
    }
    play.backward(play.model().loss(play.batch(number)));
    play.step();
  }
}

void without_a_backward(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    if (play.fault()) play.backward(play.model().loss(play.batch(number + 10)));
    play.refuse("expected a backward pass since the last step(), got none", [&] { play.step(); });
    play.backward(play.model().loss(play.batch(number)));
  });
}

void twice(Play& play) {
  each_micro_batch(play,
                   [&](int64_t number) { play.backward(play.model().loss(play.batch(number))); });
  const std::string refused = "expected a backward pass since the last step(), got none";
  play.refuse(play.fault() ? "another message" : refused, [&] { play.step(); });
}

// One parameter of one rank is bad, in one micro-batch of the second window.
void not_finite(Play& play, double bad) {
  auto& heads = play.as<Heads>();
  const auto& context = play.context();
  const bool skips = context.precision != Precision::Fp32;
  for (int64_t number = 0; number < context.accumulation; ++number) {
    const auto batch = play.batch(number);
    auto loss = heads.loss_through(0, batch) + heads.loss_through(1, batch);
    const bool now = context.window == 1 && number == 0 && context.rank + 1 == context.world;
    if (now && !play.fault()) loss = loss + (heads.tops[1]->bias.to(at::kFloat) * bad).sum();
    play.backward(loss);
    const bool boundary = number + 1 == context.accumulation;
    if (!boundary || context.window != 1 || skips) {
      play.step();
      continue;
    }
    if (play.engine() == nullptr) play.step();
    play.refuse("the first in parameter \"b.bias\"", [&] { play.step(); });
  }
  if (auto* engine = play.engine(); engine != nullptr && skips)
    play.check("skipped_steps counts it",
               engine->counters().skipped_steps == (context.window >= 1 ? 1 : 0));
}

// But in fp32 the second window is skipped: the schedule stays where it was.
void rate_follows(Play& play) {
  if (play.context().precision != Precision::Fp32)
    return not_finite(play, std::numeric_limits<double>::infinity());
  auto& heads = play.as<Heads>();
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = heads.loss_through(1, play.batch(number));
    play.backward(play.fault() ? loss * 0.5 : loss);
  });
}

void rate_of_every_group(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = play.model().loss(play.batch(number));
    play.backward(play.fault() ? loss * 0.5 : loss);
  });
}

void unknown_arguments(Play& play) {
  auto& heads = play.as<Heads>();
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = heads.loss_through(1, play.batch(number));
    play.backward(play.fault() ? loss * 0.5 : loss);
    play.refuse("batch_iteration", [&] { play.engine()->step({{"batch_iteration", 3}}); });
    play.refuse("bogus", [&] { play.engine()->step({{"bogus", 3}}); });
  });
}

// What is no rate, not one for each group, or not the same on every rank.
void refuse_rates(Play& play) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto& context = play.context();
  const bool last = context.rank + 1 == context.world;
  const auto set = [&](auto rates) { return [&play, rates] { play.engine()->set_lr(rates); }; };
  for (const double bad : {-1e-9, kInfinity, -kInfinity, std::nan(""), 1e39})
    play.refuse("[engine.set_lr] expected a rate of 0 or more", set(bad));
  for (const auto& bad : std::vector<std::vector<double>>{{}, {0.1, 0.1}})
    play.refuse("expected 1 rates, one for each parameter group", set(bad));
  if (context.world == 1) return;
  play.refuse("expected the same values on every rank, got others on some", set(last ? 0.5 : 0.25));
  play.refuse(last ? "expected a rate of 0 or more" : "got refused ones on some",
              set(last ? -1.0 : 0.5));
}

// Of another optimizer, not one for each group, out of range, or not the same on every rank.
void refuse_hyper_parameters(Play& play) {
  const auto& context = play.context();
  const bool last = context.rank + 1 == context.world;
  const auto before = play.engine()->hyper_parameters();
  const auto refuse = [&](const std::string& fragment, double OptimizerConfig::*field,
                          double value) {
    auto all = before;
    all.at(0).*field = value;
    play.refuse(fragment, [&] { play.engine()->set_hyper_parameters(all); });
  };
  refuse("optimizer.params.weight_decay", &OptimizerConfig::weight_decay, -1);
  refuse("optimizer.params.eps", &OptimizerConfig::eps, std::nan(""));
  refuse("optimizer.params.betas", &OptimizerConfig::beta2, 1);
  auto others = before;
  others.at(0).kind = OptimizerConfig::Kind::Sgd;
  play.refuse("expected an optimizer of the same kind with the same states",
              [&] { play.engine()->set_hyper_parameters(others); });
  others.push_back(before.at(0));
  play.refuse("expected 1 groups, got 2", [&] { play.engine()->set_hyper_parameters(others); });
  if (context.world == 1) return;
  for (const auto field : {&OptimizerConfig::lr, &OptimizerConfig::weight_decay,
                           &OptimizerConfig::beta1, &OptimizerConfig::beta2, &OptimizerConfig::eps})
    refuse("expected the same values on every rank, got others on some", field, last ? 0.5 : 0.25);
  refuse(last ? "optimizer.params.eps" : "got refused ones on some", &OptimizerConfig::eps,
         last ? -1 : 0.5);
}

// In the middle of the first window, and between it and the second.
void refused_rates(Play& play) {
  auto& heads = play.as<Heads>();
  const auto refuse = [&] {
    auto* engine = play.engine();
    if (engine == nullptr) return;
    const auto rates = engine->get_lr();
    const auto all = engine->hyper_parameters();
    refuse_rates(play);
    refuse_hyper_parameters(play);
    play.check("what is refused leaves the rates and the rest as they were",
               engine->get_lr() == rates && engine->hyper_parameters() == all);
    if (play.fault()) engine->set_lr(0.5);
  };
  if (play.context().window == 1) refuse();
  each_micro_batch(play, [&](int64_t number) {
    play.backward(heads.loss_through(1, play.batch(number)));
    if (play.context().window == 0 && number == 0) refuse();
  });
}

}  // namespace

std::vector<Case> rates() {
  return {{.section = "11",
           .name = "rate_follows_its_schedule",
           .sentence = "the rate is that of the applied updates; a skipped one holds it",
           .fault = "the loss is halved, or the gradient finite",
           .program = rate_follows,
           .models = {"heads"},
           .places = {.precisions = kEveryPrecision},
           .windows = 5,
           .features = {Feature::RateSchedule},
           .answers = {"trap 17"}},
          {.section = "11",
           .name = "rate_of_every_group",
           .sentence = "groups with rates of their own follow the schedule from the first step on",
           .fault = "the loss is halved",
           .program = rate_of_every_group,
           .models = {"irregular"},
           .windows = 4,
           .features = {Feature::RateSchedule}},
          {.section = "11",
           .name = "unknown_lr_arguments",
           .sentence = "an lr argument that the schedule does not know is refused",
           .fault = "the loss is halved",
           .program = unknown_arguments,
           .models = {"heads"},
           .windows = 3,
           .features = {Feature::RateSchedule},
           .answers = {"trap 17"}},
          {.section = "11",
           .name = "rates_that_are_refused",
           .sentence = "what is no rate, or not every rank's, is an error on all and sets nothing",
           .fault = "a rate is set",
           .program = refused_rates,
           .models = {"heads"},
           .places = {.precisions = {Precision::Fp32}}}};
}

std::vector<Case> the_step() {
  const auto infinite = [](Play& play) {
    not_finite(play, std::numeric_limits<double>::infinity());
  };
  const auto no_number = [](Play& play) {
    not_finite(play, std::numeric_limits<double>::quiet_NaN());
  };
  return {{.section = "8",
           .name = "step_before_the_boundary",
           .sentence = "a step before the boundary changes nothing",
           .fault = "the boundary is expected one micro-batch early",
           .program = off_the_boundary,
           .places = {.accumulations = {3, 2}, .precisions = kEveryPrecision},
           .answers = {"trap 16"}},
          {.section = "8",
           .name = "step_without_a_backward",
           .sentence = "a step without a backward is refused",
           .fault = "there is a backward",
           .program = without_a_backward,
           .places = {.precisions = kEveryPrecision}},
          {.section = "8",
           .name = "step_twice",
           .sentence = "a second step at the boundary is refused, and writes nothing",
           .fault = "another message is expected",
           .program = twice},
          {.section = "9",
           .name = "infinite_on_one_rank",
           .sentence = "every rank skips (16 bits) or refuses (fp32), none writes",
           .fault = "the gradient is finite",
           .program = infinite,
           .models = {"heads"},
           .places = {.precisions = kEveryPrecision},
           .windows = 3,
           .answers = {"trap 10"}},
          {.section = "9",
           .name = "not_a_number_on_one_rank",
           .sentence = "so they do with clipping, which stays on",
           .fault = "the gradient is finite",
           .program = no_number,
           .models = {"heads"},
           .places = {.precisions = kEveryPrecision},
           .windows = 3,
           .clipping = Clipping::Above,
           .optimizer = "SGD",
           .answers = {"trap 11"}}};
}

}  // namespace equigrad::conformance::contract
