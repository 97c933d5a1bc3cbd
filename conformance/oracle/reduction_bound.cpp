// How many roundings there are between the contributions and an averaged gradient.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <stdexcept>

#include "conformance/oracle/bound.hpp"

namespace equigrad::conformance::oracle {
namespace {

int64_t tree_height(int64_t leaves) {
  return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(leaves - 1)));
}

int64_t passes_of(const Reduction& reduction) {
  return reduction.passes > 0 ? reduction.passes : reduction.accumulation_steps;
}

bool is_power_of_two(double value) {
  int exponent = 0;
  return value > 0 && std::frexp(value, &exponent) == 0.5;
}

// Whether `wide` holds every normal number of `narrow`, up to overflow and underflow.
bool within(at::ScalarType narrow, at::ScalarType wide) {
  return unit_roundoff(wide) <= unit_roundoff(narrow);
}

// b and a, before they are rounded.
struct Factors {
  double before = 1;
  double after = 1;
};

Factors factors_of(const Reduction& reduction) {
  const auto world = static_cast<double>(reduction.world / reduction.sequence);
  const auto steps = static_cast<double>(reduction.accumulation_steps);
  switch (reduction.averaging) {
    case Averaging::AfterSum:
      return {1, 1 / (steps * world)};
    case Averaging::BeforeSum:
      return {1 / world, 1 / steps};
    case Averaging::Around:
      return {1 / reduction.predivide_factor, reduction.predivide_factor / (steps * world)};
    case Averaging::Never:
      return {1, 1 / steps};
  }
  return {};
}

using Counts = std::map<at::ScalarType, int64_t>;  // roundings, by what they round to

// The path of one contribution c of dtype P, with W ranks, n passes, accumulate dtype A, u = 2^-24:
//
//   AddThenReduce  to A            1 rounding to A if P is not within A, else exact
//                  n - 1 additions 1 rounding to fp32 each, and 1 to A if A is not fp32
//                                  (the first one is 0 + c: exact)
//                  sent            as below, from A
//                  tree            at most height(W) additions in fp32; W - 1 in any order
//                  R = A(...)      1 rounding to A if A is not fp32
//   ReduceThenAdd  sent            as below, from P
//                  tree            at most height(W) additions in fp32
//                  R = A(...)      1 rounding to A if A is not fp32
//                  n - 1 additions 1 rounding to fp32 each, and 1 to A if A is not fp32
//   ExactGrid      sent            as below, from P
//                  the grid        each of the W n contributions to within 2^-32 of the largest
//                  R               1 rounding to fp32 if W n > 1
//   sent           b, and x b      1 rounding each, none where b is a power of two
//                  T(...)          1 rounding to T, none where T holds x b
//   both           a, and R a / S  1 rounding each, none where a is a power of two
//                  M(...)          1 rounding to M, none where M holds R and a is a power of two
//   clipped        g * factor      1 rounding, and 1 to M if M is not fp32; the factor itself is
//                                  given, so exact
//
// Every rounding multiplies what c brings by (1 + d), so the product of them is off by at most
// (1 + u_A)^nA (1 + u_T)^nT (1 + u_M)^nM (1 + u)^n32 - 1. Additions in fp32 are exact where the sum
// is subnormal; a rounding to 16 bits or a product that underflows adds at most half the smallest
// number each time, of which the factors that follow it leave their share.
Counts counts_of(const Reduction& reduction) {
  const auto A = reduction.accumulate_dtype, P = reduction.param_dtype;
  const Factors factors = factors_of(reduction);
  const int64_t passes = passes_of(reduction);
  const bool first = reduction.order == SumOrder::AddThenReduce;
  const bool exact = reduction.order == SumOrder::ExactGrid;
  Counts counts;
  const int64_t over_ranks =
      reduction.any_order ? reduction.world - 1 : tree_height(reduction.world);
  const int64_t additions = passes - 1 + over_ranks;
  counts[at::kFloat] += exact ? std::min<int64_t>(additions, 1) : additions;
  if (first && !within(P, A)) ++counts[A];
  if (A != at::kFloat) counts[A] += passes;  // n - 1 additions and one after or before them
  const auto source = first ? A : P;
  const auto sent_in = reduction.communication_dtype.value_or(source);
  if (!is_power_of_two(factors.before)) counts[at::kFloat] += 2;
  if (sent_in != at::kFloat && (!within(source, sent_in) || !is_power_of_two(factors.before)))
    ++counts[sent_in];
  if (!is_power_of_two(factors.after)) counts[at::kFloat] += 2;
  const auto M = reduction.master_dtype;
  if (M != at::kFloat && (!within(A, M) || !is_power_of_two(factors.after))) ++counts[M];
  if (reduction.clip_factor != 1) {
    ++counts[at::kFloat];
    if (M != at::kFloat) ++counts[M];
  }
  return counts;
}

// What all underflows on the way may add up to, before the growth of the roundings after them.
double underflow_of(const Reduction& reduction) {
  const auto A = reduction.accumulate_dtype, M = reduction.master_dtype;
  const Factors factors = factors_of(reduction);
  const auto passes = static_cast<double>(passes_of(reduction));
  const auto world = static_cast<double>(reduction.world);
  const bool first = reduction.order == SumOrder::AddThenReduce;
  const auto sent_in = reduction.communication_dtype.value_or(first ? A : reduction.param_dtype);
  const double after = factors.after / reduction.loss_scale;
  const double clip = std::fabs(reduction.clip_factor);
  double all = 0;
  // At most passes + 1 roundings to A on each rank and one at the end.
  if (A != at::kFloat)
    all += (world * (passes + 1) + 1) * half_smallest(A) * std::max(1.0, factors.before) * after;
  const double sent = first ? world : world * passes;  // roundings on their way to the sum
  if (factors.before != 1) all += sent * half_smallest(at::kFloat) * after;
  if (sent_in != at::kFloat && (reduction.communication_dtype || factors.before != 1))
    all += sent * half_smallest(sent_in) * after;
  if (after != 1) all += half_smallest(at::kFloat);
  if (M != at::kFloat) all += half_smallest(M);
  all *= clip;
  if (reduction.clip_factor != 1)
    all += half_smallest(at::kFloat) + (M != at::kFloat ? half_smallest(M) : 0);
  return all;
}

}  // namespace

ReductionBound reduction_bound(const Reduction& reduction) {
  if (reduction.world < 1 || reduction.accumulation_steps < 1) {
    throw std::runtime_error("[oracle.reduction_bound] expected at least one rank and one pass.");
  }
  if (!is_power_of_two(reduction.loss_scale)) {
    throw std::runtime_error("[oracle.reduction_bound] expected a power of two as loss scale.");
  }
  ReductionBound bound;
  if (reduction.order == SumOrder::ExactGrid) {
    const auto all = static_cast<double>(reduction.world * passes_of(reduction));
    bound.relative = all > 1 ? all * 0x1p-32 : 0;
  }
  for (const auto& [dtype, count] : counts_of(reduction)) {
    const double one = roundings(count, unit_roundoff(dtype));
    bound.relative += one + bound.relative * one;
  }
  bound.relative *= 1 + 16 * kDoubleUnit;
  bound.absolute = underflow_of(reduction) * (1 + bound.relative);
  return bound;
}

}  // namespace equigrad::conformance::oracle
