#include "conformance/oracle/hypotheses.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "conformance/oracle/bits.hpp"

namespace equigrad::conformance::oracle {
namespace {

using Values = std::vector<double>;                                    // one a wrong element
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();  // no prediction here

// Handicaps: a hypothesis with more free numbers must fit better to come first.
constexpr double kNamedFactor = 1, kShift = 1.5, kContribution = 2, kFittedFactor = 4, kMatrix = 16;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

class Search {
 public:
  Search(const Evidence& evidence, const std::vector<int64_t>& wrong)
      : evidence_(evidence), wrong_(wrong), dtype_(evidence.got.scalar_type()) {
    got_ = pick(evidence.got);
    want_ = pick(evidence.want);
  }

  std::vector<Hypothesis> run() {
    try_rounding();
    try_factors();
    try_shifts();
    if (evidence_.previous.defined()) {
      try_values(pick(evidence_.previous), "got = the previous step's value", "stale: not updated",
                 kNamedFactor);
    }
    if (!evidence_.contributions.empty()) try_contributions();
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Scored& a, const Scored& b) { return a.first < b.first; });
    std::vector<Hypothesis> sorted;
    for (Scored& scored : found_) sorted.push_back(std::move(scored.second));
    return sorted;
  }

 private:
  using Scored = std::pair<double, Hypothesis>;

  Values pick(const at::Tensor& tensor) const {
    if (tensor.numel() != evidence_.want.numel()) {
      throw std::runtime_error("[oracle.explain] expected tensors of " +
                               std::to_string(evidence_.want.numel()) + " elements, got " +
                               std::to_string(tensor.numel()) + ".");
    }
    const at::Tensor flat = tensor.detach().to(at::kCPU, at::kDouble).flatten().contiguous();
    const auto* data = flat.const_data_ptr<double>();
    Values values;
    for (const int64_t i : wrong_) values.push_back(data[i]);
    return values;
  }

  void try_values(const Values& predicted, const std::string& formula, const std::string& cause,
                  double handicap) {
    Values residuals;
    int64_t explained = 0;
    for (size_t j = 0; j < got_.size(); ++j) {
      if (std::isnan(predicted[j])) continue;
      const double left = std::fabs(got_[j] - predicted[j]);
      if (left <= std::fabs(got_[j] - want_[j]) / 16) ++explained;
      const double size = std::max(std::fabs(got_[j]), std::fabs(predicted[j]));
      residuals.push_back(left / ulp_of(size, dtype_));
    }
    keep(std::move(residuals), explained, formula, cause, handicap);
  }

  void keep(Values residuals, int64_t explained, const std::string& formula,
            const std::string& cause, double handicap) {
    if (2 * explained < static_cast<int64_t>(got_.size()) || residuals.empty()) return;
    const size_t tenth = residuals.size() - 1 - residuals.size() / 10;
    std::nth_element(residuals.begin(), residuals.begin() + static_cast<int64_t>(tenth),
                     residuals.end());
    Hypothesis hypothesis;
    hypothesis.cause = cause;
    hypothesis.text = formula + " on " + with_thousands(explained) + "/" +
                      with_thousands(static_cast<int64_t>(got_.size())) + " -> " + cause;
    hypothesis.residual_ulp = residuals[tenth];
    hypothesis.explained = explained;
    found_.emplace_back((hypothesis.residual_ulp + 1) * handicap, std::move(hypothesis));
  }

  // Differences of the size that another order of the same additions makes.
  void try_rounding() {
    const auto terms = static_cast<double>(evidence_.world * evidence_.accumulation_steps);
    Values residuals;
    int64_t explained = 0;
    for (size_t j = 0; j < got_.size(); ++j) {
      const double size = std::max(std::fabs(got_[j]), std::fabs(want_[j]));
      residuals.push_back(std::fabs(got_[j] - want_[j]) / ulp_of(size, dtype_));
      if (residuals.back() <= terms + 2) ++explained;
    }
    keep(std::move(residuals), explained, "got = want up to a few roundings",
         "rounding: another order of additions, or a fused operation", kNamedFactor);
  }

