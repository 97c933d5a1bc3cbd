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
  return {{.section = "3",
           .name = "auxiliary_terms_are_divided",
           .sentence = "terms beside the output are divided too",
           .fault = "terms beside the output are not divided",
           .program = auxiliary_terms,
           .models = {"tower"},
           .places = {.accumulations = {3, 4}, .precisions = kEveryPrecision},
           .answers = {"trap 5"}},
          {.section = "3",
           .name = "loss_on_the_last_output",
           .sentence = "a loss on one of several outputs is divided once",
           .fault = "what lies before the other output is divided twice",
           .program = loss_on_the_last_output,
           .models = {"tower"},
           .places = {.accumulations = {3, 4}}},
          {.section = "3",
           .name = "output_listed_twice",
           .sentence = "an output that is listed twice is divided once",
           .fault = "it is divided twice",
           .program = output_listed_twice,
           .models = {"tower"},
           .places = {.accumulations = {3, 4}, .precisions = kEveryPrecision}},
          {.section = "3",
           .name = "scale_wrt_gas_false_for_one_call",
           .sentence = "scale_wrt_gas = false holds for its call only",
           .fault = "it holds for the rest of the window",
           .program = undivided_for_one_call,
           .places = {.accumulations = {3, 2}},
           .answers = {"trap 6"}},
          {.section = "3",
           .name = "backward_returns_the_divided_loss",
           .sentence = "engine.backward returns loss / accumulation",
           .fault = "it returns the loss",
           .program = returned_value,
           .places = {.accumulations = {3, 2}, .precisions = kEveryPrecision}}};
}

}  // namespace equigrad::conformance::contract
