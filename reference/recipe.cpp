#include "reference/recipe.hpp"

#include <c10/util/Exception.h>

#include <cmath>

namespace equigrad::reference {

void check(const Recipe& recipe) {
  const PrecisionSpec& precision = recipe.precision;
  const at::ScalarType compute = recipe.compute_dtype;
  const bool oracle = compute == at::kDouble;
  const auto half = [](at::ScalarType dtype) {
    return dtype == at::kBFloat16 || dtype == at::kHalf;
  };
  const auto narrow = [&](at::ScalarType dtype) { return dtype == at::kFloat || half(dtype); };
  const auto own = [&](auto dtype) { return oracle || dtype == at::kFloat || dtype == compute; };
  const auto expect = [](bool right, const char* what, const auto& got) {
    TORCH_CHECK(right, "[recipe] expected ", what, ", got ", got, ".");
  };
  expect(recipe.world > 0, "at least one rank", recipe.world);
  expect(recipe.sequence > 0 && recipe.world % recipe.sequence == 0,
         "ranks of a sequence that divide all ranks", recipe.sequence);
  expect(recipe.accumulation_steps > 0, "at least one micro-batch", recipe.accumulation_steps);
  expect(narrow(compute) || oracle, "fp32, bf16, fp16 or fp64 to compute in", compute);
  expect(narrow(recipe.accumulate_dtype) || oracle || recipe.order == SumOrder::Fp64,
         "fp32, bf16 or fp16 to accumulate in", recipe.accumulate_dtype);
  expect(own(precision.master_dtype), "masters in fp32 or as computed", precision.master_dtype);
  expect(own(precision.state_dtype), "states in fp32 or as computed", precision.state_dtype);
  if (const auto sent = precision.communication_dtype) {
    expect(narrow(*sent) && !oracle, "fp32, bf16 or fp16 to communicate in, none in fp64", *sent);
  }
  if (const auto& cast = precision.autocast) {
    expect(half(cast->dtype), "autocast to bf16 or fp16", cast->dtype);
    expect(compute == at::kFloat || compute == cast->dtype, "fp32 or autocast's dtype", compute);
  }
  expect(std::isfinite(precision.predivide_factor) && precision.predivide_factor > 0,
         "a predivide factor above 0", precision.predivide_factor);
}

Factors factors(const Recipe& recipe) {
  const auto world = static_cast<double>(recipe.world / recipe.sequence);
  const double f = recipe.precision.predivide_factor;
  const auto steps = static_cast<double>(recipe.accumulation_steps);
  const Averaging kind = recipe.precision.averaging;
  const double in_all = kind == Averaging::Never ? 1 / steps : 1 / (steps * world);
  if (recipe.order == SumOrder::Fp64) return {1, in_all, in_all};
  if (kind == Averaging::BeforeSum) return {1 / world, 1 / steps, in_all};
  if (kind == Averaging::Around) return {1 / f, f / (steps * world), in_all};
  return {1, in_all, in_all};
}

}  // namespace equigrad::reference
