// Autocast: a forward under torch's automatic casting on a device, and whose weights it rounds.
//
// Invariants: while a guard of a spec lives, operators of torch's lower-precision list compute in
//   its dtype, and each fp32 leaf is cast once. No cast outlives the guard, none from before is
//   used, and the settings of before come back however the scope is left. A guard without a spec
//   does nothing. A backward pass belongs outside of the guard.
// Errors: c10::Error for a module class that is not known.
// Depends on: precision.hpp; ATen's autocast; torch::nn.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reference/precision.hpp"

namespace equigrad::reference {

class AutocastGuard {
 public:
  AutocastGuard(const std::optional<AutocastSpec>& spec, at::DeviceType device);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;

 private:
  const at::DeviceType device_;
  const bool active_, enabled_before_;
  const at::ScalarType dtype_before_;
};

// What modules of exactly these classes ("Linear": torch::nn::LinearImpl) hold themselves. A
// tensor with several owners counts if all of them are such. By the address of its TensorImpl.
std::set<const void*> safe_parameters(const torch::nn::Module& model,
                                      const std::vector<std::string>& classes);

}  // namespace equigrad::reference