  void try_factors() {
    const auto world = static_cast<double>(evidence_.world);
    const auto steps = static_cast<double>(evidence_.accumulation_steps);
    const std::string over_world = " over world " + number(world);
    const std::string over_steps = " by " + number(steps) + " accumulation steps";
    std::vector<std::pair<double, std::string>> named;
    const auto add = [&](double factor, const std::string& cause) {
      if (factor == 1) return;
      for (auto& [known, causes] : named) {
        if (known == factor) return void(causes += " or " + cause);
      }
      named.emplace_back(factor, cause);
    };
    add(1 / world, "averaged twice" + over_world);
    add(world, "not averaged" + over_world);
    add(1 / steps, "divided twice" + over_steps);
    add(steps, "not divided" + over_steps);
    if (world > 1 && steps > 1) {
      add(1 / (world * steps), "averaged twice over world and accumulation steps");
      add(world * steps, "a sum, not averaged at all");
    }
    add(0, "lost: no contribution arrived");
    add(-1, "sign flipped");
    add(2, "added twice");
    const double fitted = fit_factor();
    bool is_named = false;
    for (const auto& [factor, cause] : named) {
      try_factor(factor, cause, kNamedFactor);
      is_named = is_named || std::fabs(fitted - factor) <= std::fabs(factor) / 1024;
    }
    if (!is_named && std::isfinite(fitted)) {
      try_factor(fitted, "one common factor (a scale or a clipping factor?)", kFittedFactor);
    }
  }

  // The median of got / want: half of the elements may be anything.
  double fit_factor() const {
    Values ratios;
    for (size_t j = 0; j < got_.size(); ++j) {
      if (want_[j] != 0) ratios.push_back(got_[j] / want_[j]);
    }
    if (ratios.empty()) return kNothing;
    const auto middle = ratios.begin() + static_cast<int64_t>(ratios.size() / 2);
    std::nth_element(ratios.begin(), middle, ratios.end());
    return *middle;
  }

  void try_factor(double factor, const std::string& cause, double handicap) {
    Values predicted = want_;
    for (double& value : predicted) value *= factor;
    char text[48];
    std::snprintf(text, sizeof(text), "got = %.4f x want", factor);
    try_values(predicted, text, cause, handicap);
  }

  void try_shifts() {
    const at::Tensor all = evidence_.want.detach().to(at::kCPU, at::kDouble).flatten();
    const auto* data = all.const_data_ptr<double>();
    const int64_t numel = evidence_.want.numel();
    int64_t whole = evidence_.shape.empty() ? numel : 1;
    for (const int64_t extent : evidence_.shape) whole *= extent;
    const int64_t shard_numel = (whole + evidence_.shards - 1) / evidence_.shards;
    std::vector<int64_t> shifts{1, -1, 2, -2, 3, -3, 4, -4};
    if (evidence_.shards > 1 && shard_numel > 4) {
      shifts.insert(shifts.end(), {shard_numel, -shard_numel});
    }
    for (const int64_t shift : shifts) {
      Values predicted;
      for (const int64_t i : wrong_) {
        const int64_t from = i + shift;
        predicted.push_back(from >= 0 && from < numel ? data[from] : kNothing);
      }
      const std::string by = (shift > 0 ? "+" : "") + std::to_string(shift);
      const bool whole_shard = evidence_.shards > 1 && std::abs(shift) == shard_numel;
      try_values(predicted, "got[i] = want[i" + by + "]",
                 whole_shard ? "a neighbour's shard" : "shifted by " + by + " elements", kShift);
    }
  }

