// 7. zero_grad cancels the window; nothing but backward passes reaches it; nothing is global.
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {
namespace {

void zero_grad_in_the_middle(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    play.backward(play.model().loss(play.batch(number)));
    if (number == play.context().accumulation / 2 && !play.fault()) play.zero_grad();
    const auto again = play.model().loss(play.batch(number + 10));
    play.run([&] { again.backward(); });
  });
}

void zero_grad_before_the_boundary(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    play.backward(play.model().loss(play.batch(number)));
    const bool cancel = play.context().window == 1 && number + 1 == play.context().accumulation;
    if (cancel && !play.fault()) play.zero_grad();
  });
}

void zero_grad_after_the_boundary(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = play.model().loss(play.batch(number));
    play.backward(play.fault() ? loss * 0.5 : loss);
  });
  play.zero_grad();
}

void forward_without_gradients(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    play.backward(play.model().loss(play.batch(number)));
    if (play.fault()) play.backward(play.model().loss(play.batch(number + 10)));
    const at::NoGradGuard no_grad;
    play.see("output without gradients", play.model().output(play.batch(number + 10)));
  });
}

void gradient_of_an_input(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto input = play.batch(number).input.requires_grad_();
    const auto loss = uneven(tower.forward(input));
    play.see("gradient of the input", torch::autograd::grad({loss}, {input}, {}, true)[0]);
    if (play.fault()) play.backward(loss, {.retain_graph = true});
    play.backward(loss);
  });
}

void gradient_of_a_parameter(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = uneven(tower.forward(play.batch(number).input));
    const auto got = torch::autograd::grad({loss}, {tower.first->weight}, {}, true)[0];
    play.see("gradient of a parameter", play.fault() ? got * 2 : got);
    play.run([&] { loss.backward(); });
  });
}

void siamese(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto left = tower.forward(play.batch(2 * number).input);
    const auto right = tower.forward(play.batch(2 * number + 1).input);
    const auto distance = left - (play.fault() ? right.detach() : right);
    play.backward(uneven(distance));
  });
}

void itself_again(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto once = tower.forward(play.batch(number).input);
    play.backward(uneven(tower.forward(play.fault() ? once.detach() : once)));
  });
}

// A model without an engine is trained by torch beside the engine's, as if there were none.
void plain_model_beside(Play& play) {
  const auto plain = make_contract_model("tower", 99);
  plain->to(play.context().dtype());
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto of_plain = plain->loss(play.fault() ? play.batch(number + 10) : batch);
    of_plain.backward();
    play.backward(play.model().loss(batch));
    plain->loss(batch).backward();
    for (const auto& item : plain->named_parameters())
      play.see("gradient of the plain model", item.value().grad());
  });
}

// Whoever reads .grad of a parameter between two passes finds none, so none is added twice.
void grad_is_not_kept(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    play.backward(uneven(tower.forward(play.batch(number).input)));
    const bool kept = tower.first->weight.grad().defined();
    play.check(".grad is undefined between passes", play.fault() ? kept : !kept);
  });
}

}  // namespace

std::vector<Case> zero_grad() {
  return {{.section = "7",
           .name = "zero_grad_in_the_window",
           .sentence = "zero_grad() forgets the passes before it only",
           .fault = "zero_grad() does nothing",
           .program = zero_grad_in_the_middle,
           .answers = {"trap 15"}},
          {.section = "7",
           .name = "zero_grad_before_the_boundary",
           .sentence = "a step over an emptied window changes nothing",
           .fault = "zero_grad() does nothing",
           .program = zero_grad_before_the_boundary,
           .places = {.precisions = kEveryPrecision},
           .windows = 3,
           .answers = {"trap 15"}},
          {.section = "7",
           .name = "zero_grad_after_the_boundary",
           .sentence = "zero_grad() after a step is harmless",
           .fault = "the loss is halved",
           .program = zero_grad_after_the_boundary}};
}

std::vector<Case> beside_the_window() {
  return {{.section = "7",
           .name = "forward_without_gradients",
           .sentence = "a forward between backward and step is harmless",
           .fault = "it is differentiated",
           .program = forward_without_gradients,
           .places = {.precisions = kEveryPrecision},
           .answers = {"trap 20"}},
          {.section = "7",
           .name = "gradient_of_an_input",
           .sentence = "autograd::grad of an input is torch's and adds nothing",
           .fault = "it adds to the window",
           .program = gradient_of_an_input,
           .models = {"tower"}},
          {.section = "7",
           .name = "gradient_of_a_parameter",
           .sentence = "autograd::grad of a parameter is, too",
           .fault = "twice the gradient is seen",
           .program = gradient_of_a_parameter,
           .models = {"tower"}},
          {.section = "7",
           .name = "siamese",
           .sentence = "one engine used twice side by side in one graph is right",
           .fault = "one use is detached",
           .program = siamese,
           .models = {"tower"},
           .places = {.precisions = kEveryPrecision}},
          {.section = "7",
           .name = "engine_of_itself",
           .sentence = "e(e(x)) is right",
           .fault = "the inner use is detached",
           .program = itself_again,
           .models = {"tower"},
           .places = {.precisions = kEveryPrecision}},
          {.section = "7",
           .name = "plain_model_beside",
           .sentence = "a plain model in the process keeps its bits",
           .fault = "it is given another batch",
           .program = plain_model_beside,
           .answers = {"trap 18"}},
          {.section = "7",
           .name = "grad_is_undefined_between_passes",
           .sentence = ".grad never holds a local or stale value",
           .fault = "it is expected to",
           .program = grad_is_not_kept,
           .models = {"tower"},
           .answers = {"trap 13"}}};
}

}  // namespace equigrad::conformance::contract
