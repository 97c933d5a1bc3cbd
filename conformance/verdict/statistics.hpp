// Statistics: what a few numbers say about a mean: Student's t, and a test that a difference is
// small.
//
//   mean_interval   the mean's interval: mean +- t(1 - (1 - confidence) / 2; n - 1) s / sqrt(n)
//   no_difference   p of "the mean is 0", two-sided
//   equivalence     two one-sided tests (TOST): p of "the mean is -margin or less", of "it is
//                   margin or more"; both rejected at level a is the same as the 1 - 2a interval
//                   lying inside (-margin, margin)
//
// Invariants: for paired runs the values are the pairs' differences. A sample without spread is
// certain: its interval is a point, its p is 0 or 1.
// Units: those of the values; levels and confidences are between 0 and 1.
// Errors: equigrad::Error for fewer than two values, one that is not finite, a level or a margin
// out of range.
// Depends on: the C++ standard library; Boost.Math, engine/error.hpp (sources only). No torch.
// Papers: Student, The Probable Error of a Mean (Biometrika 6, 1908); Schuirmann, A comparison of
// the two one-sided tests procedure (J. Pharmacokinet. Biopharm. 15, 1987).
#pragma once

#include <cstdint>
#include <vector>

namespace equigrad::conformance {

struct Sample {
  double mean = 0;
  double deviation = 0;  // s, over n - 1
  int64_t count = 0;
};
Sample sample_of(const std::vector<double>& values);
double median_of(std::vector<double> values);

// P(T <= t) with `freedom` degrees of freedom, and its inverse.
double student_t_below(double t, double freedom);
double student_t_quantile(double probability, double freedom);

struct Interval {
  double low = 0, high = 0;
};
Interval mean_interval(const Sample& sample, double confidence);

double no_difference(const Sample& difference);

struct Equivalence {
  double p_low = 1;   // of a mean of -margin or less
  double p_high = 1;  // of a mean of margin or more
  double p() const { return p_low > p_high ? p_low : p_high; }
};
Equivalence equivalence(const Sample& difference, double margin);

}  // namespace equigrad::conformance
