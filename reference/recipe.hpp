// Recipe: everything that a run of the reference depends on, apart from the model and the data.
//
// Invariants: none; a struct of values.
// Errors: check() throws c10::Error for a recipe that cannot be run.
// Depends on: optimizer.hpp, precision.hpp, sum.hpp.
#pragma once

#include <cstdint>
#include <string>

#include "reference/optimizer.hpp"
#include "reference/precision.hpp"
#include "reference/sum.hpp"

namespace equigrad::reference {

struct Recipe {
  std::string model = "gpt";
  uint64_t seed = 1;
  int64_t world = 1;
  int64_t sequence = 1;  // of them have parts of one sequence: their gradients are added
  int64_t accumulation_steps = 1;
  int64_t steps = 3;  // for whoever drives the reference, which does not read it
  OptimizerSpec optimizer;
  double gradient_clipping = 0;                  // 0: off
  at::ScalarType compute_dtype = at::kFloat;     // kFloat, kBFloat16, kHalf or kDouble
  at::ScalarType accumulate_dtype = at::kFloat;  // kFloat or 16 bits; not read in fp64 or Exact
  SumOrder order = SumOrder::Fp64;
  PrecisionSpec precision;
  bool absolute_sums = true;  // fill StepRecord::absolute_sum
};

// Without the settings of the loss scale and the names of safe modules, which their owners check.
void check(const Recipe& recipe);

struct Factors {
  double before, after;  // b and a of precision.hpp, before they are rounded
  double in_all;
};
Factors factors(const Recipe& recipe);

}  // namespace equigrad::reference
