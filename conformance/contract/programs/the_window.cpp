// 7. zero_grad cancels the window; nothing but backward passes reaches it; nothing is global.
#include <torch/torch.h>

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

std::vector<Case> the_window() {
  return {
      Case{"7", "zero_grad_in_the_window", "zero_grad() forgets the passes before it only",
           "zero_grad() does nothing", zero_grad_in_the_middle}
          .answering({"trap 15"}),
      Case{"7", "zero_grad_before_the_boundary", "a step over an emptied window changes nothing",
           "zero_grad() does nothing", zero_grad_before_the_boundary}
          .in_every_precision()
          .lasting(3)
          .answering({"trap 15"}),
      Case{"7", "zero_grad_after_the_boundary", "zero_grad() after a step is harmless",
           "the loss is halved", zero_grad_after_the_boundary},
      Case{"7", "forward_without_gradients", "a forward between backward and step is harmless",
           "it is differentiated", forward_without_gradients}
          .in_every_precision()
          .answering({"trap 20"}),
      Case{"7", "gradient_of_an_input", "autograd::grad of an input is torch's and adds nothing",
           "it adds to the window", gradient_of_an_input}
          .on({"tower"}),
      Case{"7", "gradient_of_a_parameter", "autograd::grad of a parameter is, too",
           "twice the gradient is seen", gradient_of_a_parameter}
          .on({"tower"}),
      Case{"7", "siamese", "one engine used twice side by side in one graph is right",
           "one use is detached", siamese}
          .in_every_precision()
          .on({"tower"}),
      Case{"7", "engine_of_itself", "e(e(x)) is right", "the inner use is detached", itself_again}
          .in_every_precision()
          .on({"tower"}),
      Case{"7", "plain_model_beside", "a plain model in the process keeps its bits",
           "it is given another batch", plain_model_beside}
          .answering({"trap 18"}),
      Case{"7", "grad_is_undefined_between_passes", ".grad never holds a local or stale value",
           "it is expected to", grad_is_not_kept}
          .on({"tower"})
          .answering({"trap 13"})};
}

}  // namespace equigrad::conformance::contract
