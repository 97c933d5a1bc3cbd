// 2. Every backward adds to the accumulation window, wherever its loss comes from.
#include <ATen/ATen.h>

#include <functional>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

// The fault of most: before a later pass the window is emptied, so only the last one counts.
void forget(Play& play) {
  if (play.fault()) play.zero_grad();
}

void pass(Play& play, const at::Tensor& loss, bool by_engine, bool retain = false) {
  if (by_engine)
    play.backward(loss, {.retain_graph = retain});
  else
    play.run([&] { loss.backward({}, retain); });
}

void two_losses(Play& play, bool by_engine) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto output = play.model().output(batch);
    const auto first = play.model().criterion(output, batch), second = uneven(output);
    pass(play, first, by_engine, true);
    forget(play);
    pass(play, second, by_engine);
  });
}

// The first pass is counted once more.
void first_counted_twice(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto output = play.model().output(batch);
    const auto first = play.model().criterion(output, batch);
    play.backward(first, {.retain_graph = true});
    if (play.fault()) play.backward(first, {.retain_graph = true});
    play.backward(uneven(output));
  });
}

void three_losses(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto output = play.model().output(batch);
    pass(play, play.model().criterion(output, batch), true, true);
    pass(play, uneven(output), false, true);
    forget(play);
    play.run([&] { output.backward(uneven_gradient(output)); });
  });
}

void forward_forward_backward_backward(Play& play, bool by_engine) {
  each_micro_batch(play, [&](int64_t number) {
    const auto first = play.model().loss(play.batch(2 * number));
    const auto second = play.model().loss(play.batch(2 * number + 1));
    pass(play, first, by_engine);
    forget(play);
    pass(play, second, by_engine);
  });
}

void forward_backward_forward_backward(Play& play, bool by_engine) {
  each_micro_batch(play, [&](int64_t number) {
    pass(play, play.model().loss(play.batch(2 * number)), by_engine);
    forget(play);
    pass(play, play.model().loss(play.batch(2 * number + 1)), by_engine);
  });
}

void many(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    for (int64_t i = 0; i < 5; ++i) {
      if (i == 4) forget(play);
      pass(play, play.model().loss(play.batch(5 * number + i)), i % 2 == 0);
    }
  });
}

void sum_of_losses(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto first = play.model().loss(play.batch(2 * number));
    const auto second = play.model().loss(play.batch(2 * number + 1));
    play.run([&] { (play.fault() ? second : first + second).backward(); });
  });
}

void external_loss(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto output = play.model().output(batch);
    const auto certain =
        at::softmax(output.to(at::kFloat), -1).gather(1, batch.target.view({-1, 1}));
    auto loss = -(certain + 0.125).log().mean();
    if (play.fault()) loss = loss.detach() + uneven(output);
    pass(play, loss, number % 2 == 0);
  });
}

void loss_on_parameters(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    auto& model = play.model();
    pass(play, model.criterion(model.output(batch), batch), true);
    const auto penalty = model.penalty();
    if (!play.fault()) pass(play, penalty, number % 2 == 0);
  });
}

// What a user's module may return.
struct Outputs {
  std::vector<at::Tensor> hidden;
  std::map<std::string, at::Tensor> named;
};

void outputs_in_containers(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    Outputs outputs;
    outputs.hidden = {tower.below(play.batch(number).input)};
    outputs.named["top"] = tower.above(outputs.hidden[0]);
    const auto hidden = uneven(outputs.hidden[0]);
    play.backward(uneven(outputs.named["top"]) + (play.fault() ? hidden.detach() : hidden));
  });
}

void output_used_twice(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto output = tower.forward(play.batch(number).input);
    const auto again = play.fault() ? output.detach() : output;
    play.run([&] { (uneven(output) + uneven(again.tanh())).backward(); });
  });
}

// Through engine.forward and by the model's own, in one window.
void by_the_engine(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto input = play.batch(number).input;
    auto* engine = play.engine();
    const auto output = engine == nullptr ? tower.forward(input) : engine->forward(tower, input);
    play.backward(uneven(play.fault() ? output * 0.5 : output));
    const auto again = uneven(tower.forward(play.batch(number + 10).input));
    play.run([&] { again.backward(); });
  });
}