  // Linear in the contributions: c scaled so that all of them together give `want`, which takes
  // averaging and clipping in without knowing either.
  void try_contributions() {
    const auto& given = evidence_.contributions;
    const size_t ranks = given.size(), steps = given[0].size();
    std::vector<std::vector<Values>> c(ranks);
    Values sum(want_.size(), 0);
    for (size_t r = 0; r < ranks; ++r) {
      if (given[r].size() != steps) {
        throw std::runtime_error("[oracle.explain] expected as many micro-batches on every rank.");
      }
      for (const at::Tensor& tensor : given[r]) {
        c[r].push_back(tensor.defined() ? pick(tensor) : Values(want_.size(), 0));
        sum = combined(std::move(sum), c[r].back(), 1);
      }
    }
    double top = 0, bottom = 0;
    for (size_t j = 0; j < sum.size(); ++j) top += want_[j] * sum[j], bottom += sum[j] * sum[j];
    if (bottom == 0) return;
    const double scale = top / bottom;
    for (size_t r = 0; r < ranks; ++r) {
      for (size_t m = 0; m < steps; ++m) {
        for (double& value : c[r][m]) value *= scale;
        try_change("micro-batch " + std::to_string(m) + " of rank " + std::to_string(r), c[r][m]);
      }
    }
    for (size_t r = 0; r < ranks && ranks > 1; ++r) {
      Values row(want_.size(), 0);
      for (const Values& values : c[r]) row = combined(std::move(row), values, 1);
      try_group("rank " + std::to_string(r), row, steps > 1, static_cast<double>(ranks));
    }
    for (size_t m = 0; m < steps && steps > 1; ++m) {
      Values column(want_.size(), 0);
      for (const auto& row : c) column = combined(std::move(column), row[m], 1);
      try_group("micro-batch " + std::to_string(m), column, ranks > 1, static_cast<double>(steps));
    }
    if (ranks * steps > 1) try_coefficients(c);
  }

  // x + factor * y
  static Values combined(Values x, const Values& y, double factor) {
    for (size_t j = 0; j < x.size(); ++j) x[j] += factor * y[j];
    return x;
  }

  void try_change(const std::string& which, const Values& part) {
    try_values(combined(want_, part, -1), "got = want - its part", which + " missing",
               kContribution);
    try_values(combined(want_, part, 1), "got = want + its part", which + " doubled",
               kContribution);
  }

  // A whole row or column of the coefficients; `many` when it is more than one contribution.
  void try_group(const std::string& which, const Values& part, bool many, double count) {
    if (many) try_change(which, part);
    try_values(part, "got = its part of want", "only " + which + " counted", kContribution);
    try_values(combined(part, part, count - 1), "got = its own average",
               which + " alone, not reduced", kContribution);
  }

  // Least squares for one coefficient a contribution; 1 is right.
  void try_coefficients(const std::vector<std::vector<Values>>& c) {
    std::vector<const Values*> columns;
    for (const auto& row : c) {
      for (const Values& values : row) columns.push_back(&values);
    }
    const auto n = static_cast<int64_t>(columns.size());
    const auto rows = static_cast<int64_t>(want_.size());
    if (rows < 2 * n) return;  // too few wrong elements to tell coefficients apart
    at::Tensor matrix = at::empty({n, rows}, at::kDouble);
    for (int64_t k = 0; k < n; ++k) {
      std::copy_n(columns[static_cast<size_t>(k)]->data(), rows,
                  matrix.data_ptr<double>() + k * rows);
    }
    const at::Tensor target = at::tensor(got_, at::kDouble).unsqueeze(1);
    const at::Tensor solved =
        std::get<0>(at::linalg_lstsq(matrix.t(), target, std::nullopt, "gelsd")).flatten();
    const at::Tensor fitted = at::matmul(solved.unsqueeze(0), matrix).flatten().contiguous();
    const auto* data = fitted.const_data_ptr<double>();
    std::string text;
    for (size_t r = 0; r < c.size(); ++r) {
      text += (r == 0 ? "rank " : ", rank ") + std::to_string(r) + " [";
      for (size_t m = 0; m < c[r].size(); ++m) {
        const auto k = static_cast<int64_t>(r * c[r].size() + m);
        const double value = solved[k].item<double>();
        text += (m == 0 ? "" : " ") + number(std::fabs(value) < 1e-6 ? 0 : value);
      }
      text += "]";
    }
    try_values(Values(data, data + rows), "got = a mix of the contributions",
               "coefficients (1 is right): " + text, kMatrix);
  }

  const Evidence& evidence_;
  const std::vector<int64_t>& wrong_;
  at::ScalarType dtype_;
  Values got_, want_;
  std::vector<Scored> found_;
};

}  // namespace

std::vector<Hypothesis> find_hypotheses(const Evidence& evidence,
                                        const std::vector<int64_t>& wrong) {
  if (wrong.empty()) return {};
  return Search(evidence, wrong).run();
}

}  // namespace equigrad::conformance::oracle
