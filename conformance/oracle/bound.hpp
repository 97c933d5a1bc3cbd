// Bound: how far a correct engine may be from the exact result, derived and never set by hand.
//
// u is the unit roundoff of a dtype (fp32 2^-24, fp16 2^-11, bf16 2^-8): a rounded result is exact
// * (1 + d), |d| <= u. A value that passes n roundings is off by a factor in [(1-u)^n, (1+u)^n], so
// by at most (1+u)^n - 1 of itself; bound.cpp counts the roundings on the path of one contribution.
//
// Invariants: a correct engine never breaks a bound; the sides of a comparison share no code with
//   the engine. A report with nothing compared does not hold.
// Shapes: all tensors of one call have the same number of elements; any float dtype.
// Errors: std::runtime_error for sizes that do not agree, or a bound that does not exist.
// Depends on: ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace equigrad::conformance::oracle {

constexpr double kDoubleUnit = 0x1p-53;  // unit roundoff of fp64
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double unit_roundoff(at::ScalarType dtype);
// Half the smallest positive number: what rounding a tiny result can add, where (1 + d) fails.
double half_smallest(at::ScalarType dtype);
// n u / (1 - n u): the classical bound on the relative error of n roundings in a row.
double gamma(int64_t n, double u);
// (1+u)^n - 1, the same without the slack, rounded up.
double roundings(int64_t n, double u);

// How contributions become an averaged gradient.
enum class SumOrder {
  AddThenReduce,  // stages 0 and 1: each rank adds its passes up, then a tree over the ranks
  ReduceThenAdd,  // stages 2 and 3: a tree over the ranks for each pass, the results added up
  ExactGrid,      // every contribution to 32 bits below the largest, then one rounding
};

// When a sum over ranks is divided by their number; see Reduction.
enum class Averaging { AfterSum, BeforeSum, Around, Never };

// A contribution is added up, multiplied by b (no product where b = 1) and rounded to what is sent,
// summed over the ranks, and multiplied by a / loss_scale: b a = 1 / (accumulation_steps world), or
// 1 / accumulation_steps where ranks are added only. Both are rounded to fp32.
//
//   averaging  AfterSum  BeforeSum  Around  Never
//   b          1         1/world    1/f     1
struct Reduction {
  int64_t world = 1;
  int64_t sequence = 1;  // of them have parts of one sequence: added, not averaged
  int64_t accumulation_steps = 1;
  int64_t passes = 0;  // backward passes of a rank in the window; 0: one a micro-batch
  at::ScalarType param_dtype = at::kFloat;  // of the contributions
  at::ScalarType accumulate_dtype = at::kFloat;
  at::ScalarType master_dtype = at::kFloat;           // of the average, and of what clipping gives
  std::optional<at::ScalarType> communication_dtype;  // nothing: in the dtype that it has
  Averaging averaging = Averaging::AfterSum;
  double predivide_factor = 1;  // f, of Around
  double loss_scale = 1;        // a power of two
  SumOrder order = SumOrder::AddThenReduce;
  bool any_order = false;  // ranks are added in any order, as in a ring, not in a tree
  double clip_factor = 1;  // the fp32 factor that clipping used; exactly 1: not clipped
};

// |g - clip * (sum of c) * mean| <= relative * clip * (sum of |c|) * mean + absolute, where
// mean = b a / loss_scale.
struct ReductionBound {
  double relative = 0;
  double absolute = 0;  // what underflow can add
};
ReductionBound reduction_bound(const Reduction& reduction);

struct BoundReport {
  int64_t compared = 0;
  int64_t violations = 0;
  int64_t not_finite = 0;    // of those: got or want is NaN or infinite
  double margin = 0;         // the largest |got - want| / bound: 1 is the edge, 0 no error at all
  int64_t worst_index = -1;  // flat, where the margin is; -1: no error anywhere
  double worst_got = 0;
  double worst_want = 0;
  double worst_bound = 0;

  bool held() const { return compared > 0 && violations == 0; }
};

// Adds one element to counts, and keeps it where it is the worst.
void see(BoundReport& report, int64_t index, double got, double exact, double bound);
// |got - exact| <= bound, element by element.
BoundReport check(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& bound);
void merge(BoundReport& into, const BoundReport& more);
std::string describe(const BoundReport& report);

// Below, before clipping and after the loss scale: `plain` is the average of a plain single-process
// run's own contributions, which at step 1 are the engine's too (same weights, same kernels),
// summed in fp64 and stored in fp32 or fp64; `absolute_sum` is the average of their absolute
// values. `engine` is after clipping.

// The reduction alone: |engine - plain| within what its own roundings explain. The sharpest check.
BoundReport check_reduction(const at::Tensor& engine, const at::Tensor& plain,
                            const at::Tensor& absolute_sum, const Reduction& reduction);

// Three parties: the engine is no further from the higher-precision `reference` than the plain run
// is, except for what the reduction's roundings explain. The margin is the share of that exception.
BoundReport check_gradient(const at::Tensor& engine, const at::Tensor& plain,
                           const at::Tensor& reference, const at::Tensor& absolute_sum,
                           const Reduction& reduction);

}  // namespace equigrad::conformance::oracle
