// 14. Leaf modules, whose parameters are gathered together; whole parameters for the user's code.
#include <torch/types.h>

#include <cstring>
#include <utility>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {
namespace {

// Ranks and micro-batches send their rows to different experts; some use one, some all three.
void routed(Play& play) {
  auto& model = play.as<Experts>();
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const int64_t turn = play.context().rank + number + (play.fault() ? 1 : 0);
    play.backward(model.criterion(model.route(batch.input, turn), batch));
  });
}

// One expert is never used, another on rank 0 alone: gradients and states of both are right.
void unused_expert(Play& play) {
  auto& model = play.as<Experts>();
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const std::size_t which = play.context().rank == 0 && !play.fault() ? 1 : 0;
    auto& expert = *model.experts->all[which];
    const auto hidden = at::gelu(expert.up(batch.input));
    const auto loss = model.criterion(expert.down(hidden) * model.gate(batch.input).sum(), batch);
    number % 2 == 0 ? (void)play.backward(loss) : play.run([&] { loss.backward(); });
  });
}

// What is evaluated between passes, on some ranks only and by another route, changes nothing.
void evaluated_between(Play& play) {
  auto& model = play.as<Experts>();
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    if ((play.context().rank + play.context().window + number) % 2 == 0) {
      const torch::NoGradGuard no_grad;
      play.see("an evaluation", model.route(batch.input, 2));
    }
    const auto output = model.route(play.fault() ? batch.input * 2 : batch.input, 0);
    play.backward(model.criterion(output, batch));
  });
}

const std::vector<std::string>& names_of_all() {
  static const std::vector<std::string> kNames = {"encode.weight", "scalar", "twice.bias",
                                                  "unused.weight"};
  return kNames;
}

// Of the program's model, whole while a gather lasts.
at::Tensor now(Play& play, const std::string& name) {
  return play.model().named_parameters()[name].detach();
}

void see_all(Play& play) {
  for (const auto& name : names_of_all()) play.see("whole " + name, now(play, name));
}

void train_whole(Play& play) {
  each_micro_batch(play,
                   [&](int64_t number) { play.backward(play.model().loss(play.batch(number))); });
}

void train_both(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
      const auto loss = play.model(which).loss(play.batch(number));
      play.backward(loss, {.engine = which});
    }
  });
}

// The last rank writes: a part of one by an operator, a scalar by its pointer, another as a whole.
void written_by_one_rank(Play& play) {
  const int writer = play.context().world - 1;
  play.gather(names_of_all(), writer, [&] {
    see_all(play);
    if (play.context().rank != writer) return;
    now(play, "encode.weight").flatten().narrow(0, 5, 30).mul_(play.fault() ? 1.75 : 1.5);
    std::memset(now(play, "scalar").mutable_data_ptr(), 0x3f, 2);
    now(play, "unused.weight").fill_(0.25);
  });
  play.gather(names_of_all(), std::nullopt, [&] { see_all(play); });
  train_whole(play);
}

// Nobody may write here, not even between passes; what was written is gone, on every rank.
void written_where_nobody_may(Play& play) {
  play.refuse("expected no writes without a modifier rank, got a write to \"twice.bias\"", [&] {
    play.gather(names_of_all(), std::nullopt, [&] {
      if (play.context().rank == 0) now(play, "twice.bias").add_(1);
    });
  });
  play.gather(names_of_all(), std::nullopt, [&] { see_all(play); });
  if (play.fault())
    play.gather(names_of_all(), 0, [&] {
      if (play.context().rank == 0) now(play, "twice.bias").add_(1);
    });
  train_whole(play);
}

// A forward and a backward pass while parameters are whole; step() waits for the end.
void a_pass_inside(Play& play) {
  const int64_t accumulation = play.context().accumulation;
  play.gather(names_of_all(), 0, [&] {
    play.backward(play.model().loss(play.batch(play.fault() ? 9 : 0)));
    play.refuse("expected no scope of gather(), got 1 that are open", [&] { play.step(); });
    see_all(play);
  });
  play.step();
  for (int64_t number = 1; number < accumulation; ++number) {
    play.backward(play.model().loss(play.batch(number)));
    play.step();
  }
}

std::vector<Case> experts() {
  return {{.section = "14",
           .name = "experts_of_a_leaf_module",
           .sentence = "experts that each rank's data chooses train as one leaf module",
           .fault = "rows go to the next expert",
           .program = routed,
           .models = {"experts"},
           .places = {.precisions = kEveryPrecision},
           .windows = 3,
           .features = {Feature::LeafModules}},
          {.section = "14",
           .name = "experts_without_a_leaf_module",
           .sentence = "so they do where nothing is a leaf",
           .fault = "rows go to the next expert",
           .program = routed,
           .models = {"experts"},
           .windows = 3},
          {.section = "14",
           .name = "an_expert_that_no_rank_uses",
           .sentence = "a leaf's parameters that a rank, or none, uses are right",
           .fault = "rank 0 uses the others'",
           .program = unused_expert,
           .models = {"experts"},
           .places = {.smallest_world = 2},
           .windows = 3,
           .features = {Feature::LeafModules}},
          {.section = "14",
           .name = "evaluation_on_some_ranks",
           .sentence = "an evaluation on some ranks is harmless",
           .fault = "the input is doubled",
           .program = evaluated_between,
           .models = {"experts"},
           .windows = 3,
           .features = {Feature::LeafModules}}};
}

std::vector<Case> gathered() {
  return {
      {.section = "14",
       .name = "gathered_and_written_by_one_rank",
       .sentence =
           "what one rank writes to gathered parameters reaches every rank's shards and masters",
       .fault = "it writes something else",
       .program = written_by_one_rank,
       .places = {.precisions = kEveryPrecision},
       .windows = 3},
      {.section = "14",
       .name = "gathered_and_written_where_nobody_may",
       .sentence = "a write without a modifier rank is an error, and leaves no trace",
       .fault = "it is made on the modifier rank",
       .program = written_where_nobody_may,
       .windows = 3},
      {.section = "14",
       .name = "a_pass_while_parameters_are_gathered",
       .sentence = "a pass may run while parameters are gathered, a step may not",
       .fault = "the pass is of another batch",
       .program = a_pass_inside,
       .windows = 3},
      {.section = "14",
       .name = "made_within_init",
       .sentence = "a model that no rank ever held as a whole is rank 0's, bit by bit",
       .fault = "rank 1's weights count",
       .program = train_both,
       .models = {"irregular", "heads"},
       .places = {.precisions = kEveryPrecision},
       .features = {Feature::WithinInit}}};
}

}  // namespace

std::vector<Case> whole_parameters() {
  auto all = experts();
  for (auto& one : gathered()) all.push_back(std::move(one));
  return all;
}

}  // namespace equigrad::conformance::contract
