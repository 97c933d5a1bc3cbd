#include "reports/kill_matrix.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>

#include "reports/table.hpp"
#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

std::string percent(int64_t part, int64_t whole) {
  return formatted("%.1f %%",
                   whole == 0 ? 0.0 : 100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string of(int64_t part, int64_t whole) { return grouped(part) + " of " + grouped(whole); }

std::string kills_line(const std::string& name, const KillCounts& sum) {
  std::string out = name + ": " + of(sum.caught, sum.faults) + " caught, " +
                    grouped(sum.within_one_step) + " of them within one step";
  if (sum.equivalent > 0) out += "; " + grouped(sum.equivalent) + " proved to change no bit";
  if (sum.survived > 0) out += "; " + grouped(sum.survived) + " SURVIVED";
  if (sum.did_not_act > 0) out += "; " + grouped(sum.did_not_act) + " DID NOT ACT";
  if (sum.not_run > 0) out += "; " + grouped(sum.not_run) + " not run";
  return out;
}

std::string covering_line(const KillMatrix& matrix) {
  const auto part = [&](const char* name, Faults which, double floor) {
    const auto sum = counts(matrix, which);
    return std::string(name) + " " + of(sum.by_covering, sum.faults) + ", " +
           percent(sum.by_covering, sum.faults) + " (at least " +
           formatted("%.0f %%", 100 * floor) + ")";
  };
  return "caught by the covering selection alone, " + count_of(matrix.panel.size(), "case") + ": " +
         part("historical faults", Faults::Historical, kCoveringHistorical) + "; " +
         part("mutants", Faults::Mutants, kCoveringMutants);
}

// Whether what catches a fault is more than luck; nothing is said of those that were not counted.
std::string thin_line(const KillMatrix& matrix) {
  constexpr std::size_t kNamed = 5;
  std::vector<std::string> thin;
  int64_t open = 0;
  for (const auto& row : matrix.faults) {
    if (is_thin(row)) thin.push_back(thin_text(row));
    open += row.fate == Fate::Caught && !row.all_tried && row.found.size() < kEnoughCatches;
  }
  const std::string few = "caught by fewer than " + std::to_string(kEnoughCatches) + " cases: ";
  std::string out = few + count_of(thin.size(), "fault");
  if (!thin.empty()) {
    const std::size_t more = thin.size() - std::min(thin.size(), kNamed);
    thin.resize(thin.size() - more);
    out += ", " + joined(thin, ", ") + (more > 0 ? " and " + grouped(more) + " more" : "");
  }
  if (open > 0)
    out += "; " + grouped(open) + " not counted" +
           (matrix.is_counted ? ", for want of time" : " behind the first (--thin does)");
  if (matrix.is_counted) out += "; counting took " + seconds_text(matrix.counting_s);
  return out;
}

// Of checks, in a row that fits and in one that would not.
constexpr std::size_t kChecksShown = 3, kFewChecks = 1;
constexpr const char* kChecks = "checks that caught it";

std::string steps_text(int64_t steps) { return steps < 0 ? "?" : "+" + std::to_string(steps); }

std::string marks(const FaultRow& row) {
  std::string out;
  for (std::size_t i = 0; i < kRulesElsewhere; ++i)
    out += !row.has_data ? '-' : row.elsewhere[i] ? 'x' : '.';
  return out;
}

std::string first_checks(const Found& found, std::size_t most) {
  std::vector<std::string> checks = found.checks;
  if (checks.size() <= most) return joined(checks, " ");
  checks.resize(most);
  return joined(checks, " ") + " and " + std::to_string(found.checks.size() - most) + " more";
}

bool has_catch(const FaultRow& row) { return row.fate == Fate::Caught && !row.found.empty(); }

// Of a fault that was not caught the first cells; what there is to say of it stands behind them.
TableRow cells_of(const FaultRow& row, std::size_t checks) {
  TableRow cells = {row.name, std::string(word(row.fate)), row.seam};
  if (!has_catch(row)) return cells;
  const Found& found = row.found.front();
  for (const std::string& cell :
       {steps_text(found.after_steps), std::string(found.located ? "yes" : "no"),
        std::string(is_covered(row) ? "yes" : "no"), catches_text(row), marks(row),
        formatted("%.2f", row.seconds), first_checks(found, checks)})
    cells.push_back(cell);
  return cells;
}

std::string words_behind(const FaultRow& row) {
  if (has_catch(row)) return "";
  if (row.fate == Fate::Equivalent) return "  " + clean(row.proof);
  return "  " + count_of(row.cases, "case") + ", acted " + grouped(row.acted_times) + " times";
}

std::vector<TableRow> rows_of(const KillMatrix& matrix, std::size_t checks) {
  std::vector<TableRow> rows = {
      {"# fault", "fate", "seam", "step", "loc", "cov", "by", "else", "s", kChecks}};
  for (const auto& row : matrix.faults) rows.push_back(cells_of(row, checks));
  return rows;
}

void write_faults(std::ostringstream& out, const KillMatrix& matrix, std::size_t columns) {
  auto rows = rows_of(matrix, kChecksShown);
  if (columns > 0 && line_width(rows) > columns) rows = rows_of(matrix, kFewChecks);
  const auto left_out = narrow(rows, columns, {"s", "else", "seam", "loc", "cov", "by", "step"});
  const auto lines = aligned_lines(rows, {"fate", "seam", "loc", "cov", "else", kChecks});
  out << fitted(lines[0] + "\n", columns);
  for (std::size_t i = 1; i < lines.size(); ++i)
    out << fitted(lines[i] + words_behind(matrix.faults[i - 1]) + "\n", columns);
  out << "#\n";
  if (!left_out.empty())
    out << fitted("# too wide, in faults.json: " + joined(left_out, ", ") + "\n", columns);
}

// What the heads of columns mean, and which check saw how much.
void write_checks(std::ostringstream& out, const KillMatrix& matrix, std::size_t columns) {
  out << fitted(
      "# step: optimizer steps from the one in which it acted; loc: located on the first line\n"
      "# cov: caught by a case of the covering selection; by: cases that caught it, +: not all "
      "were tried\n# else: " +
          joined({kRuleNames.begin(), kRuleNames.end()}, ", ") + "; x: would have seen it\n",
      columns);
  out << "#\n# check that saw it: faults it saw, and saw first\n";
  char line[256];
  for (const auto& check : checks_of(matrix)) {
    std::snprintf(line, sizeof line, "#   %-24s %5lld %5lld\n", check.check.c_str(),
                  static_cast<long long>(check.all), static_cast<long long>(check.first));
    out << line;
  }
  out << "#\n";
}

void write_worst(std::ostringstream& out, const KillMatrix& matrix, std::size_t columns) {
  std::string text;
  for (const auto& row : matrix.faults)
    if (row.fate == Fate::Survived || row.fate == Fate::DidNotAct)
      text += (row.fate == Fate::Survived ? "SURVIVED  " : "DID NOT ACT  ") + row.name + ": " +
              clean(row.what) + "\n";
  for (const auto& row : matrix.faults)
    if (is_thin(row)) text += "THIN  " + thin_text(row) + ": " + clean(row.what) + "\n";
  out << fitted(text, columns);
  for (const auto& alarm : matrix.clean.alarms)
    out << "FALSE ALARM  " << alarm.id << "\n"
        << fitted(clean(alarm.message) + (alarm.message.ends_with('\n') ? "" : "\n"), columns,
                  clean(alarm.id))
        << replay_line(alarm.replay);
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
    out << "| | | | " << escape_markdown(row.proof) << " |";
  } else {
    const Found& found = row.found.front();
    out << (found.after_steps < 0 ? "?" : std::to_string(found.after_steps)) << " | "
        << (found.located ? "yes" : "no") << " | " << (is_covered(row) ? "yes" : "no") << " | "
        << catches_text(row) << " | ";
    out << escape_markdown(joined(found.checks, ", ")) << " |";
  }
  for (std::size_t i = 0; i < kRulesElsewhere; ++i)
    out << " " << (!row.has_data ? "–" : row.elsewhere[i] ? "x" : " ") << " |";
  out << "\n";
}

}  // namespace

