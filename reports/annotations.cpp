#include "reports/annotations.hpp"

#include <algorithm>

#include "reports/summary.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string escaped(const std::string& foreign, bool property) {
  std::string out;
  for (const char c : clean(foreign)) {
    switch (c) {
      case '%':
        out += "%25";
        break;
      case '\n':
        out += "%0A";
        break;
      case ':':
        out += property ? "%3A" : ":";
        break;
      case ',':
        out += property ? "%2C" : ",";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string error_line(const std::string& title, const std::string& message) {
  return "::error title=" + escaped(title, true) + "::" + escaped(message, false) + "\n";
}

std::string case_line(const Case& one) {
  const bool empty = passed(one.verdict);
  const std::string message = empty ? "passed without comparing anything" : message_of(one);
  return error_line((empty ? "empty" : spoken(one.verdict)) + " " + one.id,
                    message + (one.replay.empty() ? "" : "\nreplay: " + one.replay));
}

}  // namespace

std::string to_annotations(const Run& run) {
  const std::vector<const Case*> wrong = worst_first(wrong_cases(run));
  std::string out;
  size_t room = kAnnotations - 1;
  const Outcome end = outcome(run);
  if (end == Outcome::Void || !run.failure.empty() ||
      (end == Outcome::Inconclusive && wrong.empty())) {
    out += error_line("equigrad " + std::string(word(end)), outcome_text(run));
    --room;
  }
  const size_t shown = std::min(room, wrong.size());
  for (size_t i = 0; i < shown; ++i) out += case_line(*wrong[i]);
  const auto more = static_cast<int64_t>(wrong.size() - shown);
  if (more > 0) {
    out += error_line("equigrad", "and " + grouped(more) + " more, see the summary of this job");
  }
  return out;
}

}  // namespace equigrad::reports
