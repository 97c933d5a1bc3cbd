// 8. step() acts at the boundary only.  9. Gradients that are not finite.
#include <ATen/ATen.h>

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
    play.check("skipped_steps counts it", engine->counters().skipped_steps == context.window >= 1);
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

}  // namespace

std::vector<Case> rates() {
  return {Case{"11", "rate_follows_its_schedule",
               "the rate is that of the applied updates; a skipped one holds it",
               "the loss is halved, or the gradient finite", rate_follows}
              .in_every_precision()
              .on({"heads"})
              .lasting(5)
              .scheduled()
              .answering({"trap 17"}),
          Case{"11", "rate_of_every_group",
               "groups with rates of their own follow the schedule from the first step on",
               "the loss is halved", rate_of_every_group}
              .on({"irregular"})
              .lasting(4)
              .scheduled(),
          Case{"11", "unknown_lr_arguments",
               "an lr argument that the schedule does not know is refused", "the loss is halved",
               unknown_arguments}
              .on({"heads"})
              .lasting(3)
              .scheduled()
              .answering({"trap 17"})};
}

std::vector<Case> the_step() {
  const auto infinite = [](Play& play) {
    not_finite(play, std::numeric_limits<double>::infinity());
  };
  const auto no_number = [](Play& play) {
    not_finite(play, std::numeric_limits<double>::quiet_NaN());
  };
  return {
      Case{"8", "step_before_the_boundary", "a step before the boundary changes nothing",
           "the boundary is expected one micro-batch early", off_the_boundary}
          .in_every_precision()
          .accumulation({3, 2})
          .answering({"trap 16"}),
      Case{"8", "step_without_a_backward", "a step without a backward is refused",
           "there is a backward", without_a_backward}
          .in_every_precision(),
      Case{"8", "step_twice", "a second step at the boundary is refused, and writes nothing",
           "another message is expected", twice},
      Case{"9", "infinite_on_one_rank", "every rank skips (16 bits) or refuses (fp32), none writes",
           "the gradient is finite", infinite}
          .in_every_precision()
          .on({"heads"})
          .lasting(3)
          .answering({"trap 10"}),
      Case{"9", "not_a_number_on_one_rank", "so they do with clipping, which stays on",
           "the gradient is finite", no_number}
          .in_every_precision()
          .on({"heads"})
          .lasting(3)
          .clipped(Clipping::Above)
          .with_optimizer("SGD")
          .answering({"trap 11"})};
}

}  // namespace equigrad::conformance::contract