std::string_view word(Fate fate) {
  // In the order of the enumeration.
  constexpr std::array<std::string_view, 5> kWords = {"caught", "survived", "equivalent",
                                                      "did_not_act", "not_run"};
  return kWords.at(static_cast<std::size_t>(fate));
}

void KillCounts::add(const FaultRow& row) {
  ++faults;
  survived += row.fate == Fate::Survived;
  equivalent += row.fate == Fate::Equivalent;
  did_not_act += row.fate == Fate::DidNotAct;
  not_run += row.fate == Fate::NotRun;
  if (row.fate != Fate::Caught || row.found.empty()) return;
  ++caught;
  by_covering += is_covered(row);
  const Found& first = row.found.front();
  within_one_step += first.after_steps == 0 || first.after_steps == 1;
  located += first.located;
  if (!row.has_data) return;
  ++with_data;
  for (std::size_t i = 0; i < kRulesElsewhere; ++i) elsewhere[i] += row.elsewhere[i];
}

KillCounts counts(const KillMatrix& matrix, Faults which) {
  KillCounts sum;
  for (const auto& row : matrix.faults)
    if (which == Faults::All || (which == Faults::Mutants) == row.bugs.empty()) sum.add(row);
  return sum;
}

std::vector<CheckCount> checks_of(const KillMatrix& matrix) {
  std::map<std::string, CheckCount> by_name;
  for (const auto& row : matrix.faults) {
    std::set<std::string> seen;
    for (const auto& found : row.found) seen.insert(found.checks.begin(), found.checks.end());
    for (const auto& check : seen) ++by_name[check].all;
    if (!row.found.empty() && !row.found[0].checks.empty()) ++by_name[row.found[0].checks[0]].first;
  }
  std::vector<CheckCount> checks;
  for (const auto& [name, count] : by_name) checks.push_back({name, count.first, count.all});
  std::stable_sort(checks.begin(), checks.end(), [](const auto& a, const auto& b) {
    return std::pair(a.all, a.first) > std::pair(b.all, b.first);
  });
  return checks;
}

