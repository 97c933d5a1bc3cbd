// Pass: one backward pass in one of the four styles, the engine's or plain torch's.
//
// Invariants: a player that has no engine makes the same torch calls in the same order.
// Shapes: losses are scalars.   Units: styles 0 engine.backward, 1 scale, 2 loss.backward, 3
// output.backward(gradient).
// Errors: what the backward throws.
// Depends on: small_model.hpp, engine/engine.hpp.
#pragma once

#include <limits>
#include <vector>

#include "engine/engine.hpp"
#include "property_tests/programs/small_model.hpp"

namespace equigrad::property_tests::programs {

using Roots = std::vector<Kept>;

struct PassOptions {
  int style = 0;
  bool retain = false, gas = true;
  bool infinite = false;
};

inline PassOptions pass_options(const json& call, int rank) {
  return {call.at("style"), call.value("retain", false), call.value("gas", true),
          rank == 0 && call.value("infinite", false)};
}

// What engine.backward returns; of plain torch, the loss itself.
inline at::Tensor differentiate(const Roots& roots, const PassOptions& options, Engine* engine) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (options.style == 3) {
    std::vector<at::Tensor> outputs, gradients;
    for (const auto& root : roots) {
      outputs.push_back(root.output);
      gradients.push_back(gradient_for(root.output));
      if (options.infinite) gradients.back() = gradients.back() * infinity;
    }
    torch::autograd::backward(outputs, gradients, options.retain);
    return {};
  }
  at::Tensor loss = roots[0].loss;
  for (std::size_t i = 1; i < roots.size(); ++i) loss = loss + roots[i].loss;
  if (options.infinite) loss = loss * infinity;
  if (engine == nullptr || options.style == 2) {
    loss.backward({}, options.retain);
    return loss.detach();
  }
  if (options.style == 0) return engine->backward(loss, options.retain, options.gas).detach();
  engine->scale(loss).backward({}, options.retain);
  return loss.detach();
}

}  // namespace equigrad::property_tests::programs
