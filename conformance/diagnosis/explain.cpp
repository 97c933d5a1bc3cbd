#include "conformance/diagnosis/explain.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <stdexcept>

#include "conformance/diagnosis/hypotheses.hpp"
#include "conformance/oracle/bits.hpp"

namespace equigrad::conformance::oracle {
namespace {

constexpr size_t kMaxNamedRanks = 4;

at::Tensor checked_double(const at::Tensor& tensor, int64_t numel, const char* what) {
  if (!tensor.defined() || tensor.numel() != numel) {
    throw std::runtime_error(std::string("[oracle.explain] expected ") + std::to_string(numel) +
                             " elements of " + what + ".");
  }
  return tensor.detach().to(at::kCPU, at::kDouble).flatten().contiguous();
}

std::string printed(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::vector<int64_t> shape_of(const Evidence& evidence) {
  return evidence.shape.empty() ? evidence.want.sizes().vec() : evidence.shape;
}

int64_t numel_of(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t extent : shape) numel *= extent;
  return numel;
}

// "[12,40]" of a flat index in the whole parameter.
std::string position(int64_t flat, const std::vector<int64_t>& shape) {
  std::string text;
  for (size_t d = shape.size(); d-- > 0;) {
    const int64_t extent = std::max<int64_t>(shape[d], 1);
    text = std::to_string(flat % extent) + (text.empty() ? "" : "," + text);
    flat /= extent;
  }
  return "[" + text + "]";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ",") + std::to_string(extent);
  return "[" + text + "]";
}

// Whose shard the wrong elements are in. `wrong` is sorted, in flat indices of the whole parameter.
std::string place(const Evidence& evidence, const std::vector<int64_t>& wrong) {
  const std::string range =
      "flat " + std::to_string(wrong.front()) + ".." + std::to_string(wrong.back());
  if (evidence.shards <= 1) return range;
  const int64_t whole = numel_of(shape_of(evidence));
  const int64_t shard_numel = std::max<int64_t>(1, (whole + evidence.shards - 1) / evidence.shards);
  std::map<int64_t, int64_t> counts;
  for (const int64_t i : wrong) ++counts[i / shard_numel];
  if (counts.size() == 1) {
    return "all inside rank " + std::to_string(counts.begin()->first) + "'s shard, " + range;
  }
  if (counts.size() > kMaxNamedRanks) {
    return "in the shards of " + std::to_string(counts.size()) + " ranks, " + range;
  }
  std::string text;
  for (const auto& [rank, count] : counts) {
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (" +
            with_thousands(count) + ")";
  }
  return "in the shards of " + text + ", " + range;
}

// Fills in counts and the worst element; returns the wrong elements that are finite.
std::vector<int64_t> find_wrong(const Evidence& evidence, Explanation& result,
                                std::vector<int64_t>& everything, double& worst_size) {
  const int64_t numel = evidence.want.defined() ? evidence.want.numel() : 0;
  const at::Tensor got = checked_double(evidence.got, numel, "got");
  const at::Tensor want = checked_double(evidence.want, numel, "want");
  const at::Tensor bound =
      evidence.bound.defined() ? checked_double(evidence.bound, numel, "the bound") : at::Tensor();
  const auto* x = got.const_data_ptr<double>();
  const auto* y = want.const_data_ptr<double>();
  const auto* limit = bound.defined() ? bound.const_data_ptr<double>() : nullptr;
  const at::ScalarType dtype = evidence.got.scalar_type();
  result.compared = numel;
  bool worst_not_finite = false;
  std::vector<int64_t> wrong;
  for (int64_t i = 0; i < numel; ++i) {
    const bool finite = std::isfinite(x[i]) && std::isfinite(y[i]);
    const double error = std::fabs(x[i] - y[i]);
    if (x[i] == y[i] || (finite && limit != nullptr && error <= limit[i])) continue;
    everything.push_back(evidence.begin + i);
    double size = limit != nullptr ? error / limit[i] : ulp_distance(x[i], y[i], dtype);
    if (!finite) size = std::numeric_limits<double>::infinity();
    if (finite) wrong.push_back(i);
    if (result.worst_index < 0 || (finite == !worst_not_finite ? size > worst_size : !finite)) {
      worst_not_finite = !finite;
      worst_size = size;
      result.worst_index = evidence.begin + i;
      result.worst_got = x[i];
      result.worst_want = y[i];
    }
  }
  result.differing = static_cast<int64_t>(everything.size());
  result.not_finite = result.differing - static_cast<int64_t>(wrong.size());
  return wrong;
}

std::string worst_line(const Evidence& evidence, const Explanation& result, double worst_size) {
  std::string text = "    worst   " + position(result.worst_index, shape_of(evidence)) + "  got " +
                     printed("%.8e", result.worst_got) + "  want " +
                     printed("%.8e", result.worst_want);
  if (std::isfinite(result.worst_got) && std::isfinite(result.worst_want)) {
    if (evidence.bound.defined()) {
      const int64_t local = result.worst_index - evidence.begin;
      const auto limit = evidence.bound.flatten()[local].item<double>();
      text += "   |d| = " + printed("%.4g", worst_size) + " x bound " + printed("%.2e", limit);
      if (!evidence.formula.empty()) text += " (" + evidence.formula + ")";
    } else {
      text += "   |d| = " + printed("%.4g", worst_size) + " ulp";
    }
  }
  return text + "\n";
}

// The matrix, unless it says the same of all contributions.
std::string matrix_line(const Explanation& result, const Evidence& evidence) {
  if (result.hypotheses.empty() || result.hypotheses[0].coefficients.empty()) return "";
  const auto& matrix = result.hypotheses[0].coefficients;
  const int64_t terms = evidence.world * evidence.accumulation_steps;
  return "    C       " + matrix_text(matrix, evidence.divisor > 0 ? evidence.divisor : terms) +
         "\n";
}

std::string cause_line(const Explanation& result) {
  if (result.hypotheses.empty()) {
    const bool only = result.not_finite == result.differing;
    return std::string("    looks like  ") +
           (only ? "every wrong element is NaN or infinite" : "no known fault explains this") +
           "\n";
  }
  const Hypothesis& best = result.hypotheses.front();
  std::string text = "    looks like  " + best.text + "   (residual " +
                     printed("%.1f", best.residual_ulp) + " ulp";
  if (result.hypotheses.size() > 1) {
    const Hypothesis& next = result.hypotheses[1];
    text += "; next best: " + next.cause + ", " + printed("%.4g", next.residual_ulp) + " ulp";
  }
  return text + ")\n";
}

}  // namespace

std::string with_thousands(int64_t number) {
  std::string digits = std::to_string(number);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ' ');
  }
  return digits;
}

