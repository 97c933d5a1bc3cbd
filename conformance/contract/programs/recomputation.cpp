// 2. Activation checkpointing in both ways, and graphs of gradients.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/players/reentrant.hpp"
#include "conformance/contract/programs/programs.hpp"

namespace equigrad::conformance::contract {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
// Reentrant by autograd::grad: the parameters' gradients leave through the outer pass.
struct Plain : torch::autograd::Function<Plain> {
  static Variable forward(AutogradContext* context, const Block& block, const Variable& x,
                          const Variable& weight, const Variable& bias) {
    context->save_for_backward({x, weight, bias});
    return forward_only(context, block, x);
  }
  static torch::autograd::tensor_list backward(AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const torch::AutoGradMode with_grad(true);
    const auto saved = context->get_saved_variables();
    const auto x = saved[0].detach().requires_grad_();
    const auto got =
        torch::autograd::grad({block_of(context)(x)}, {x, saved[1], saved[2]}, {gradients[0]});
    return {at::Tensor(), got[0], got[1], got[2]};
  }
};

Block above_of(Tower& tower) {
  return [&tower](const at::Tensor& x) { return tower.above(x); };
}

void plain(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto hidden = tower.below(play.batch(number).input);
    const auto output =
        Plain::apply(above_of(tower), hidden, tower.second->weight, tower.second->bias);
    play.backward(uneven(play.fault() ? output + tower.above(hidden).detach() : output));
  });
}

void reentrant(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto hidden = tower.below(play.batch(number).input);
    const auto output = Reentrant::apply(above_of(tower), hidden);
    const auto loss = uneven(play.fault() ? output * 0.5 : output);
    if (number % 2 == 0)
      play.backward(loss);
    else
      play.run([&] { loss.backward(); });
  });
}

// What is checkpointed is used outside of the checkpoint too, and in another checkpoint.
void reentrant_and_reused(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto hidden = tower.below(play.batch(number).input);
    const auto once = Reentrant::apply(above_of(tower), hidden);
    const auto outside = tower.above(hidden + 0.5);
    const Block both = [&tower](const at::Tensor& x) { return tower.forward(x); };
    const auto twice = Reentrant::apply(both, once);
    play.backward(uneven(twice) + uneven(play.fault() ? outside.detach() : outside));
  });
}

void hessian_vector_product(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = uneven(tower.forward(play.batch(number).input));
    const std::vector<at::Tensor> of = {tower.first->weight, tower.second->weight};
    const auto slope = torch::autograd::grad({loss}, of, {}, true, /*create_graph=*/true);
    const auto along = (slope[0].to(at::kFloat) * uneven_gradient(slope[0]).to(at::kFloat)).sum() +
                       slope[1].to(at::kFloat).square().sum();
    const auto product = torch::autograd::grad({along}, of, {}, /*retain_graph=*/true);
    play.see("Hessian-vector product", product[0]);
    play.see("Hessian-vector product", product[1]);
    if (play.fault()) play.run([&] { along.backward({}, true); });
    play.backward(loss);
  });
}

void create_graph(Play& play) {
  auto& tower = play.as<Tower>();
  each_micro_batch(play, [&](int64_t number) {
    const auto output = tower.forward(play.batch(number).input);
    play.run([&] { uneven(output).backward({}, true, /*create_graph=*/true); });
    if (play.fault()) play.zero_grad();
    play.run([&] { uneven(output.tanh()).backward(); });
  });
}

}  // namespace

std::vector<Case> recomputation() {
  return {{.section = "2",
           .name = "checkpointing",
           .sentence = "activations computed again in the backward change nothing",
           .fault = "what was checkpointed counts another value",
           .program = plain,
           .models = {"tower"},
           .places = {.precisions = kEveryPrecision}},
          {.section = "2",
           .name = "reentrant_checkpointing",
           .sentence = "a backward inside of a backward changes nothing",
           .fault = "what was checkpointed is halved",
           .program = reentrant,
           .models = {"tower"}},
          {.section = "2",
           .name = "reentrant_checkpointing_of_reused_parameters",
           .sentence = "parts of one pass that come to a parameter one by one are all added",
           .fault = "one use is detached",
           .program = reentrant_and_reused,
           .models = {"tower"}},
          {.section = "2",
           .name = "hessian_vector_product",
           .sentence = "gradients of gradients are torch's and leave no trace",
           .fault = "the product's graph is differentiated into the window",
           .program = hessian_vector_product,
           .models = {"tower"}},
          {.section = "2",
           .name = "create_graph",
           .sentence = "a pass that keeps its own graph adds like another",
           .fault = "the window is emptied after it",
           .program = create_graph,
           .models = {"tower"}}};
}

}  // namespace equigrad::conformance::contract
