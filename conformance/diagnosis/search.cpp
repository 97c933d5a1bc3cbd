#include "conformance/diagnosis/search.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "conformance/oracle/bits.hpp"

namespace equigrad::conformance::oracle {
namespace {

// A zero is no number that another fault leaves by accident: as much as an element of fp32.
constexpr double kZeroBits = 24;

// How many bits say which k of n elements are meant.
double bits_of_choice(int64_t n, int64_t k) {
  const auto log_factorial = [](int64_t m) { return std::lgamma(static_cast<double>(m) + 1); };
  return (log_factorial(n) - log_factorial(k) - log_factorial(n - k)) / std::log(2.0);
}

}  // namespace

at::Tensor flat_double(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kDouble).flatten().contiguous();
}

Search::Search(const at::Tensor& got, const at::Tensor& want, const std::vector<int64_t>& wrong,
               at::ScalarType dtype, double before)
    : wrong_(wrong), dtype_(dtype), numel_(want.numel()), before_(before) {
  got_ = pick(got);
  want_ = pick(want);
}

Values Search::pick(const at::Tensor& tensor) const {
  if (tensor.numel() != numel_) {
    throw std::runtime_error("[oracle.explain] expected tensors of " + std::to_string(numel_) +
                             " elements, got " + std::to_string(tensor.numel()) + ".");
  }
  const at::Tensor flat = flat_double(tensor);
  const auto* data = flat.const_data_ptr<double>();
  Values values;
  for (const int64_t i : wrong_) values.push_back(data[i]);
  return values;
}

double Search::value_ulp(std::size_t j, double predicted) const {
  return ulp_of(std::max(std::fabs(got_[j]), std::fabs(predicted)), dtype_);
}

double Search::sum_ulp(std::size_t j, double predicted, const Claim& claim) const {
  const double values = std::max({std::fabs(got_[j]), std::fabs(want_[j]), std::fabs(predicted)});
  return ulp_of(claim.sizes.empty() ? values : std::max(values, claim.sizes[j]), dtype_);
}

void Search::add(Proof& proof, std::size_t j, double left_ulp, double bits) const {
  ++proof.claimed;
  proof.residual_ulp = std::max(proof.residual_ulp, left_ulp);
  proof.seen.emplace_back(got_[j], want_[j]);
  proof.bits.push_back(bits);
}

bool Search::try_values(const Values& predicted, const Claim& claim) {
  Proof proof;
  for (std::size_t j = 0; j < got_.size(); ++j) {
    if (!std::isfinite(predicted[j])) continue;
    const double left = std::fabs(got_[j] - predicted[j]);
    const double difference = std::fabs(got_[j] - want_[j]);
    const double ulp = value_ulp(j, predicted[j]);
    const double of_sum = claim.of_sum > 0 ? sum_ulp(j, predicted[j], claim) : ulp;
    const double allowed = (before_ + claim.roundings) * ulp + claim.of_sum * of_sum;
    if (left > allowed || left > difference / 16) continue;
    const bool is_zero = predicted[j] == 0 && got_[j] == 0;
    add(proof, j, left / of_sum,
        is_zero ? kZeroBits : std::log2(1 + difference / (2 * allowed + ulp)));
  }
  return keep(std::move(proof), claim);
}

bool Search::try_roundings(const Claim& claim) {
  Proof proof;
  for (std::size_t j = 0; j < got_.size(); ++j) {
    const double ulp = sum_ulp(j, want_[j], claim);
    const double left = std::fabs(got_[j] - want_[j]), allowed = (before_ + claim.of_sum) * ulp;
    if (left > allowed) continue;
    add(proof, j, left / ulp, std::log2(1 + std::fabs(want_[j]) / (2 * allowed + ulp)));
  }
  return keep(std::move(proof), claim);
}

bool Search::keep(Proof proof, const Claim& claim) {
  const auto all = static_cast<int64_t>(got_.size());
  if (2 * proof.claimed < all || proof.claimed == 0) return false;
  // Equal elements say the same thing: once.
  std::vector<std::size_t> order(proof.seen.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return proof.seen[a] < proof.seen[b]; });
  std::vector<double> bits;
  for (std::size_t i = 0; i < order.size(); ++i)
    if (i == 0 || proof.seen[order[i]] != proof.seen[order[i - 1]])
      bits.push_back(proof.bits[order[i]]);
  const auto fitted = static_cast<std::size_t>(claim.fitted);
  if (bits.size() < static_cast<std::size_t>(claim.least) + fitted) return false;
  std::sort(bits.begin(), bits.end(), std::greater<>());
  const double together =
      std::accumulate(bits.begin() + static_cast<std::ptrdiff_t>(fitted), bits.end(), 0.0);
  if (together < kLeastBits + bits_of_choice(all, proof.claimed)) return false;
  Hypothesis hypothesis;
  hypothesis.cause = claim.cause;
  hypothesis.text = claim.formula + " on " + with_thousands(proof.claimed) + "/" +
                    with_thousands(all) + " -> " + claim.cause;
  hypothesis.residual_ulp = proof.residual_ulp;
  hypothesis.explained = proof.claimed;
  hypothesis.coefficients = claim.coefficients;
  found_.emplace_back((hypothesis.residual_ulp + 1) * claim.handicap, std::move(hypothesis));
  return true;
}

std::vector<Hypothesis> Search::sorted() {
  std::stable_sort(found_.begin(), found_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Hypothesis> hypotheses;
  for (const auto& scored : found_) {
    const bool is_known =
        std::any_of(hypotheses.begin(), hypotheses.end(),
                    [&](const Hypothesis& one) { return one.cause == scored.second.cause; });
    if (!is_known) hypotheses.push_back(scored.second);
  }
  return hypotheses;
}

}  // namespace equigrad::conformance::oracle
