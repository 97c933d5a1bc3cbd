// Pass: one backward pass in one of the four styles, the engine's or plain torch's.
//
// Invariants: a player that has no engine makes the same torch calls in the same order.
// Shapes: losses are scalars.   Units: styles 0 engine.backward, 1 scale, 2 loss.backward, 3
// output.backward(gradient); in fp16 the last two are of scaled tensors.
// Errors: what the backward throws.
// Depends on: network.hpp, engine/engine.hpp.
#pragma once

#include <torch/csrc/autograd/autograd.h>

#include <cstddef>
#include <limits>
#include <vector>

#include "engine/engine.hpp"
#include "property_tests/programs/network.hpp"

namespace equigrad::property_tests::programs {

using Roots = std::vector<Kept>;

struct PassOptions {
  int style = 0;
  bool retain = false, scale_wrt_gas = true;
  bool infinite = false;
  std::size_t engine = 0;  // whose backward or scale is called
  bool fp16 = false;       // every pass is scaled
  double scale = 1;        // by this much where there is no engine
};

inline PassOptions pass_options(const json& call, const json& setting, int rank) {
  return {call.at("style"),
          call.value("retain", false),
          call.value("scale_wrt_gas", true),
          rank == 0 && call.value("infinite", false),
          call.value("engine", std::size_t{0}),
          setting.at("precision") == 2};
}

// What engine.backward returns; of plain torch, the loss itself.
inline at::Tensor differentiate(const Roots& roots, const PassOptions& options, Engine* engine) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto scaled = [&](const at::Tensor& tensor) {
    if (engine != nullptr) return engine->scale(tensor);
    return options.fp16 ? tensor.to(at::kFloat) * options.scale : tensor;
  };
  if (options.style == 3) {
    std::vector<at::Tensor> outputs, gradients;
    for (const auto& root : roots)
      for (const auto& output : root.outputs) {
        outputs.push_back(options.fp16 ? scaled(output) : output);
        gradients.push_back(gradient_for(output, options.fp16));
        if (options.infinite) gradients.back() = gradients.back() * infinity;
      }
    torch::autograd::backward(outputs, gradients, options.retain);
    return {};
  }
  at::Tensor loss = roots[0].loss;
  for (std::size_t i = 1; i < roots.size(); ++i) loss = loss + roots[i].loss;
  if (options.infinite) loss = loss * infinity;
  if (engine != nullptr && options.style == 0)
    return engine->backward(loss, options.retain, options.scale_wrt_gas).detach();
  (options.style == 2 && !options.fp16 ? loss : scaled(loss)).backward({}, options.retain);
  return loss.detach();
}

}  // namespace equigrad::property_tests::programs
