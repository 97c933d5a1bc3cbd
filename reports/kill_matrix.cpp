#include "reports/kill_matrix.hpp"

#include <algorithm>
#include <map>
#include <set>

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
    char least[32];
    std::snprintf(least, sizeof least, "%.0f %%", 100 * floor);
    return std::string(name) + " " + of(sum.by_covering, sum.faults) + ", " +
           percent(sum.by_covering, sum.faults) + " (at least " + least + ")";
  };
  return "caught by the covering selection alone, " + count_of(matrix.panel.size(), "case") + ": " +
         part("historical faults", Faults::Historical, kCoveringHistorical) + "; " +
         part("mutants", Faults::Mutants, kCoveringMutants);
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
  std::string elsewhere = "the rules in use elsewhere, on the same data of " +
                          grouped(all.with_data) + " caught faults:";
  for (std::size_t i = 0; i < kRulesElsewhere; ++i)
    elsewhere += std::string(i == 0 ? " " : ", ") + kRuleNames[i] + " " +
                 percent(all.elsewhere[i], all.with_data);
  if (all.with_data > 0) lines.push_back(elsewhere);
  const CleanRuns& clean = matrix.clean;
  if (clean.asked > 0)
    lines.push_back("clean configurations: " + count_of(clean.alarms.size(), "false alarm") +
                    " in " + of(clean.run, clean.asked) + ", " + grouped(clean.compared) +
                    " elements compared");
  for (const auto& name : matrix.stale_proofs)
    lines.push_back("a proof says that nothing can see " + reports::clean(name) +
                    ", which is not so: take it out of the list of survivors");
  return lines;
}

}  // namespace equigrad::reports
