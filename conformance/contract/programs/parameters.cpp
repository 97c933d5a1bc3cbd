// 5. Parameters used several times, on some ranks, in some micro-batches, or not at all.
#include <torch/types.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {
namespace {

void irregular(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = play.model().loss(play.batch(number));
    play.backward(play.fault() && number == 0 ? loss * 0.5 : loss);
  });
}

// A layer used three times in one graph, once through a view.
void reused(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto once = tower.forward(play.batch(number).input);
    const auto twice = tower.forward(play.fault() ? once.detach() : once);
    const auto view = at::matmul(twice, tower.first->weight.t().narrow(1, 2, 5));
    play.run([&] { uneven(view).backward(); });
  });
}

// Rank 0 goes through one head, the others through another.
void on_one_rank_only(Play& play) {
  auto& heads = play.as<Heads>();
  each_micro_batch(play, [&](int64_t number) {
    const std::size_t head = play.context().rank == 0 && !play.fault() ? 0 : 1;
    play.backward(heads.loss_through(head, play.batch(number)));
  });
}

void in_turns(Play& play) {
  auto& heads = play.as<Heads>();
  each_micro_batch(play, [&](int64_t number) {
    const auto turn = static_cast<std::size_t>(number + (play.fault() ? 0 : play.context().rank));
    const auto loss = heads.loss_through(turn % 3, play.batch(number));
    if (turn % 2 == 0)
      play.backward(loss);
    else
      play.run([&] { loss.backward(); });
  });
}

// Autograd goes through the newest part of a graph first: here each rank has another.
void hooks_in_another_order(Play& play) {
  auto& heads = play.as<Heads>();
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto hidden = heads.trunk(batch.input);
    std::vector<at::Tensor> losses(3);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto head = (i + static_cast<std::size_t>(play.context().rank)) % 3;
      losses[head] = heads.criterion(heads.head(head, hidden), batch);
    }
    const auto last = play.fault() ? losses[2].detach() : losses[2];
    play.backward(losses[0] + losses[1] * 2 + last * 3);
  });
}

// All heads, then one of them, then all again: Adam's state of the others must rest.
void unused_for_a_window(Play& play) {
  auto& heads = play.as<Heads>();
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    auto loss = heads.loss_through(0, batch);
    if (play.context().window != 1)
      loss = loss + heads.loss_through(1, batch) + heads.loss_through(2, batch);
    else if (play.fault())
      loss = loss + heads.loss_through(1, batch) * 0;
    play.backward(loss);
  });
}

// A parameter that requires a gradient again in the graph of a batch without it.
void zero_gradient(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = play.model().loss(play.batch(number));
    play.backward(play.context().window == 1 && !play.fault() ? loss * 0 : loss);
  });
}

}  // namespace

std::vector<Case> parameters() {
  return {{.section = "5",
           .name = "tied_reused_frozen_empty_scalar",
           .sentence = "every odd parameter is right",
           .fault = "the first micro-batch counts half",
           .program = irregular,
           .places = {.precisions = kEveryPrecision}},
          {.section = "5",
           .name = "reused_in_one_graph",
           .sentence = "a module used several times in one graph is right",
           .fault = "one use is detached",
           .program = reused,
           .models = {"tower"}},
          {.section = "5",
           .name = "used_on_one_rank_only",
           .sentence = "ranks that use different parameters add each to its own",
           .fault = "rank 0's gradient goes to the other parameter",
           .program = on_one_rank_only,
           .models = {"heads"},
           .places = {.precisions = kEveryPrecision, .smallest_world = 2},
           .answers = {"trap 4"}},
          {.section = "5",
           .name = "used_in_turns",
           .sentence = "so they do when the use changes with the micro-batch",
           .fault = "all ranks take the same turn",
           .program = in_turns,
           .models = {"heads"},
           .places = {.accumulations = {3, 4}, .smallest_world = 2}},
          {.section = "5",
           .name = "hooks_in_another_order_on_each_rank",
           .sentence = "a gradient goes to its parameter in whatever order it comes",
           .fault = "one term is detached",
           .program = hooks_in_another_order,
           .models = {"heads"},
           .places = {.precisions = kEveryPrecision, .smallest_world = 2},
           .answers = {"trap 4"}},
          {.section = "5",
           .name = "unused_by_all",
           .sentence = "a parameter that no rank used keeps its bits and its state",
           .fault = "it is given a gradient of zeros",
           .program = unused_for_a_window,
           .models = {"heads"},
           .places = {.precisions = kEveryPrecision},
           .windows = 3,
           .answers = {"trap 3"}},
          {.section = "5",
           .name = "gradient_of_zeros",
           .sentence = "a gradient that is zero is one: it counts as a step",
           .fault = "the gradient is not zero",
           .program = zero_gradient,
           .places = {.precisions = kEveryPrecision},
           .windows = 3,
           .clipping = Clipping::Above}};
}

}  // namespace equigrad::conformance::contract
