#include <algorithm>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "reports/page.hpp"
#include "reports/parts.hpp"
#include "reports/summary.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad::reports {
namespace {

using Cells = std::vector<std::string>;
constexpr size_t kMostRows = 48;  // more groups are shown by precision alone

const char* colour_of(Verdict verdict) {
  if (verdict == Verdict::Equal || verdict == Verdict::Within) return "\x1b[32m";
  return went_wrong(verdict) ? "\x1b[31m" : "\x1b[33m";
}

std::string painted(const std::string& text, const char* colour, const TerminalOptions& options) {
  return options.colour ? colour + text + "\x1b[0m" : text;
}

void write_environment(std::ostringstream& out, const Run& run) {
  const Environment& env = run.environment;
  out << "# equigrad " << env.version << "   commit " << env.commit << "   torch " << env.torch
      << "   " << env.compiler << "   " << env.device << "   " << env.cpu << " x" << env.cores
      << "   " << count_of(env.threads_per_rank, "thread") << " a rank   seed " << run.seed << "\n"
      << "# " << clean(run.command) << "\n";
}

// The page and run.json tell all of them.
void write_self_checks(std::ostringstream& out, const Run& run, const TerminalOptions& options) {
  if (run.engine_failure.empty() && self_checked(run)) {
    out << "# planted: " << count_of(run.self_checks.size(), "fault") << ", all caught\n";
    return;
  }
  for (const SelfCheck& check : run.self_checks) {
    out << "# planted: " << clean(words_of(check)) << " -> "
        << (check.caught ? "caught by " + clean(check.by)
                         : painted("NOT CAUGHT", colour_of(Verdict::Failed), options) +
                               (check.by.empty() ? "" : ": " + clean(check.by)))
        << "\n";
  }
  if (!run.engine_failure.empty())
    out << "# planted: no fault more. "
        << painted(engine_text(run), colour_of(Verdict::Failed), options) << "\n";
  else if (run.self_checks.empty())
    out << "# planted: no fault\n";
}

Cells row_of(const Group& group) {
  const LaneTotal* bounded = group.lane("bounded");
  const Verdict verdict = group.verdict();
  std::string state = spoken(verdict);
  const Counts& sum = group.counts;
  const int64_t wrong = sum.went_wrong();
  if (wrong > 0) {
    const bool mixed = (sum.failed > 0) + (sum.crashed > 0) + (sum.timed_out > 0) > 1;
    state = grouped(wrong) + " of " + grouped(sum.total()) + " " + (mixed ? "went wrong" : state);
  }
  const bool partly = sum.executed() > 0;
  if (partly && sum.skipped > 0) state += ", " + grouped(sum.skipped) + " skipped";
  if (partly && sum.not_run > 0) state += ", " + grouped(sum.not_run) + " not run";
  if (sum.vacuous > 0) state += ", " + grouped(sum.vacuous) + " empty";
  return {group.key[0],
          group.key[1],
          group.key[2],
          grouped(sum.total()),
          grouped(sum.compared),
          lane_text(group, "exact"),
          lane_text(group, "cross"),
          bounded == nullptr || bounded->cases == 0 ? "-" : short_number(bounded->ulp),
          lane_text(group, "bounded"),
          seconds_text(group.seconds),
          state};
}

void write_row(std::ostringstream& out, const Cells& cells, const std::vector<size_t>& widths,
               const std::string& front) {
  std::string line = front;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths[i] - std::min(widths[i], cells[i].size()), ' ');
    const bool left = i == 1 || i + 1 == cells.size();  // words: precision and verdict
    line += (i == 0 ? "" : "  ") + (left ? cells[i] + padding : padding + cells[i]);
  }
  out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
}

std::vector<size_t> widths_of(const std::vector<Cells>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const Cells& row : rows)
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  return widths;
}