bool is_covered(const FaultRow& row) {
  return row.fate == Fate::Caught && std::any_of(row.found.begin(), row.found.end(),
                                                 [](const Found& found) { return found.covering; });
}

bool is_thin(const FaultRow& row) {
  return row.fate == Fate::Caught && row.all_tried && row.found.size() < kEnoughCatches;
}

std::string catches_text(const FaultRow& row) {
  return std::to_string(row.found.size()) + (row.all_tried ? "" : "+");
}

std::string thin_text(const FaultRow& row) {
  return clean(row.name) + " (" + grouped(row.found.size()) + " of " + count_of(row.cases, "case") +
         ")";
}

bool covering_holds(const KillMatrix& matrix) {
  const auto reaches = [&](Faults which, double share) {
    const auto sum = counts(matrix, which);
    return static_cast<double>(sum.by_covering) >= share * static_cast<double>(sum.faults);
  };
  return reaches(Faults::Historical, kCoveringHistorical) &&
         reaches(Faults::Mutants, kCoveringMutants);
}

Outcome outcome(const KillMatrix& matrix) {
  const auto sum = counts(matrix, Faults::All);
  if (matrix.interrupted) return Outcome::Interrupted;
  if (matrix.is_void) return Outcome::Void;
  if (!matrix.failure.empty()) return Outcome::Broken;
  const bool is_open = sum.survived > 0 || sum.did_not_act > 0;
  if ((is_open && !matrix.covering_only) || !matrix.clean.alarms.empty() ||
      !matrix.stale_proofs.empty())
    return Outcome::Failed;
  const bool has_floor = matrix.is_whole || matrix.covering_only;
  if (sum.not_run == 0 && has_floor && !covering_holds(matrix)) return Outcome::Failed;
  const bool all_run = sum.not_run == 0 && matrix.clean.run >= matrix.clean.asked;
  return all_run && sum.faults > 0 ? Outcome::Held : Outcome::Inconclusive;
}

