// 1. Four ways into a backward pass, at every stage and precision; same data, same bits.
#include <ATen/ATen.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {

at::Tensor uneven_gradient(const at::Tensor& output) {
  const auto steps = at::arange(1, output.numel() + 1, at::TensorOptions(at::kFloat));
  return (steps.view(output.sizes()) / 16 - 0.5).to(output.scalar_type());
}

at::Tensor uneven(const at::Tensor& output) {
  const auto wide = output.to(at::kFloat);
  return (wide.square() * uneven_gradient(wide)).mean();
}

namespace {

enum class Way { Engine, Scale, Loss, Tensor };

// The fault of all four: what is differentiated is halved.
at::Tensor halved_by_fault(const Play& play, const at::Tensor& value) {
  return play.fault() ? value * 0.5 : value;
}

void one_pass(Play& play, Way way, int64_t number) {
  const auto batch = play.batch(number);
  auto& model = play.model();
  if (way == Way::Tensor) {
    const auto output = model.output(batch);
    const auto leaf = output.detach().requires_grad_();
    const auto loss = halved_by_fault(play, model.criterion(leaf, batch));
    loss.backward();
    play.see("loss", loss);
    return play.run([&] { output.backward(leaf.grad()); });
  }
  const auto loss = halved_by_fault(play, model.loss(batch));
  play.see("loss", loss);
  if (way == Way::Engine) play.backward(loss);
  if (way == Way::Scale) play.run([&] { play.scale(loss).backward(); });
  if (way == Way::Loss) play.run([&] { loss.backward(); });
}

Case way(const std::string& name, const std::string& sentence, Way by) {
  return {.section = "1",
          .name = name,
          .sentence = sentence,
          .fault = "what is differentiated is halved",
          .program = [by](Play& play) {
            each_micro_batch(play, [&](int64_t number) { one_pass(play, by, number); });
          }};
}

void mixed(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    one_pass(play, static_cast<Way>((number + play.context().window) % 4), number);
  });
}

void non_scalar(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto output = play.model().output(play.batch(number));
    const auto gradient = play.fault() ? at::ones_like(output) : uneven_gradient(output);
    play.run([&] { output.backward(gradient); });
  });
}

void scaled_non_scalar(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto output = play.model().output(play.batch(number));
    const auto gradient = play.fault() ? at::ones_like(output) : uneven_gradient(output);
    play.run([&] { play.scale(output).backward(gradient); });
  });
}

void refuses_non_scalar(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto output = play.model().output(play.batch(number));
    play.refuse("expected a scalar loss, got shape [3, 5]", [&] {
      play.backward(play.fault() ? uneven(output) : output, {.retain_graph = true});
    });
    play.run([&] { output.backward(uneven_gradient(output)); });
  });
}

}  // namespace

std::vector<Case> ways_in() {
  auto engine =
      way("engine_backward", "engine.backward(loss) is right at every stage", Way::Engine);
  auto scale =
      way("scale_backward", "engine.scale(loss).backward() is right at every stage", Way::Scale);
  auto plain = way("loss_backward", "loss.backward() is right at every stage", Way::Loss);
  engine.places.precisions = scale.places.precisions = kEveryPrecision;
  plain.answers = {"trap 9"};
  return {engine,
          scale,
          plain,
          way("tensor_backward", "output.backward(gradient) is right at every stage", Way::Tensor),
          {.section = "1",
           .name = "four_ways_in_one_window",
           .sentence = "a window may mix the four ways",
           .fault = "what is differentiated is halved",
           .program = mixed,
           .places = {.accumulations = {4}}},
          {.section = "1",
           .name = "non_scalar_output",
           .sentence = "output.backward(gradient) takes any gradient, element by element",
           .fault = "the gradient is all ones",
           .program = non_scalar},
          {.section = "1",
           .name = "scaled_non_scalar_output",
           .sentence = "engine.scale takes tensors that are no scalars",
           .fault = "the gradient is all ones",
           .program = scaled_non_scalar},
          {.section = "1",
           .name = "backward_of_a_non_scalar_is_refused",
           .sentence = "engine.backward of a tensor that is no scalar is an error with a way out",
           .fault = "a scalar is handed in, and counts",
           .program = refuses_non_scalar}};
}

}  // namespace equigrad::conformance::contract
