// OtherNumbers: what a loss, a norm or a loss scale that differs may be instead of the right one.
//
// Invariants: the right number is not among them. A prediction's roundings count in the ulp of
// norm_type or loss_type; of a scale there are none.
// Shapes: one element each, fp64.   Units: steps count from 0.   Errors: those of the reference.
// Depends on: diagnosis.hpp, rerun.hpp, diagnosis/explain.hpp (the values).
#pragma once

#include <vector>

#include "conformance/diagnosis/diagnosis.hpp"
#include "conformance/diagnosis/explain.hpp"
#include "conformance/diagnosis/rerun.hpp"

namespace equigrad::conformance {

// The factor that clipping multiplies by; 1: it does not act.
double clip_factor(double norm, double threshold);

// In which a norm can be predicted from the twin's gradients: fp64 where they are not clipped, else
// the type that clipping rounded them to.
at::ScalarType norm_type(const DiagnosisInput& input, int step);
// The narrowest type that holds both losses: one in bf16 has 8 bits to be told by, whatever it is
// kept in.
at::ScalarType loss_type(const at::Tensor& got, const at::Tensor& want);

// What may have been measured instead of the whole gradient.
std::vector<oracle::Prediction> other_norms(const DiagnosisInput& input, int step);
// Other losses of the run, and those of other weights.
std::vector<oracle::Prediction> other_losses(const DiagnosisInput& input, const Site& pass,
                                             Rerun& rerun);
std::vector<oracle::Prediction> other_scales(const DiagnosisInput& input, const Site& site);

}  // namespace equigrad::conformance