int exit_code(const KillMatrix& matrix) { return exit_code(outcome(matrix), matrix.signal); }

std::vector<std::string> summary_lines(const KillMatrix& matrix) {
  const auto all = counts(matrix, Faults::All);
  std::vector<std::string> lines = {
      kills_line("historical faults", counts(matrix, Faults::Historical)),
      kills_line("mutants", counts(matrix, Faults::Mutants)), covering_line(matrix),
      "located on the first line: " + of(all.located, all.caught) + " caught faults, " +
          percent(all.located, all.caught)};
  lines.push_back(thin_line(matrix));
  std::string elsewhere = "the rules in use elsewhere, on the same data of " +
                          grouped(all.with_data) + " caught faults:";
  for (std::size_t i = 0; i < kRulesElsewhere; ++i)
    elsewhere += std::string(i == 0 ? " " : ", ") + kRuleNames[i] + " " +
                 percent(all.elsewhere[i], all.with_data);
  if (all.with_data > 0) lines.push_back(elsewhere);
  const CleanRuns& clean = matrix.clean;
  if (clean.asked > 0)
    lines.push_back(
        "generated cases without a fault: " + count_of(clean.alarms.size(), "false alarm") +
        " in " + of(clean.run, clean.asked) + ", " + grouped(clean.compared) +
        " elements compared");
  for (const auto& [reason, cases] : matrix.not_run)
    lines.push_back("not run: " + count_of(cases, "case") + " of the panel, " +
                    reports::clean(reason));
  for (const auto& name : matrix.stale_proofs)
    lines.push_back("a proof says that nothing can see " + reports::clean(name) +
                    ", which is not so: take it out of the list of survivors");
  return lines;
}

std::string to_terminal(const KillMatrix& matrix, std::size_t columns) {
  std::ostringstream out;
  write_faults(out, matrix, columns);
  write_checks(out, matrix, columns);
  std::string summary;
  for (const auto& text : summary_lines(matrix)) summary += "# " + text + "\n";
  summary += "# " + formatted("%.1f", matrix.faults_s / 60) + " minutes for the faults, " +
             formatted("%.1f", matrix.wall_s / 60) + " in all\n";
  out << fitted(summary, columns);
  write_worst(out, matrix, columns);
  const auto& alarms = matrix.clean.alarms;
  out << fitted(upper_case(word(outcome(matrix))) + "  " + verdict(matrix) + "\n", columns)
      << replay_line(alarms.empty() ? matrix.command : alarms[0].replay);
  return out.str();
}

std::string to_markdown(const KillMatrix& matrix) {
  std::ostringstream out;
  const Environment& env = matrix.environment;
  out << "## Equigrad faults: " << word(outcome(matrix)) << "\n";
  if (!matrix.failure.empty()) out << "\n" << escape_markdown(matrix.failure) << "\n";
  for (const auto& line : summary_lines(matrix)) out << "\n" << escape_markdown(line) << ".\n";
  for (const auto& alarm : matrix.clean.alarms)
    out << "\nFalse alarm: " << escape_markdown(alarm.id) << ": "
        << escape_markdown(first_line(alarm.message))
        << " Replay: " << escape_markdown(alarm.replay) << "\n";
  out << "\n| fault | what | fate | steps | located | covering | caught by | checks, or proof |";
  for (const char* rule : kRuleNames) out << " " << escape_markdown(rule) << " |";
  out << "\n|:--|:--|:--|--:|:--|:--|--:|:--|";
  for (std::size_t i = 0; i < kRulesElsewhere; ++i) out << "--:|";
  out << "\n";
  for (const auto& row : matrix.faults) write_row(out, row);
  out << "\n"
      << environment_line(env) << ", " << escape_markdown(env.time) << ", "
      << seconds_text(matrix.wall_s) << "\n";
  return out.str();
}

}  // namespace equigrad::reports
