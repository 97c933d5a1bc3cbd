#include <algorithm>

#include "reports/summary.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad::reports {
namespace {

std::string escaped(const std::string& foreign, bool is_property) {
  static const Replacements kText = {{'%', "%25"}, {'\n', "%0A"}};
  static const Replacements kProperty = {{'%', "%25"}, {'\n', "%0A"}, {':', "%3A"}, {',', "%2C"}};
  return replaced(clean(foreign), is_property ? kProperty : kText);
}

std::string error_line(const std::string& title, const std::string& message) {
  return "::error title=" + escaped(title, true) + "::" + escaped(message, false) + "\n";
}

std::string case_line(const Case& one) {
  return error_line((vacuous(one) ? "empty" : spoken(one.verdict)) + " " + one.id,
                    message_with_replay(one));
}

}  // namespace

std::string to_annotations(const Run& run) {
  const std::vector<const Case*> wrong = worst_first(wrong_cases(run));
  std::string out;
  size_t room = kAnnotations - 1;
  const Outcome end = outcome(run);
  if (end == Outcome::Void || !run.failure.empty() || !run.engine_failure.empty() ||
      (end == Outcome::Inconclusive && wrong.empty())) {
    out += error_line("equigrad " + std::string(word(end)), outcome_text(run));
    --room;
  }
  const size_t shown = std::min(room, wrong.size());
  for (size_t i = 0; i < shown; ++i) out += case_line(*wrong[i]);
  const size_t more = wrong.size() - shown;
  if (more > 0) {
    out += error_line("equigrad", "and " + grouped(more) + " more, see the summary of this job");
  }
  return out;
}

}  // namespace equigrad::reports
