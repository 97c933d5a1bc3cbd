#include "conformance/verdict/statistics.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <string>

#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw Error("statistics", what);
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
  return boost::math::cdf(boost::math::students_t(freedom), t);
}

double student_t_quantile(double probability, double freedom) {
  require(probability > 0 && probability < 1,
          "expected a probability between 0 and 1, got " + std::to_string(probability) + ".");
  return boost::math::quantile(boost::math::students_t(freedom), probability);
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
