// 6. A pass is a transaction: one that throws contributes nothing, and the engine works on.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <functional>
#include <stdexcept>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;

struct Throwing : torch::autograd::Function<Throwing> {
  static Variable forward(AutogradContext*, const Variable& x) { return x * 2; }
  static torch::autograd::tensor_list backward(AutogradContext*, torch::autograd::tensor_list) {
    throw std::runtime_error("planted in a custom backward");
  }
};

// Throws when `second` has its gradient and `first` does not.
at::Tensor midway(Tower& tower, const at::Tensor& input, bool custom) {
  auto hidden = tower.below(input);
  if (custom) return uneven(tower.above(Throwing::apply(hidden)));
  hidden.register_hook([](const at::Tensor&) -> at::Tensor {
    throw std::runtime_error("planted in a tensor hook");
  });
  return uneven(tower.above(hidden));
}

void differentiate(Play& play, const at::Tensor& loss, bool by_engine) {
  if (by_engine)
    play.backward(loss);
  else
    play.run([&] { loss.backward(); });
}

// Good, throwing, good: the window holds the two good ones.
void between_two_passes(Play& play, bool custom, bool by_engine) {
  auto& tower = play.as<Tower>();
  const std::string fragment = custom ? "planted in a custom backward" : "planted in a tensor hook";
  each_micro_batch(play, [&](int64_t number) {
    differentiate(play, uneven(tower.forward(play.batch(2 * number).input)), by_engine);
    const auto input = play.batch(2 * number + 1).input;
    play.fail(fragment, [&] { differentiate(play, midway(tower, input, custom), by_engine); });
    if (play.fault()) differentiate(play, uneven(tower.forward(input)), by_engine);
    differentiate(play, uneven(tower.forward(input).tanh()), by_engine);
  });
}

// The first pass of a window throws, and is done again.
void first_pass(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto input = play.batch(number).input;
    play.fail("planted", [&] { play.backward(midway(tower, input, number % 2 == 0)); });
    if (play.fault()) play.backward(uneven(tower.above(tower.below(input).detach())));
    play.backward(uneven(tower.forward(input)));
  });
}

// A call that threw with scale_wrt_gas = false leaves no flag behind.
void no_flag_stays(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto input = play.batch(number).input;
    play.fail("planted",
              [&] { play.backward(midway(tower, input, true), {.scale_wrt_gas = false}); });
    const auto loss = uneven(tower.forward(input));
    if (play.fault()) return (void)play.backward(loss, {.scale_wrt_gas = false});
    play.run([&] { loss.backward(); });
  });
}

// The last rank throws. Where gradients are sent in every pass the others are told within it; at
// stages 0 and 1 at the boundary, where the ranks' passes are counted, and the window is begun
// anew. In the second window the others' pass leaves a bucket open: they are told at its end.
void on_one_rank(Play& play) {
  auto& tower = play.as<Tower>();
  const auto& context = play.context();
  const int bad = context.world - 1;
  each_micro_batch(play, [&](int64_t number) {
    differentiate(play, uneven(tower.forward(play.batch(2 * number).input)), true);
    const auto input = play.batch(2 * number + 1).input;
    const bool boundary = number + 1 == context.accumulation;
    if (context.stage >= 2 || boundary) {
      const auto pass = [&] {
        const auto hidden = tower.below(input);
        play.backward(uneven(tower.above(context.window == 0 ? hidden : hidden.detach())));
      };
      if (context.rank == bad)
        play.fail("planted", [&] { play.backward(midway(tower, input, true)); });
      else if (context.stage >= 2)
        play.refuse("got an exception on rank " + std::to_string(bad), pass);
      else if (play.engine() != nullptr)
        pass();
      if (context.stage < 2) {
        play.refuse("expected every rank at the same place", [&] { play.step(); });
        play.zero_grad();
      }
    }
    const auto loss = uneven(tower.forward(input));
    play.backward(play.fault() ? loss * 0.5 : loss);
  });
}

void in_the_forward(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto input = play.batch(number).input;
    play.fail("planted in the forward", [&] {
      const auto hidden = tower.below(input);
      throw std::runtime_error("planted in the forward");
    });
    const auto loss = uneven(tower.forward(input));
    play.backward(play.fault() ? loss * 0.5 : loss);
  });
}

std::function<void(Play&)> between(bool custom, bool by_engine) {
  return [=](Play& play) { between_two_passes(play, custom, by_engine); };
}

}  // namespace

std::vector<Case> exceptions() {
  const std::string counted = "the pass that threw is done without its exception";
  return {{.section = "6",
           .name = "exception_in_a_custom_backward",
           .sentence = "a pass that throws midway leaves the window as it was",
           .fault = counted,
           .program = between(true, true),
           .models = {"tower"},
           .places = {.precisions = kEveryPrecision},
           .answers = {"trap 6"}},
          {.section = "6",
           .name = "exception_in_a_custom_backward_plain",
           .sentence = "so it does in plain torch calls",
           .fault = counted,
           .program = between(true, false),
           .models = {"tower"}},
          {.section = "6",
           .name = "exception_in_a_tensor_hook",
           .sentence = "so it does when a hook throws",
           .fault = counted,
           .program = between(false, true),
           .models = {"tower"},
           .places = {.precisions = kEveryPrecision}},
          {.section = "6",
           .name = "exception_in_a_tensor_hook_plain",
           .sentence = "so it does when a hook throws, in plain calls",
           .fault = counted,
           .program = between(false, false),
           .models = {"tower"}},
          {.section = "6",
           .name = "exception_in_the_first_pass",
           .sentence = "a window may begin with a pass that throws",
           .fault = "half of that pass counts",
           .program = first_pass,
           .models = {"tower"},
           .places = {.precisions = kEveryPrecision}},
          {.section = "6",
           .name = "exception_leaves_no_flag",
           .sentence = "scale_wrt_gas of a call that threw is forgotten",
           .fault = "it holds for the next call",
           .program = no_flag_stays,
           .models = {"tower"},
           .places = {.accumulations = {3, 2}},
           .answers = {"trap 6"}},
          {.section = "6",
           .name = "exception_on_one_rank",
           .sentence = "the others get an error that names the rank, and all of them work on",
           .fault = "the pass after it is halved",
           .program = on_one_rank,
           .models = {"tower"},
           .places = {.precisions = kEveryPrecision, .smallest_world = 2}},
          {.section = "6",
           .name = "exception_in_a_forward",
           .sentence = "a forward that throws leaves nothing behind",
           .fault = "the next loss is halved",
           .program = in_the_forward,
           .models = {"tower"},
           .places = {.precisions = kEveryPrecision}}};
}

}  // namespace equigrad::conformance::contract
