#include "conformance/verdict/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw Error("statistics", what);
}

// I_x(a, b) for x below (a + 1) / (a + b + 2), where the fraction converges fast. Lentz's method.
double beta_fraction(double x, double a, double b) {
  constexpr double kTiny = 1e-300;  // instead of a denominator of 0
  constexpr int kTerms = 10'000;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (d == 0 ? kTiny : d);
  double fraction = d;
  for (int m = 1; m <= kTerms; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double change = 1;
    for (const double term : {even, odd}) {
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (d == 0 ? kTiny : d);
      c = c == 0 ? kTiny : c;
      change = c * d;
      fraction *= change;
    }
    if (std::fabs(change - 1) <= std::numeric_limits<double>::epsilon()) break;
  }
  const double log_front = a * std::log(x) + b * std::log1p(-x) + std::lgamma(a + b) -
                           std::lgamma(a) - std::lgamma(b) - std::log(a);
  return std::exp(log_front) * fraction;
}

// The regularized incomplete beta function.
double incomplete_beta(double x, double a, double b) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  return x < (a + 1) / (a + b + 2) ? beta_fraction(x, a, b) : 1 - beta_fraction(1 - x, b, a);
}

double standard_error(const Sample& sample) {
  return sample.deviation / std::sqrt(static_cast<double>(sample.count));
}

double freedom_of(const Sample& sample) { return static_cast<double>(sample.count - 1); }

// P(T >= t) for a mean which is `distance` from where it would be.
double above(const Sample& sample, double distance) {
  const double error = standard_error(sample);
  if (error == 0) return distance > 0 ? 0 : 1;
  return student_t_below(-distance / error, freedom_of(sample));
}

}  // namespace

Sample sample_of(const std::vector<double>& values) {
  require(values.size() >= 2, "expected two values or more, got " + std::to_string(values.size()) +
                                  ". One value says nothing about its spread.");
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) {
    require(std::isfinite(value), "expected finite values, got " + std::to_string(value) + ".");
    sum += value;
  }
  const double mean = sum / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const bool equal = std::equal(values.begin() + 1, values.end(), values.begin());
  return {equal ? values[0] : mean, equal ? 0 : std::sqrt(squares / (count - 1)),
          static_cast<int64_t>(values.size())};
}

double median_of(std::vector<double> values) {
  require(!values.empty(), "expected a value for a median, got none.");
  std::sort(values.begin(), values.end());
  const auto half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double student_t_below(double t, double freedom) {
  require(freedom > 0, "expected degrees of freedom, got " + std::to_string(freedom) + ".");
  const double tail = incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2;
  return t <= 0 ? tail : 1 - tail;
}

double student_t_quantile(double probability, double freedom) {
  require(probability > 0 && probability < 1,
          "expected a probability between 0 and 1, got " + std::to_string(probability) + ".");
  if (probability == 0.5) return 0;
  if (probability > 0.5) return -student_t_quantile(1 - probability, freedom);
  double low = -1, high = 0;
  while (student_t_below(low, freedom) > probability) low *= 2;
  // Halved until no double lies between.
  for (double middle = low / 2; low < middle && middle < high; middle = (low + high) / 2)
    (student_t_below(middle, freedom) < probability ? low : high) = middle;
  return high;
}

Interval mean_interval(const Sample& sample, double confidence) {
  require(confidence > 0 && confidence < 1,
          "expected a confidence between 0 and 1, got " + std::to_string(confidence) + ".");
  const double half =
      -student_t_quantile((1 - confidence) / 2, freedom_of(sample)) * standard_error(sample);
  return {sample.mean - half, sample.mean + half};
}

double no_difference(const Sample& difference) {
  if (standard_error(difference) == 0) return difference.mean == 0 ? 1 : 0;
  return 2 * above(difference, std::fabs(difference.mean));
}

Equivalence equivalence(const Sample& difference, double margin) {
  require(margin > 0 && std::isfinite(margin),
          "expected a margin above 0, got " + std::to_string(margin) + ".");
  return {above(difference, difference.mean + margin), above(difference, margin - difference.mean)};
}

}  // namespace equigrad::conformance
