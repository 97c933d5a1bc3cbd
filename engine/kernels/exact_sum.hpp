// exact_sum: sums of fp32 numbers that do not depend on the order of the terms.
//
//   With e the exponent of the largest |x| of a sum (2^e <= |x| < 2^(e+1)), b its bin, and u the
//   last place that is kept:    b = floor((e - 1) / 32)    u = 2^(32 (b - 1) + 1)
//
//   sum = the terms of u and more, each rounded to a multiple of u (to nearest, ties to even),
//         added without any error, and rounded once to fp32
//
// Why no order matters: u belongs to the set of terms, every rounding to one term and u, and the
// additions are exact. A running sum has not yet seen its largest term, so it keeps two bins, each
// the sum of whole multiples of its own unit: the terms in multiples of U = 2^32 u, and what is
// left of them in multiples of u. Bins lie on one absolute grid: a larger bin moves the upper one
// down and drops the lower one, which leaves what the terms would have given had it come first.
//
// What is kept: of every term at least 32 bits below the largest term's first one, so the error
// before the one rounding is below 2^-32 of the largest term for each term. 2^19 - 1 terms fit.
// Not finite: infinities of one sign sum to that infinity, all else to one NaN. A sum of zeros of
// any sign is +0. Subnormal terms are terms; a sum beyond fp32 rounds to infinity.
//
// Shapes: a running sum is two doubles an element, side by side: { c + upper bin, lower bin } with
// c = 1.5 2^52 U, whose exponent says which bin it is; zeros are the sum of nothing. values [n],
// rows [rows, n].   Units: n counts elements.   Errors: none.
// Depends on: kernels/element.hpp, kernels/instruction_set.hpp; the source on kernels/parallel.hpp.
// Paper: Demmel and Nguyen, Parallel Reproducible Summation, IEEE TC 2015 (bins on a fixed grid).
#pragma once

#include <cstdint>

#include "engine/kernels/element.hpp"
#include "engine/kernels/instruction_set.hpp"

namespace equigrad::kernels {

inline constexpr int64_t kMostExactTerms = (int64_t{1} << 19) - 1;

// sums = the rows' sums, or sums += them.
void exact_add(const void* rows, Element type, int count, int64_t n, bool is_first, double* sums,
               InstructionSet set = instruction_set());
// sums += other sums.
void exact_merge(const double* others, int64_t n, double* sums,
                 InstructionSet set = instruction_set());
void exact_round(const double* sums, int64_t n, float* rounded,
                 InstructionSet set = instruction_set());
// The sums of the rows, rounded.
void exact_row_sum(const void* rows, Element type, int count, int64_t n, float* rounded,
                   InstructionSet set = instruction_set());

}  // namespace equigrad::kernels
