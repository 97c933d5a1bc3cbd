#include "conformance/verdict/lane_tally.hpp"

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

void LaneTally::note(const std::string& where, int64_t differing) {
  if (differing == 0) return;
  const auto word = where.find(' ', 5) + 1;  // behind "step N"
  const auto end = std::min(where.find(' ', word), where.size());
  const std::string kind = where.starts_with("step ") ? where.substr(word, end - word) : where;
  const auto found = std::find_if(checks_.begin(), checks_.end(),
                                  [&](const Check& check) { return check.kind == kind; });
  if (found != checks_.end()) {
    found->differing += differing;
    return;
  }
  const bool has_step = where.starts_with("step ");
  checks_.push_back({kind, has_step ? std::atoi(where.c_str() + 5) - 1 : -1,
                     has_step && end < where.size() ? where.substr(end + 1) : "", differing});
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
  note(where, report.differing);
  if (first_.empty()) first_ = where + ": " + oracle::describe(report);
  keep_worst(where, begin + report.worst_index, report.worst_got, report.worst_want, 0,
             report.worst_ulp, report.worst_ulp);
  return false;
}

bool LaneTally::add(const std::string& where, int64_t begin, const oracle::BoundReport& report) {
  compared_ += report.compared;
  differing_ += report.violations;
  note(where, report.violations);
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
  note(where, 1);
  if (first_.empty()) first_ = where + ": " + what;
}

nlohmann::json LaneTally::to_json() const {
  auto checks = nlohmann::json::array();
  for (const auto& check : checks_)
    checks.push_back({{"kind", check.kind},
                      {"step", check.step},
                      {"of", check.of},
                      {"differing", check.differing}});
  return {{"compared", compared_}, {"differing", differing_}, {"margin", exact_text(margin_)},
          {"first", first_},       {"worst", worst_},         {"checks", checks}};
}

}  // namespace equigrad::conformance
