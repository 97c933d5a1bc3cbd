// 2. Several engines: chained, under one loss, side by side. "tower" is the first, "irregular"
// another.
#include <ATen/ATen.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {
namespace {

void chained_one_loss(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto between = play.as<Tower>(0).forward(batch.input);
    const auto input = play.fault() ? between / play.context().accumulation : between;
    play.backward(play.model(1).loss({input, batch.target}), {.engine = 1});
  });
}

// The second engine's gradient of its input is handed to the first one's output.
void chained_by_gradient(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto between = play.as<Tower>(0).forward(batch.input);
    const auto input = between.detach().requires_grad_();
    play.backward(play.model(1).loss({input, batch.target}), {.engine = 1});
    play.see("gradient between the engines", input.grad());
    const auto gradient = play.fault() ? input.grad() / play.context().accumulation : input.grad();
    play.run([&] { between.backward(gradient); });
  });
}

void shared_loss(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto first = uneven(play.as<Tower>(0).forward(batch.input));
    const auto second = play.model(1).loss(batch);
    const auto third = uneven(play.as<Heads>(2).output(batch));
    play.run([&] { ((play.fault() ? first * 0.5 : first) + second + third).backward(); });
  });
}

void independent(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto first = uneven(play.as<Tower>(0).forward(batch.input));
    const auto second = play.model(1).loss(play.batch(number + 10));
    play.backward(second, {.engine = 1});
    play.backward(play.fault() ? first * 0.5 : first, {.engine = 0});
  });
}

// On rank 0 the engine whose backward() is called has no parameter in the pass, the other one has.
void reached_by_its_call_alone(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    auto loss = play.as<Heads>(1).loss_through(1, batch);
    if (play.fault()) loss = loss * 0.5;
    if (play.context().rank != 0) loss = loss + uneven(play.as<Tower>(0).forward(batch.input));
    play.backward(loss, {.engine = 0});
  });
}

// e(e(x)), and both engines twice in one graph.
void engines_in_a_loop(Play& play) {
  auto& first = play.as<Tower>(0);
  auto& second = play.as<Tower>(1);
  each_micro_batch(play, [&](int64_t number) {
    const auto once = second.forward(first.forward(play.batch(number).input));
    const auto twice = second.forward(first.forward(play.fault() ? once.detach() : once));
    play.run([&] { uneven(twice).backward(); });
  });
}

}  // namespace

std::vector<Case> several_engines() {
  return {
      {.section = "2",
       .name = "chained_engines_one_loss",
       .sentence = "one loss through two engines counts once for each",
       .fault = "what passes between the engines is divided by accumulation",
       .program = chained_one_loss,
       .models = {"tower", "irregular"},
       .places = {.accumulations = {3, 2}}},
      {.section = "2",
       .name = "chained_engines_by_gradient",
       .sentence = "the gradient of one engine's input, handed to another's output, counts once",
       .fault = "the gradient between the engines is divided by accumulation",
       .program = chained_by_gradient,
       .models = {"tower", "irregular"},
       .places = {.accumulations = {3, 2}},
       .answers = {"trap 5"}},
      {.section = "2",
       .name = "several_engines_under_one_loss",
       .sentence = "a loss over three engines is right for each",
       .fault = "one engine's term is halved",
       .program = shared_loss,
       .models = {"tower", "irregular", "heads"}},
      {.section = "2",
       .name = "independent_engines",
       .sentence = "engines side by side do not touch each other",
       .fault = "one engine's loss is halved",
       .program = independent,
       .models = {"tower", "irregular"},
       .answers = {"trap 18"}},
      {.section = "2",
       .name = "engine_that_some_ranks_do_not_reach",
       .sentence = "an engine whose backward() reaches only another one, on some ranks, is right",
       .fault = "the other one's loss is halved",
       .program = reached_by_its_call_alone,
       .models = {"tower", "heads"},
       .places = {.smallest_world = 2}},
      {.section = "2",
       .name = "engines_in_a_loop",
       .sentence = "two engines, each used twice in one graph, are right",
       .fault = "the second round is detached from the first",
       .program = engines_in_a_loop,
       .models = {"tower", "tower"}}};
}

}  // namespace equigrad::conformance::contract
