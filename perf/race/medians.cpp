#include "perf/race/medians.hpp"

#include <algorithm>
#include <boost/math/distributions/binomial.hpp>
#include <stdexcept>

namespace equigrad::perf {
namespace {

// The largest k with 2 P(Binomial(n, 1/2) < k) <= 1 - confidence; 0 where there is none.
std::size_t rank_of_bound(std::size_t n, double confidence) {
  const boost::math::binomial heads(static_cast<double>(n), 0.5);
  std::size_t k = 0;
  while (k < n / 2 && 2 * cdf(heads, static_cast<double>(k)) <= 1 - confidence) ++k;
  return k;
}

}  // namespace

reports::MedianEstimate median_interval(std::vector<double> values, double confidence) {
  if (values.empty()) throw std::runtime_error("[medians] expected values, got none.");
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size(), k = std::max<std::size_t>(rank_of_bound(n, confidence), 1);
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values[k - 1], values[n - k]};
}

int values_for(double confidence) {
  if (!(confidence > 0 && confidence < 1))
    throw std::runtime_error("[medians] expected a confidence between 0 and 1.");
  int n = 1;
  while (rank_of_bound(static_cast<std::size_t>(n), confidence) == 0) ++n;
  return n;
}

Lives whole_lives(std::size_t had, std::size_t rounds) {
  const std::size_t lives = std::max<std::size_t>(had / rounds, 1);
  return {static_cast<std::int64_t>(lives), static_cast<std::int64_t>(std::min(had, rounds))};
}

std::vector<double> by_life(const std::vector<double>& values, int64_t lives) {
  if (lives <= 1) return values;
  const auto each = static_cast<std::ptrdiff_t>(values.size()) / lives;
  std::vector<double> medians;
  for (auto at = values.begin(); at != values.begin() + each * lives; at += each) {
    std::vector<double> life(at, at + each);
    std::sort(life.begin(), life.end());
    const std::size_t n = life.size();
    medians.push_back((life[(n - 1) / 2] + life[n / 2]) / 2);
  }
  return medians;
}

const char* word(Verdict verdict) {
  if (verdict == Verdict::Regressed) return "regressed";
  return verdict == Verdict::Equivalent ? "equivalent" : "inconclusive";
}

Verdict judge(const reports::MedianEstimate& ratio, double margin) {
  if (ratio.low > 1 + margin) return Verdict::Regressed;
  return ratio.high < 1 + margin ? Verdict::Equivalent : Verdict::Inconclusive;
}

}  // namespace equigrad::perf
