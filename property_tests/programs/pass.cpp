#include "property_tests/programs/pass.hpp"

#include <torch/csrc/autograd/autograd.h>

#include <limits>

namespace equigrad::property_tests::programs {

PassOptions pass_options(const json& call, const json& setting, int rank) {
  return {.style = call.at("style"),
          .retain = call.value("retain", false),
          .scale_wrt_gas = call.value("scale_wrt_gas", true),
          .infinite = rank == 0 && call.value("infinite", false),
          .engine = call.value("engine", std::size_t{0}),
          .fp16 = setting.at("precision") == 2};
}

at::Tensor differentiate(const Roots& roots, const PassOptions& options, Engine* engine) {
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
