#include "conformance/lane_tally.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace equigrad::conformance {

std::string exact_text(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

double exact_value(const nlohmann::json& text) {
  return std::strtod(text.get<std::string>().c_str(), nullptr);
}

void LaneTally::keep_worst(const std::string& where, int64_t index, double got, double want,
                           double bound, double ulp, double badness) {
  if (std::isnan(badness)) badness = std::numeric_limits<double>::infinity();
  if (badness <= badness_) return;
  badness_ = badness;
  worst_ = {{"tensor", where},
            {"index", index},
            {"got", exact_text(got)},
            {"want", exact_text(want)},
            {"bound", exact_text(bound)},
            {"ulp", exact_text(ulp)}};
}

bool LaneTally::add(const std::string& where, int64_t begin, const oracle::BitsReport& report) {
  if (!report.mismatch.empty()) {
    add_finding(where, report.mismatch);
    return false;
  }
  compared_ += report.compared;
  differing_ += report.differing;
  if (report.differing == 0) return true;
  if (first_.empty()) first_ = where + ": " + oracle::describe(report);
  keep_worst(where, begin + report.worst_index, report.worst_got, report.worst_want, 0,
             report.worst_ulp, report.worst_ulp);
  return false;
}

bool LaneTally::add(const std::string& where, int64_t begin, const oracle::BoundReport& report) {
  compared_ += report.compared;
  differing_ += report.violations;
  margin_ = std::max(margin_, report.margin);
  if (report.worst_index >= 0)
    keep_worst(
        where, begin + report.worst_index, report.worst_got, report.worst_want, report.worst_bound,
        oracle::ulp_distance(report.worst_got, report.worst_want, at::kFloat), report.margin);
  if (report.violations > 0 && first_.empty()) first_ = where + ": " + oracle::describe(report);
  return report.violations == 0;
}

bool LaneTally::add_pass_or_fail(const std::string& where, int64_t begin,
                                 oracle::BoundReport report) {
  if (report.violations == 0) {
    report.margin = 0;
    report.worst_index = -1;
  }
  return add(where, begin, report);
}

void LaneTally::add_finding(const std::string& where, const std::string& what) {
  ++compared_;
  ++differing_;
  if (first_.empty()) first_ = where + ": " + what;
}

nlohmann::json LaneTally::to_json() const {
  return {{"compared", compared_},
          {"differing", differing_},
          {"margin", exact_text(margin_)},
          {"first", first_},
          {"worst", worst_}};
}

}  // namespace equigrad::conformance