// The graph of an earlier micro-batch is differentiated again after a step off the boundary.
void graph_kept_over_a_step(Play& play) {
  auto& tower = play.as<Tower>();
  at::Tensor kept;
  each_micro_batch(play, [&](int64_t number) {
    const auto output = tower.forward(play.batch(number).input);
    if (kept.defined()) {
      forget(play);
      pass(play, uneven(kept.tanh()), false);
    }
    kept = output;
    pass(play, uneven(output), true, true);
  });
}

template <class Program>
std::function<void(Play&)> by(Program program, bool by_engine) {
  return [program, by_engine](Play& play) { program(play, by_engine); };
}

const char* const kForgets = "the window is emptied before the last pass";

}  // namespace

std::vector<Case> several_backwards() {
  return {{.section = "2",
           .name = "two_losses_on_one_forward",
           .sentence = "engine.backward twice through one forward adds",
           .fault = kForgets,
           .program = by(two_losses, true),
           .places = {.precisions = kEveryPrecision},
           .answers = {"trap 1", "misbehaviour 1", "misbehaviour 2"}},
          {.section = "2",
           .name = "two_losses_on_one_forward_plain",
           .sentence = "loss.backward() twice through one forward adds",
           .fault = kForgets,
           .program = by(two_losses, false),
           .answers = {"misbehaviour 4"}},
          {.section = "2",
           .name = "the_first_of_two_losses_counts_once",
           .sentence = "an earlier pass is not counted again",
           .fault = "the first pass is counted twice",
           .program = first_counted_twice,
           .places = {.accumulations = {1, 2}, .precisions = kEveryPrecision},
           .answers = {"misbehaviour 3"}},
          {.section = "2",
           .name = "three_losses_three_ways",
           .sentence = "three passes through one forward, each in another way, add",
           .fault = kForgets,
           .program = three_losses,
           .models = {"tower"}},
          {.section = "2",
           .name = "forward_forward_backward_backward",
           .sentence = "two forwards, then their two backwards, add",
           .fault = kForgets,
           .program = by(forward_forward_backward_backward, true),
           .places = {.precisions = kEveryPrecision},
           .answers = {"trap 2", "misbehaviour 6", "misbehaviour 7"}},
          {.section = "2",
           .name = "forward_forward_backward_backward_plain",
           .sentence = "so they do in plain torch calls",
           .fault = kForgets,
           .program = by(forward_forward_backward_backward, false)},
          {.section = "2",
           .name = "forward_backward_forward_backward",
           .sentence = "two forwards, each with its backward, add",
           .fault = kForgets,
           .program = by(forward_backward_forward_backward, true),
           .places = {.precisions = kEveryPrecision},
           .answers = {"misbehaviour 5"}},
          {.section = "2",
           .name = "forward_backward_forward_backward_plain",
           .sentence = "so they do in plain torch calls",
           .fault = kForgets,
           .program = by(forward_backward_forward_backward, false)},
          {.section = "2",
           .name = "five_backwards_a_micro_batch",
           .sentence = "any number of passes between two steps adds",
           .fault = kForgets,
           .program = many,
           .models = {"tower"},
           .places = {.accumulations = {1, 2}}}};
}

std::vector<Case> where_losses_come_from() {
  return {{.section = "2",
           .name = "sum_of_two_losses",
           .sentence = "(first + second).backward() is one pass",
           .fault = "the first is left out",
           .program = sum_of_losses},
          {.section = "2",
           .name = "external_loss",
           .sentence = "a loss computed outside of the model is right",
           .fault = "another loss is differentiated",
           .program = external_loss},
          {.section = "2",
           .name = "loss_on_parameters",
           .sentence = "a loss straight on the parameters is a pass like another",
           .fault = "the penalty is left out",
           .program = loss_on_parameters},
          {.section = "2",
           .name = "outputs_in_containers",
           .sentence = "outputs may come in any type",
           .fault = "one output is detached",
           .program = outputs_in_containers,
           .models = {"tower"}},
          {.section = "2",
           .name = "output_used_twice",
           .sentence = "an output that two losses use counts for both",
           .fault = "one use is detached",
           .program = output_used_twice,
           .models = {"tower"}},
          {.section = "2",
           .name = "through_engine_forward",
           .sentence = "a model may be called through the engine and directly",
           .fault = "one output is halved",
           .program = by_the_engine,
           .models = {"tower"}},
          {.section = "2",
           .name = "graph_kept_over_a_step",
           .sentence = "a retained graph is still right after a step",
           .fault = kForgets,
           .program = graph_kept_over_a_step,
           .models = {"tower"},
           .places = {.accumulations = {3, 2}}}};
}

}  // namespace equigrad::conformance::contract
