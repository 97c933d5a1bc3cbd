#include "conformance/diagnosis/search.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "conformance/oracle/bits.hpp"

namespace equigrad::conformance::oracle {

at::Tensor flat_double(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kDouble).flatten().contiguous();
}

Search::Search(const at::Tensor& got, const at::Tensor& want, const std::vector<int64_t>& wrong,
               at::ScalarType dtype)
    : wrong_(wrong), dtype_(dtype), numel_(want.numel()) {
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

double Search::ulp_at(std::size_t j, double predicted) const {
  const double size = std::max(std::fabs(got_[j]), std::fabs(predicted));
  return ulp_of(sizes_.empty() ? size : std::max(size, sizes_[j]), dtype_);
}

void Search::try_values(const Values& predicted, const std::string& formula,
                        const std::string& cause, double handicap, const Matrix& coefficients) {
  Values residuals;
  int64_t explained = 0;
  for (std::size_t j = 0; j < got_.size(); ++j) {
    if (!std::isfinite(predicted[j])) continue;
    const double left = std::fabs(got_[j] - predicted[j]);
    if (left <= std::fabs(got_[j] - want_[j]) / 16) ++explained;
    residuals.push_back(left / ulp_at(j, predicted[j]));
  }
  keep(std::move(residuals), explained, formula, cause, handicap, coefficients);
}

void Search::try_roundings(double ulps) {
  Values residuals;
  int64_t explained = 0;
  for (std::size_t j = 0; j < got_.size(); ++j) {
    residuals.push_back(std::fabs(got_[j] - want_[j]) / ulp_at(j, want_[j]));
    if (residuals.back() <= ulps) ++explained;
  }
  keep(std::move(residuals), explained, "got = want up to a few roundings",
       "rounding: another order of additions, or a fused operation", Handicap::kNamed, {});
}

void Search::keep(Values residuals, int64_t explained, const std::string& formula,
                  const std::string& cause, double handicap, const Matrix& coefficients) {
  if (2 * explained < static_cast<int64_t>(got_.size()) || residuals.empty()) return;
  const std::size_t tenth = residuals.size() - 1 - residuals.size() / 10;
  std::nth_element(residuals.begin(), residuals.begin() + static_cast<int64_t>(tenth),
                   residuals.end());
  Hypothesis hypothesis;
  hypothesis.cause = cause;
  hypothesis.text = formula + " on " + with_thousands(explained) + "/" +
                    with_thousands(static_cast<int64_t>(got_.size())) + " -> " + cause;
  hypothesis.residual_ulp = residuals[tenth];
  hypothesis.explained = explained;
  hypothesis.coefficients = coefficients;
  found_.emplace_back((hypothesis.residual_ulp + 1) * handicap, std::move(hypothesis));
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
