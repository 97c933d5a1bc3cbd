// Covering: as few cases as hold every pair of values of any two dimensions of a matrix.
//
//   stage x precision x style x ranks x accumulation x clip x optimizer x model: 943 pairs in 180
//
// Greedy: the case with most pairs that are still missing comes next; of several, the one in which
// most can go wrong (tells()), then the first of the matrix. What the cases after it have made
// superfluous is taken out again.
//
// Invariants: equal matrices give equal selections; refused cases neither count nor are chosen;
// without any one of its cases, but for those that were given, the selection lacks a pair.
// Units: none.   Errors: none.   Depends on: matrix.hpp.
#pragma once

#include <cstddef>
#include <vector>

#include "conformance/cases/matrix.hpp"

namespace equigrad::conformance {

// `given` are in it whatever they cover, and come first.
std::vector<CaseSpec> covering_of(const std::vector<CaseSpec>& matrix,
                                  const std::vector<CaseSpec>& given = {});

// Moves to the front, of the first `end` cases, as few as have each value of each dimension of
// those; how many they are.
std::size_t every_value_first(std::vector<CaseSpec>& cases, std::size_t end);

// How much can go wrong in a case: several ranks, several micro-batches, parameters of irregular
// sizes, a clip factor, optimizer state, shards, parameters that come and go.
int tells(const CaseSpec& spec);

}  // namespace equigrad::conformance
