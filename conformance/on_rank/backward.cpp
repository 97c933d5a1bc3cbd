#include "conformance/on_rank/backward.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <string>

namespace equigrad::conformance {
namespace {

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The output's gradient is computed apart from the graph, as by a criterion of somebody else's.
at::Tensor tensor_backward(Engine& engine, reference::Model& model, const reference::Batch& batch,
                           bool is_scaled) {
  auto guard = engine.autocast();
  const auto output = model.output(batch);
  auto leaf = output.detach();
  if (is_scaled) leaf = leaf.to(at::kFloat);
  leaf.requires_grad_();
  auto loss = model.criterion(leaf, batch);
  const auto penalty = model.penalty();
  guard.reset();
  loss.backward();
  if (penalty.defined()) {
    torch::autograd::backward({engine.scale(output), engine.scale(penalty)},
                              {leaf.grad(), at::Tensor()});
    loss = loss + penalty;
  } else {
    engine.scale(output).backward(leaf.grad());
  }
  return loss;
}

}  // namespace

void require_refusal(const at::Tensor& loss) {
  std::string text;
  try {
    loss.backward({}, /*retain_graph=*/true);
  } catch (const Error& error) {
    text = error.what();
  }
  if (text.empty()) throw RefusalMissing("loss.backward() without the loss scale was not refused");
  if (!holds(text, "backward(loss)") || !holds(text, "scale(loss)"))
    throw RefusalMissing("the refusal of loss.backward() does not name both right ways: " + text);
}

at::Tensor rank_backward(Engine& engine, reference::Model& model, const reference::Batch& batch,
                         const CaseSpec& spec) {
  const bool is_scaled = scaling_of(spec.precision) != Scaling::None;
  if (spec.style == Style::TensorBackward)
    return tensor_backward(engine, model, batch, is_scaled).detach();
  auto guard = engine.autocast();
  const auto loss = model.loss(batch);
  guard.reset();
  if (spec.style == Style::EngineBackward) engine.backward(loss);
  if (spec.style == Style::ScaleBackward) engine.scale(loss).backward();
  if (spec.style == Style::LossBackward && is_scaled) {
    require_refusal(loss);
    torch::autograd::backward({engine.scale(loss)});
  } else if (spec.style == Style::LossBackward) {
    loss.backward();
  }
  return loss.detach();
}

}  // namespace equigrad::conformance
