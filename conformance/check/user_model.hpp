// UserModel: a model and its passes as their user gives them, and what a pass depends on.
//
//   user_model([] { return std::make_shared<MyModel>(); },
//              [](MyModel& model, const Which& which) { return loss_of(model, which); })
//
// Invariants: what is given crosses between libraries that were built apart: nothing here needs
// more than torch.
// Shapes: a loss has one element; a gradient has its output's shape.
// Units: steps, ranks and micro-batches count from 0.   Errors: those of the model.
// Depends on: torch::nn::Module.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace equigrad {

// Which pass it is: what a batch depends on.
struct Which {
  int step = 0;
  int rank = 0;
  int micro_batch = 0;
  int world = 1;
  at::ScalarType dtype = at::kFloat;  // that the parameters have
  uint64_t seed = 0;                  // of every generator
  at::Device device = at::kCPU;       // where the parameters are

  // On `device`; floats in `dtype`, everything else in its own.
  at::Tensor cast(const at::Tensor& tensor) const {
    return tensor.to(device, tensor.is_floating_point() ? dtype : tensor.scalar_type());
  }
};

namespace conformance {

struct UserModel {
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  // (loss, undefined), or (output, gradient).
  std::function<std::pair<at::Tensor, at::Tensor>(torch::nn::Module& module, const Which& which)>
      pass;
};

template <class Made>
auto module_of(Made made) {
  if constexpr (requires { made.ptr(); })
    return made.ptr();  // a torch::nn::ModuleHolder
  else
    return made;
}

// `factory` gives a std::shared_ptr (or holder) of a torch::nn::Module; `loss` takes (Module&,
// const Which&) and gives a loss, or std::pair(output, gradient).
template <class Factory, class Loss>
UserModel user_model(Factory factory, Loss loss) {
  using Module = typename decltype(module_of(factory()))::element_type;
  return {[factory] { return module_of(factory()); },
          [loss](torch::nn::Module& any, const Which& which) -> std::pair<at::Tensor, at::Tensor> {
            auto forward = loss(static_cast<Module&>(any), which);
            if constexpr (requires { forward.first; })
              return forward;
            else
              return {std::move(forward), at::Tensor()};
          }};
}

}  // namespace conformance
}  // namespace equigrad
