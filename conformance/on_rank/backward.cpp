#include "conformance/on_rank/backward.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <string>

namespace equigrad::conformance {
namespace {

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Calls that an engine sees, each judged.
struct Calls {
  Engine& engine;
  CallerWatch& caller;

  template <class Forward>
  auto forward(const Forward& run) {
    return caller.around("a forward pass and its autocast()", {}, [&] {
      auto guard =
          caller.around("autocast()", {Share::Autocast}, [&] { return engine.autocast(); });
      auto result = caller.around("a forward pass", {}, run);
      caller.around("the end of autocast()", {Share::Autocast}, [&] { guard.reset(); });
      return result;
    });
  }
  at::Tensor scale(const at::Tensor& tensor) {
    return caller.around("scale()", {}, [&] { return engine.scale(tensor); });
  }
  template <class Backward>
  void backward(const Backward& run) {
    caller.around("a backward pass", {}, run);
  }
};

// What an output gives, and its gradient.
struct Graph {
  at::Tensor output, leaf, loss, penalty;
};

// The output's gradient is computed apart from the graph, as by a criterion of somebody else's.
at::Tensor tensor_backward(Calls calls, reference::Model& model, const reference::Batch& batch,
                           bool is_scaled) {
  const auto graph = calls.forward([&] {
    Graph one;
    one.output = model.output(batch);
    one.leaf = one.output.detach();
    if (is_scaled) one.leaf = one.leaf.to(at::kFloat);
    one.leaf.requires_grad_();
    one.loss = model.criterion(one.leaf, batch);
    one.penalty = model.penalty();
    return one;
  });
  graph.loss.backward();
  if (!graph.penalty.defined()) {
    const auto scaled = calls.scale(graph.output);
    calls.backward([&] { scaled.backward(graph.leaf.grad()); });
    return graph.loss;
  }
  const auto output = calls.scale(graph.output), penalty = calls.scale(graph.penalty);
  calls.backward([&] {
    torch::autograd::backward({output, penalty}, {graph.leaf.grad(), at::Tensor()});
  });
  return graph.loss + graph.penalty;
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
                         const CaseSpec& spec, CallerWatch& caller) {
  const bool is_scaled = scaling_of(spec.precision) != Scaling::None;
  Calls calls{engine, caller};
  if (spec.style == Style::TensorBackward)
    return tensor_backward(calls, model, batch, is_scaled).detach();
  const auto loss = calls.forward([&] { return model.loss(batch); });
  if (spec.style == Style::EngineBackward) {
    caller.around("backward()", {}, [&] { engine.backward(loss); });
  } else if (spec.style == Style::ScaleBackward) {
    const auto scaled = calls.scale(loss);
    calls.backward([&] { scaled.backward(); });
  } else if (is_scaled) {
    caller.around("the refused loss.backward()", {}, [&] { require_refusal(loss); });
    const auto scaled = calls.scale(loss);
    calls.backward([&] { torch::autograd::backward({scaled}); });
  } else {
    calls.backward([&] { loss.backward(); });
  }
  return loss.detach();
}

at::Tensor rank_backward(Engine& engine, reference::Model& model, const reference::Batch& batch,
                         const CaseSpec& spec) {
  LaneTally nobody;
  CallerWatch caller(nobody);
  return rank_backward(engine, model, batch, spec, caller);
}

}  // namespace equigrad::conformance