Explanation explain(const Evidence& evidence) {
  Explanation result;
  std::vector<int64_t> everything;  // flat indices in the whole parameter
  double worst_size = 0;
  const std::vector<int64_t> wrong = find_wrong(evidence, result, everything, worst_size);
  result.text = "  " + evidence.name + " " + shape_text(shape_of(evidence)) + "   ";
  if (result.differing == 0) {
    result.text += "none of " + with_thousands(result.compared) + " elements differ\n";
    return result;
  }
  const double share =
      100 * static_cast<double>(result.differing) / static_cast<double>(result.compared);
  if (result.not_finite > 0) {
    result.text += with_thousands(result.not_finite) + " not finite; ";
  }
  result.text += with_thousands(result.differing) + " of " + with_thousands(result.compared) +
                 (evidence.bound.defined() ? " elements beyond bound (" : " elements differ (") +
                 printed("%.1f", share) + " %)\n";
  result.where = place(evidence, everything);
  result.hypotheses = find_hypotheses(evidence, wrong);
  result.text += worst_line(evidence, result, worst_size) + "    where   " + result.where + "\n" +
                 cause_line(result) + matrix_line(result, evidence);
  result.is_sure = !result.hypotheses.empty() &&
                   10 * result.hypotheses[0].explained >= 9 * static_cast<int64_t>(wrong.size());
  if (result.is_sure && !result.hypotheses[0].coefficients.empty())
    result.culprit = culprit_of(result.hypotheses[0].coefficients);
  return result;
}

}  // namespace equigrad::conformance::oracle
