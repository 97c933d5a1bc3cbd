#include <vector>

#include "reports/document.hpp"
#include "reports/page.hpp"
#include "reports/parts.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

// "0: 12, 1: 40, ...": as many as fit.
std::string counted(const GeneratedAxis& axis) {
  std::string text;
  for (const auto& [value, cases] : axis.cases)
    text += (text.empty() ? "" : ", ") + value + ": " + grouped(cases);
  return text;
}

std::string listed(const std::vector<std::string>& values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : ", ") + value;
  return text;
}

}  // namespace

std::string page_generated(const Run& run) {
  if (!run.generated)
    return empty_section("generated", "Generated cases", "No case of this run was drawn.");
  std::string rows;
  for (const auto& axis : run.generated->axes)
    rows += row(shown(axis.name, 80), cell(counted(axis), 300) + cell(listed(axis.never), 200));
  return folded_section(
      "generated", "Generated cases", count_of(run.generated->cases, "case"),
      paragraph(escape_xml(generated_line(run))) +
          table("What the cases that were drawn have had: a key of the configuration or "
                "a property of the case, how many cases had each value, and which known "
                "values none had",
                heads({"Axis", "Cases by value", "Never"}), rows));
}

}  // namespace equigrad::reports
