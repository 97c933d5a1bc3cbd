#include <algorithm>
#include <cstdio>
#include <sstream>

#include "reports/kill_matrix.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

constexpr std::size_t kChecksShown = 3;

std::string steps_text(int64_t steps) { return steps < 0 ? "?" : "+" + std::to_string(steps); }

std::string marks(const FaultRow& row) {
  std::string out;
  for (std::size_t i = 0; i < kRulesElsewhere; ++i)
    out += !row.has_data ? '-' : row.elsewhere[i] ? 'x' : '.';
  return out;
}

std::string first_checks(const Found& found) {
  std::vector<std::string> checks = found.checks;
  if (checks.size() <= kChecksShown) return joined(checks, " ");
  checks.resize(kChecksShown);
  return joined(checks, " ") + " and " + std::to_string(found.checks.size() - kChecksShown) +
         " more";
}

void write_line(std::ostringstream& out, const FaultRow& row, int width) {
  char line[256];
  const bool caught = row.fate == Fate::Caught && !row.found.empty();
  std::snprintf(line, sizeof line, "%-*s  %-11s  %-12s", width, row.name.c_str(),
                std::string(word(row.fate)).c_str(), row.seam.c_str());
  out << line;
  if (caught) {
    const Found& found = row.found.front();
    std::snprintf(line, sizeof line, "  %4s  %s  %s  %s  %6.2f",
                  steps_text(found.after_steps).c_str(), found.located ? "yes" : "no ",
                  is_covered(row) ? "yes" : "no ", marks(row).c_str(), row.seconds);
    out << line << "  " << first_checks(found) << "\n";
  } else if (row.fate == Fate::Equivalent) {
    out << "  " << clean(row.proof) << "\n";
  } else {
    out << "  " << count_of(row.cases, "case") << ", acted " << grouped(row.acted_times)
        << " times\n";
  }
}

void write_worst(std::ostringstream& out, const KillMatrix& matrix) {
  for (const auto& row : matrix.faults)
    if (row.fate == Fate::Survived || row.fate == Fate::DidNotAct)
      out << (row.fate == Fate::Survived ? "SURVIVED  " : "DID NOT ACT  ") << row.name << ": "
          << clean(row.what) << "\n";
  for (const auto& alarm : matrix.clean.alarms)
    out << "FALSE ALARM  " << alarm.id << "\n"
        << clean(alarm.message) << "# replay: " << clean(alarm.replay) << "\n";
}

std::string verdict(const KillMatrix& matrix) {
  const bool alone = matrix.covering_only;
  switch (outcome(matrix)) {
    case Outcome::Held:
      return alone ? "the covering selection alone catches as many faults as it must."
                   : "every fault was caught or is proved to change nothing, and nothing clean "
                     "raised an alarm.";
    case Outcome::Failed:
      return alone ? "the covering selection alone does not catch as many faults as it must."
                   : "a fault survived or did not act, the covering selection catches too few, or "
                     "something clean raised an alarm.";
    case Outcome::Void:
    case Outcome::Broken:
      return clean(matrix.failure);
    case Outcome::Inconclusive:
      return "not everything that was asked for was run; --minutes gives more time.";
    case Outcome::Interrupted:
      return "this is what was found so far.";
  }
  return {};
}

void write_row(std::ostringstream& out, const FaultRow& row) {
  out << "| " << escape_markdown(row.name) << " | " << escape_markdown(row.what) << " | "
      << word(row.fate) << " | ";
  if (row.found.empty()) {
    out << "| | | " << escape_markdown(row.proof) << " |";
  } else {
    const Found& found = row.found.front();
    out << (found.after_steps < 0 ? "?" : std::to_string(found.after_steps)) << " | "
        << (found.located ? "yes" : "no") << " | " << (is_covered(row) ? "yes" : "no") << " | ";
    out << escape_markdown(joined(found.checks, ", ")) << " |";
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

std::string to_terminal(const KillMatrix& matrix) {
  std::ostringstream out;
  std::size_t width = 5;
  for (const auto& row : matrix.faults) width = std::max(width, row.name.size());
  char line[256];
  std::snprintf(line, sizeof line, "# %-*s  %-11s  %-12s  %4s  %s  %s  %s  %6s  %s\n",
                static_cast<int>(width) - 2, "fault", "fate", "seam", "step", "loc", "cov", "else",
                "s", "checks that caught it");
  out << line;
  for (const auto& row : matrix.faults) write_line(out, row, static_cast<int>(width));
  out << "#\n# step: optimizer steps from the one in which it acted; loc: located on the first "
         "line\n# cov: caught by a case of the covering selection\n# else: ";
  out << joined({kRuleNames.begin(), kRuleNames.end()}, ", ")
      << "; x: would have seen it\n#\n# check that saw it: faults it saw, and saw first\n";
  for (const auto& check : checks_of(matrix)) {
    std::snprintf(line, sizeof line, "#   %-24s %5lld %5lld\n", check.check.c_str(),
                  static_cast<long long>(check.all), static_cast<long long>(check.first));
    out << line;
  }
  out << "#\n";
  for (const auto& text : summary_lines(matrix)) out << "# " << text << "\n";
  std::snprintf(line, sizeof line, "# %.1f minutes for the faults, %.1f in all\n",
                matrix.faults_s / 60, matrix.wall_s / 60);
  out << line;
  write_worst(out, matrix);
  out << upper_case(word(outcome(matrix))) << "  " << verdict(matrix) << "\n";
  return out.str();
}

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
