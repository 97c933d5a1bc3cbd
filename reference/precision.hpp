// Precision: what the reference computes in when it is not plain fp32 or fp64.
//
//   contribution  compute dtype (under autocast the leaf's own); the loss times the loss scale S
//   sent          t = T(x b): x a contribution (ReduceThenAdd) or a rank's window (AddThenReduce),
//                 b the factor before the sum (left out if 1), T the communication dtype; without
//                 one the autocast dtype for safe modules, else x's own
//   average       g = M(R a / S): M the masters' dtype, a the factor after the sum
//   clip          g = M(g factor)
//   update        masters, states and g widened to fp32; the rule in fp32; each stored value
//                 rounded once to its own dtype
//   model         weights = P(masters), P the compute dtype; of safe modules P(the masters in the
//                 autocast dtype)
//
//   averaging      b        a
//   AfterSum       1        1 / (accumulation_steps world)
//   BeforeSum      1/world  1 / accumulation_steps
//   Around         1/f      f / (accumulation_steps world)
//
//   where world counts the ranks of a sequence as one
//   Never          1        1 / accumulation_steps
//
// Invariants: b and a are rounded once to fp32; S is a power of two, so a / S is exact.
//   SumOrder::Fp64 knows no T and no b: its a is 1 / (accumulation_steps world), for Never
//   1 / accumulation_steps. A frozen parameter has no master and is not sent: the
//   model sees P(weight).
// Errors: none here; the stepper checks.
// Depends on: ATen's scalar types.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace equigrad::reference {

struct LossScaleSpec {
  enum class Policy { None, Static, DeepSpeed, GradScaler };
  Policy policy = Policy::None;
  double initial = 65536.0;
  int64_t window = 1000;  // steps without overflow before it grows; GradScaler's default is 2000
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double minimum = 1.0;

  bool operator==(const LossScaleSpec&) const = default;
};

struct AutocastSpec {
  at::ScalarType dtype = at::kBFloat16;
  std::vector<std::string> safe_modules{"Linear", "Conv1d", "Conv2d", "Conv3d"};
};

enum class Averaging { AfterSum, BeforeSum, Around, Never };

struct PrecisionSpec {
  at::ScalarType master_dtype = at::kFloat;  // kFloat, or the compute dtype; not read in fp64
  at::ScalarType state_dtype = at::kFloat;   // the same
  std::optional<at::ScalarType> communication_dtype;
  std::optional<AutocastSpec> autocast;
  LossScaleSpec loss_scale;
  Averaging averaging = Averaging::AfterSum;
  double predivide_factor = 1.0;  // Around
  bool infinity_norm = false;     // the largest absolute value instead of the length
};

}  // namespace equigrad::reference
