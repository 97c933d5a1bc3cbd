// 3. 1/accumulation: one factor, after the reduction, whatever the outputs look like.
#include <ATen/ATen.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {
namespace {

// Terms of an intermediate activation and of the parameters beside that of the output.
void auxiliary_terms(Play& play) {
  auto& tower = play.as<Tower>();
  const auto times = static_cast<double>(play.fault() ? play.context().accumulation : 1);
  each_micro_batch(play, [&](int64_t number) {
    const auto hidden = tower.below(play.batch(number).input);
    const auto auxiliary = uneven(hidden) + uneven(tower.second->weight);
    play.backward(uneven(tower.above(hidden)) + auxiliary * times);
  });
}

// A module that returns (h, g(h)), and the loss is on the second only.
void loss_on_the_last_output(Play& play) {
  auto& tower = play.as<Tower>();
  const auto times = 1.0 / static_cast<double>(play.fault() ? play.context().accumulation : 1);
  each_micro_batch(play, [&](int64_t number) {
    const auto hidden = tower.below(play.batch(number).input);
    const std::pair<at::Tensor, at::Tensor> outputs = {hidden, tower.above(hidden * times)};
    play.run([&] { uneven(outputs.second).backward(); });
  });
}

void output_listed_twice(Play& play) {
  auto& tower = play.as<Tower>();
  const auto times = 1.0 / static_cast<double>(play.fault() ? play.context().accumulation : 1);
  each_micro_batch(play, [&](int64_t number) {
    const auto output = tower.forward(play.batch(number).input);
    const std::vector<at::Tensor> outputs = {output, output};
    play.backward((uneven(outputs[0]) + uneven(outputs[1].tanh())) * times);
  });
}

void undivided_for_one_call(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = play.model().loss(play.batch(number));
    const bool divided = number != 0 && !play.fault();
    if (number == 1 && !play.fault()) return play.run([&] { loss.backward(); });
    play.see("returned", play.backward(loss, {.scale_wrt_gas = divided}));
  });
}

void returned_value(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = play.model().loss(play.batch(number));
    const auto returned = play.backward(loss);
    play.see("returned", play.fault() ? loss : returned);
  });
}

}  // namespace

std::vector<Case> accumulation() {
  return {
      Case{"3", "auxiliary_terms_are_divided", "terms beside the output are divided too",
           "terms beside the output are not divided", auxiliary_terms}
          .in_every_precision()
          .on({"tower"})
          .accumulation({3, 4})
          .answering({"trap 5"}),
      Case{"3", "loss_on_the_last_output", "a loss on one of several outputs is divided once",
           "what lies before the other output is divided twice", loss_on_the_last_output}
          .on({"tower"})
          .accumulation({3, 4}),
      Case{"3", "output_listed_twice", "an output that is listed twice is divided once",
           "it is divided twice", output_listed_twice}
          .in_every_precision()
          .on({"tower"})
          .accumulation({3, 4}),
      Case{"3", "scale_wrt_gas_false_for_one_call", "scale_wrt_gas = false holds for its call only",
           "it holds for the rest of the window", undivided_for_one_call}
          .accumulation({3, 2})
          .answering({"trap 6"}),
      Case{"3", "backward_returns_the_divided_loss", "engine.backward returns loss / accumulation",
           "it returns the loss", returned_value}
          .in_every_precision()
          .accumulation({3, 2})};
}

}  // namespace equigrad::conformance::contract
