// Medians: the interval of a median by order statistics, and what a ratio says of a regression.
//
// Of n values in order, x(k) .. x(n + 1 - k) holds the median with a confidence of
// 1 - 2 P(Binomial(n, 1/2) < k): nothing is assumed of the distribution (David & Nagaraja, Order
// Statistics, 2003, section 7.1).
//
//   regressed     the whole interval is above 1 + margin
//   equivalent    the whole interval is below 1 + margin: not slower by more than it
//   inconclusive  neither: the interval holds 1 + margin
//
// Invariants: two variants that are the same are called regressed with a probability below
// (1 - confidence) / 2, whatever the machine does, if the values are independent. Pairs of one life
// are not: how a process's memory lies makes it fast or slow for all of them. Lives are.
// Units: ratios are time of the new / time of the old.
// Errors: std::runtime_error for no values, or a confidence that is not between 0 and 1.
// Depends on: reports/race.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reports/race.hpp"

namespace equigrad::perf {

// With fewer values than the confidence needs, the interval is from the least to the largest.
reports::MedianEstimate median_interval(std::vector<double> values, double confidence);
// The fewest values whose interval can have this confidence.
int values_for(double confidence);
struct Lives {
  std::int64_t lives = 0, rounds = 0;
};
// What is whole of `had` rounds in lives of `rounds`: the first life as far as it went, else lives.
Lives whole_lives(std::size_t had, std::size_t rounds);
// One value a life: the median of its part of `values`, which follow each other life by life. Of
// one life all of them.
std::vector<double> by_life(const std::vector<double>& values, int64_t lives);

enum class Verdict { Regressed, Equivalent, Inconclusive };
const char* word(Verdict verdict);
Verdict judge(const reports::MedianEstimate& ratio, double margin);

}  // namespace equigrad::perf
