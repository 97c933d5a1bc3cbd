// 2. Activation checkpointing in both ways, and graphs of gradients.
#include <torch/torch.h>

#include "conformance/contract/models.hpp"
#include "conformance/contract/programs.hpp"

namespace equigrad::conformance::contract {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using Block = std::function<at::Tensor(const at::Tensor&)>;

struct Kept : torch::CustomClassHolder {
  Block block;
  explicit Kept(Block of) : block(std::move(of)) {}
};

at::Tensor forward_only(AutogradContext* context, const Block& block, const Variable& x) {
  context->saved_data["block"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(block));
  const at::NoGradGuard no_grad;
  return block(x);
}

const Block& block_of(AutogradContext* context) {
  auto capsule = context->saved_data["block"].toCapsule();
  return static_cast<Kept*>(capsule.get())->block;
}

// Runs the block again in the backward, which differentiates it by a backward of its own.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static Variable forward(AutogradContext* context, const Block& block, const Variable& x) {
    context->save_for_backward({x});
    return forward_only(context, block, x);
  }
  static torch::autograd::tensor_list backward(AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const torch::AutoGradMode with_grad(true);
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    block_of(context)(x).backward(gradients[0]);
    return {at::Tensor(), x.grad()};
  }
};

// The same by autograd::grad: the parameters' gradients leave through the outer pass.
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
  return {
      Case{"2", "checkpointing", "activations computed again in the backward change nothing",
           "what was checkpointed counts another value", plain}
          .on({"tower"}),
      Case{"2", "reentrant_checkpointing", "a backward inside of a backward changes nothing",
           "what was checkpointed is halved", reentrant}
          .on({"tower"}),
      Case{"2", "reentrant_checkpointing_of_reused_parameters",
           "parts of one pass that come to a parameter one by one are all added",
           "one use is detached", reentrant_and_reused}
          .on({"tower"}),
      Case{"2", "hessian_vector_product", "gradients of gradients are torch's and leave no trace",
           "the product's graph is differentiated into the window", hessian_vector_product}
          .on({"tower"}),
      Case{"2", "create_graph", "a pass that keeps its own graph adds like another",
           "the window is emptied after it", create_graph}
          .on({"tower"})};
}

}  // namespace equigrad::conformance::contract
