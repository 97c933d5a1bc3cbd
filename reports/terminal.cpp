#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "reports/causes.hpp"
#include "reports/merge.hpp"
#include "reports/page.hpp"
#include "reports/parts.hpp"
#include "reports/summary.hpp"
#include "reports/table.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad::reports {
namespace {

constexpr size_t kMostRows = 48;  // more groups are shown by precision alone

const char* colour_of(Verdict verdict) {
  if (verdict == Verdict::Equal || verdict == Verdict::Within) return "\x1b[32m";
  return went_wrong(verdict) ? "\x1b[31m" : "\x1b[33m";
}

std::string painted(const std::string& text, const char* colour, const TerminalOptions& options) {
  return options.colour ? colour + text + "\x1b[0m" : text;
}

void write_environment(std::ostringstream& out, const Run& run, const TerminalOptions& options) {
  const Environment& env = run.environment;
  const std::string text = "# equigrad " + env.version + "   commit " + env.commit + "   torch " +
                           env.torch + "   " + env.compiler + "   " + env.device + "   " + env.cpu +
                           " x" + std::to_string(env.cores) + "   " +
                           count_of(env.threads_per_rank, "thread") + " a rank   seed " +
                           std::to_string(run.seed);
  out << fitted(text + "\n", options.columns) << "# " << clean(run.command) << "\n";
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

TableRow row_of(const Group& group) {
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

void write_row(std::ostringstream& out, const TableRow& cells, const std::vector<size_t>& widths,
               const std::string& front) {
  std::string line = front;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths[i] - std::min(widths[i], width_of(cells[i])), ' ');
    const bool left = i == 1 || i + 1 == cells.size();  // words: precision and verdict
    line += (i == 0 ? "" : "  ") + (left ? cells[i] + padding : padding + cells[i]);
  }
  out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
}

void write_table(std::ostringstream& out, const Run& run, const TerminalOptions& options) {
  const TableRow head = {"stage", "precision", "ranks",  "cases", "compared", "exact",
                         "cross", "bounded",   "margin", "time",  "verdict"};
  const TableRow units = {"",      "",           "", "", "(elements)", "(differing)", "(differing)",
                          "(ulp)", "(of bound)", "", ""};
  std::vector<Group> groups = group_by(run, {"stage", "precision", "ranks"});
  if (groups.size() > kMostRows) {
    groups = group_by(run, {"precision"});
    for (Group& group : groups) group.key = {"all", group.key[0], "all"};
  }
  std::vector<TableRow> rows = {head, units};
  for (const Group& group : groups) rows.push_back(row_of(group));
  constexpr size_t kFront = 2;  // "# "
  const auto left_out = narrow(rows, options.columns - std::min(options.columns, kFront),
                               {"time", "bounded", "margin", "cross", "compared"});
  const auto widths = widths_of(rows);
  out << "#\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string& state = rows[i].back();
    if (i > 1) state = painted(state, colour_of(groups[i - 2].verdict()), options);
    write_row(out, rows[i], widths, i > 1 ? "  " : "# ");
  }
  if (!left_out.empty()) out << "# too wide, in run.json: " << joined(left_out, ", ") << "\n";
}

// A line to paste stays one line.
void write_message(std::ostringstream& out, const Case& one, const TerminalOptions& options) {
  const std::string message = clean(message_of(one)), replay = clean(one.replay);
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);)
    out << fitted("  " + line + "\n", options.columns, clean(one.id));
  if (message.find(replay) == std::string::npos) out << "  replay: " << replay << "\n";
}

// Each cause once: its worst case in full, and where else it was.
void write_wrong(std::ostringstream& out, const Run& run, const TerminalOptions& options) {
  const std::vector<Cause> found = causes(run);
  for (size_t i = 0; i < std::min(found.size(), options.messages); ++i) {
    const Case& one = *found[i].cases.front();
    const std::string state = passed(one.verdict) ? "empty" : spoken(one.verdict);
    out << "\n"
        << painted(state, colour_of(Verdict::Failed), options) << "  " << clean(one.id) << "\n";
    write_message(out, one, options);
    if (found[i].cases.size() > 1)
      out << fitted("  this cause: " + where_text(found[i]) + "\n", options.columns);
  }
  if (found.size() > options.messages) {
    out << "\nand " << count_of(static_cast<int64_t>(found.size() - options.messages), "more cause")
        << "; the report and run.json have them all\n";
  }
}

// What was not asked for is told from its other end: 3 of 10 cases, not 7 others.
std::string reason_line(const Run& run, const Reason& reason) {
  if (reason.text != kNotSelected)
    return "# " + spoken(reason.verdict) + ": " + count_of(reason.cases, "case") + ", " +
           clean(reason.text) + "\n";
  const auto all = counts(run).total();
  return "# selected: " + grouped(all - reason.cases) + " of " + count_of(all, "case") + "\n";
}

}  // namespace

std::string to_terminal(const Run& run, const TerminalOptions& options) {
  std::ostringstream out;
  const Counts sum = counts_of_selected(run);
  const Outcome end = outcome(run);
  write_environment(out, run, options);
  write_self_checks(out, run, options);
  write_table(out, run, options);
  out << fitted(contract_lines(run) + underflow_lines(run), options.columns);
  write_wrong(out, run, options);
  out << "\n";
  std::string notes;
  for (const Reason& reason : reasons(run)) notes += reason_line(run, reason);
  for (const std::string& line : part_lines(run)) notes += "# " + line + "\n";
  notes += "# " + counts_text(sum) + "; " + elements_text(sum, run.wall_s) + "\n";
  const Verdict tone = end == Outcome::Held                             ? Verdict::Equal
                       : end == Outcome::Failed || end == Outcome::Void ? Verdict::Failed
                                                                        : Verdict::NotRun;
  const std::string state = upper_case(word(end));
  out << fitted(notes, options.columns) << painted(state, colour_of(tone), options)
      << fitted(state + "  " + outcome_text(run) + "\n", options.columns).substr(state.size());
  const std::vector<const Case*> wrong = wrong_cases(run);
  const std::string replay =
      wrong.empty() || wrong[0]->replay.empty() ? run.command : wrong[0]->replay;
  out << replay_line(replay);
  return out.str();
}

}  // namespace equigrad::reports
