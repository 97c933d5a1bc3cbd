#include <algorithm>
#include <sstream>

#include "reports/kill_matrix.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

void write_row(std::ostringstream& out, const FaultRow& row) {
  out << "| " << escape_markdown(row.name) << " | " << escape_markdown(row.what) << " | "
      << word(row.fate) << " | ";
  if (row.found.empty()) {
    out << "| | | " << escape_markdown(row.proof) << " |";
  } else {
    const Found& found = row.found.front();
    out << (found.after_steps < 0 ? "?" : std::to_string(found.after_steps)) << " | "
        << (found.located ? "yes" : "no") << " | " << (is_covered(row) ? "yes" : "no") << " | ";
    for (std::size_t i = 0; i < found.checks.size(); ++i)
      out << (i == 0 ? "" : ", ") << escape_markdown(found.checks[i]);
    out << " |";
  }
  for (std::size_t i = 0; i < kRulesElsewhere; ++i)
    out << " " << (!row.has_data ? "–" : row.elsewhere[i] ? "x" : " ") << " |";
  out << "\n";
}

void write_alarms(std::ostringstream& out, const CleanRuns& clean_runs) {
  for (const auto& alarm : clean_runs.alarms)
    out << "\nFalse alarm: " << escape_markdown(alarm.id) << ": "
        << escape_markdown(first_line(alarm.message))
        << " Replay: " << escape_markdown(alarm.replay) << "\n";
}

}  // namespace

std::string to_markdown(const KillMatrix& matrix) {
  std::ostringstream out;
  const Environment& env = matrix.environment;
  out << "## Equigrad faults: " << word(outcome(matrix)) << "\n";
  if (!matrix.failure.empty()) out << "\n" << escape_markdown(matrix.failure) << "\n";
  for (const auto& line : summary_lines(matrix)) out << "\n" << escape_markdown(line) << ".\n";
  write_alarms(out, matrix.clean);
  out << "\n| fault | what | fate | steps | located | covering | checks, or proof |";
  for (const char* rule : kRuleNames) out << " " << escape_markdown(rule) << " |";
  out << "\n|:--|:--|:--|--:|:--|:--|:--|";
  for (std::size_t i = 0; i < kRulesElsewhere; ++i) out << "--:|";
  out << "\n";
  for (const auto& row : matrix.faults) write_row(out, row);
  out << "\n"
      << environment_line(env) << ", " << escape_markdown(env.time) << ", "
      << seconds_text(matrix.wall_s) << "\n";
  return out.str();
}

}  // namespace equigrad::reports
