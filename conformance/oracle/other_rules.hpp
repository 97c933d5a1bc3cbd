// OtherRules: what the rules by which others compare gradients and losses would have said of the
// same tensors.
//
//   relative Frobenius   |got - want|_F / |want|_F > 8.3 %
//   calc_diff            1 - 2<got, want> / (<got, got> + <want, want>) > 1e-3, in fp64
//   torch's defaults     |got - want| > absolute + relative |want| for any element, both by default
//                        of torch.testing.assert_close for the dtype
//   loss curve           |loss - twin's| / |twin's| > 1 % in any micro-batch
//
// Invariants: they only watch: nothing here has a say in a verdict. Equal bits raise none; a NaN on
// one side raises all that look at it, and so do tensors of different shapes.
// Shapes: any.
// Dtypes: torch takes the wider tolerances of the two dtypes.
// Units: none.   Errors: none.   Depends on: ATen, nlohmann-json. Defaults of assert_close:
// torch/testing/_comparison.py of torch 2.11.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <nlohmann/json.hpp>

namespace equigrad::conformance::oracle {

double relative_frobenius(const at::Tensor& got, const at::Tensor& want);
double calc_diff(const at::Tensor& got, const at::Tensor& want);
bool holds_by_torch_defaults(const at::Tensor& got, const at::Tensor& want);

class OtherRules {
 public:
  void see_tensor(const at::Tensor& got, const at::Tensor& want);
  void see_loss(double got, double want);
  bool frobenius() const { return raised_[0]; }
  bool calc_diff() const { return raised_[1]; }
  bool torch_defaults() const { return raised_[2]; }
  bool loss() const { return raised_[3]; }
  nlohmann::json to_json() const { return raised_; }  // in this order

 private:
  std::array<bool, 4> raised_{};
};

}  // namespace equigrad::conformance::oracle
