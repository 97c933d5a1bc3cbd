#include <algorithm>
#include <sstream>

#include "reports/kill_matrix.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

// Text in a cell or a line: what would be markup is spelt out.
std::string inert(const std::string& foreign) {
  std::string out;
  for (const char c : clean(foreign)) {
    if (c == '\n')
      out += ' ';
    else if (std::string_view("<>&").find(c) != std::string_view::npos)
      out += escape_xml(std::string(1, c));
    else if (std::string_view("\\`*[]|").find(c) != std::string_view::npos)
      out += std::string("\\") + c;
    else
      out += c;
  }
  return out;
}

void write_row(std::ostringstream& out, const FaultRow& row) {
  out << "| " << inert(row.name) << " | " << inert(row.what) << " | " << word(row.fate) << " | ";
  if (row.found.empty()) {
    out << "| | " << inert(row.proof) << " |";
  } else {
    const Found& found = row.found.front();
    out << (found.after_steps < 0 ? "?" : std::to_string(found.after_steps)) << " | "
        << (found.located ? "yes" : "no") << " | ";
    for (std::size_t i = 0; i < found.checks.size(); ++i)
      out << (i == 0 ? "" : ", ") << inert(found.checks[i]);
    out << " |";
  }
  for (std::size_t i = 0; i < kRulesElsewhere; ++i)
    out << " " << (!row.has_data ? "–" : row.elsewhere[i] ? "x" : " ") << " |";
  out << "\n";
}

void write_alarms(std::ostringstream& out, const CleanRuns& clean_runs) {
  for (const auto& alarm : clean_runs.alarms)
    out << "\nFalse alarm: " << inert(alarm.id) << ": " << inert(first_line(alarm.message))
        << " Replay: " << inert(alarm.replay) << "\n";
}

}  // namespace

std::string to_markdown(const KillMatrix& matrix) {
  std::ostringstream out;
  const Environment& env = matrix.environment;
  out << "## Equigrad faults: " << word(outcome(matrix)) << "\n";
  if (!matrix.failure.empty()) out << "\n" << inert(matrix.failure) << "\n";
  for (const auto& line : summary_lines(matrix)) out << "\n" << inert(line) << ".\n";
  write_alarms(out, matrix.clean);
  out << "\n| fault | what | fate | steps | located | checks, or proof |";
  for (const char* rule : kRuleNames) out << " " << inert(rule) << " |";
  out << "\n|:--|:--|:--|--:|:--|:--|";
  for (std::size_t i = 0; i < kRulesElsewhere; ++i) out << "--:|";
  out << "\n";
  for (const auto& row : matrix.faults) write_row(out, row);
  out << "\nequigrad " << inert(env.version) << ", commit " << inert(env.commit) << ", torch "
      << inert(env.torch) << ", " << inert(env.compiler) << ", " << inert(env.cpu) << " x"
      << env.cores << ", " << inert(env.time) << ", " << seconds_text(matrix.wall_s) << "\n";
  return out.str();
}

}  // namespace equigrad::reports