// Leaves columns out until the rows fit; their names.
std::vector<std::string> narrow(std::vector<Cells>& rows, size_t columns) {
  std::vector<std::string> left_out;
  for (const std::string name : {"time", "bounded", "margin", "cross", "compared"}) {
    const auto widths = widths_of(rows);
    const size_t all = std::accumulate(widths.begin(), widths.end(), 2 * widths.size());
    if (columns == 0 || all <= columns) break;
    const auto at = std::find(rows[0].begin(), rows[0].end(), name) - rows[0].begin();
    for (Cells& row : rows) row.erase(row.begin() + at);
    left_out.push_back(name);
  }
  return left_out;
}

void write_table(std::ostringstream& out, const Run& run, const TerminalOptions& options) {
  const Cells head = {"stage", "precision", "ranks",  "cases", "compared", "exact",
                      "cross", "bounded",   "margin", "time",  "verdict"};
  const Cells units = {"",      "",           "", "", "(elements)", "(differing)", "(differing)",
                       "(ulp)", "(of bound)", "", ""};
  std::vector<Group> groups = group_by(run, {"stage", "precision", "ranks"});
  if (groups.size() > kMostRows) {
    groups = group_by(run, {"precision"});
    for (Group& group : groups) group.key = {"all", group.key[0], "all"};
  }
  std::vector<Cells> rows = {head, units};
  for (const Group& group : groups) rows.push_back(row_of(group));
  const auto left_out = narrow(rows, options.columns);
  const auto widths = widths_of(rows);
  out << "#\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string& state = rows[i].back();
    if (i > 1) state = painted(state, colour_of(groups[i - 2].verdict()), options);
    write_row(out, rows[i], widths, i > 1 ? "  " : "# ");
  }
  if (!left_out.empty()) out << "# too wide, in run.json: " << joined(left_out, ", ") << "\n";
}

void write_wrong(std::ostringstream& out, const Run& run, const TerminalOptions& options) {
  const std::vector<const Case*> wrong = wrong_cases(run);
  for (size_t i = 0; i < std::min(wrong.size(), options.messages); ++i) {
    const Case& one = *wrong[i];
    const std::string state = passed(one.verdict) ? "empty" : spoken(one.verdict);
    const std::string message = clean(message_of(one));
    out << "\n" << painted(state, colour_of(Verdict::Failed), options) << "  " << clean(one.id);
    std::istringstream lines(message);
    for (std::string line; std::getline(lines, line);) out << "\n  " << line;
    const bool told = message.find(clean(one.replay)) != std::string::npos;
    out << (told ? "" : "\n  replay: " + clean(one.replay)) << "\n";
  }
  if (wrong.size() > options.messages) {
    out << "\nand " << grouped(wrong.size() - options.messages)
        << " more; run.json lists them all\n";
  }
}

}  // namespace

std::string to_terminal(const Run& run, const TerminalOptions& options) {
  std::ostringstream out;
  const Counts sum = counts(run);
  const Outcome end = outcome(run);
  write_environment(out, run);
  write_self_checks(out, run, options);
  write_table(out, run, options);
  out << contract_lines(run) << underflow_lines(run);
  write_wrong(out, run, options);
  out << "\n";
  for (const Reason& reason : reasons(run))
    out << "# " << spoken(reason.verdict) << ": " << count_of(reason.cases, "case") << ", "
        << clean(reason.text) << "\n";
  for (const std::string& line : part_lines(run)) out << "# " << line << "\n";
  const Verdict tone = end == Outcome::Held                             ? Verdict::Equal
                       : end == Outcome::Failed || end == Outcome::Void ? Verdict::Failed
                                                                        : Verdict::NotRun;
  out << "# " << counts_text(sum) << "; " << elements_text(sum, run.wall_s) << "\n"
      << painted(upper_case(word(end)), colour_of(tone), options) << "  " << outcome_text(run)
      << "\n";
  const std::vector<const Case*> wrong = wrong_cases(run);
  const std::string replay =
      wrong.empty() || wrong[0]->replay.empty() ? run.command : wrong[0]->replay;
  out << replay_line(replay);
  return out.str();
}

}  // namespace equigrad::reports
