// KillMatrix: everything that `equigrad faults` found, as plain values: which check caught which
// fault, what the rules in use elsewhere say of the same data, and what clean runs raised.
//
// What the covering selection (`equigrad run --covering`) catches alone is counted beside it, and
// has a floor of its own. A fault that fewer than kEnoughCatches of all cases catch is thin: what
// catches it may be luck, or the next change's victim. It fails nothing.
//
// Invariants: fate and summary are given by whoever ran, or counted here, never by a writer. A
//   fault without `bugs` is a mutant. A row that is not Caught has no `found`. Only rows with
//   has_data count for the rules in use elsewhere: the others crashed, threw or hung, which needs
//   no rule. In JSON the seed is a decimal string, as in every report (json.hpp).
// Units: steps and micro-batches count from 0; after_steps counts optimizer steps from the one in
//   which the fault first acted (0: the same step; -1: not known); seconds are wall clock.
// Errors: none.
// Depends on: reports/record.hpp (Environment).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

enum class Fate {
  Caught,
  Survived,    // acted, and no check saw it
  Equivalent,  // the same, with a written proof that it changes no bit that anybody reads
  DidNotAct,   // in no case that was run
  NotRun,
};

// A case that caught a fault.
struct Found {
  std::string in;                   // the case's id
  std::vector<std::string> checks;  // "exact/gradient", "time-out": in the order of their failing
  int64_t after_steps = -1;
  bool located = false;  // the first line names the phase and the step in which it acted
  std::string first;     // that line
  std::string replay;
  double seconds = 0;
  bool covering = false;  // the case is one of the covering selection
};

// relative Frobenius error, calc_diff, torch.testing.assert_close, loss curve
inline constexpr std::size_t kRulesElsewhere = 4;
inline constexpr std::array<const char*, kRulesElsewhere> kRuleNames = {
    "Frobenius > 8.3 %", "calc_diff > 1e-3", "assert_close", "loss off by > 1 %"};

struct FaultRow {
  std::string name, what, seam, phase;
  std::vector<std::string> bugs;  // DS-01
  Fate fate = Fate::NotRun;
  int64_t acted_times = 0;  // over all ranks and cases
  int acted_step = -1, acted_micro_batch = -1;
  int64_t cases = 0;         // that were run with it
  std::vector<Found> found;  // the first is the earliest of the panel
  bool all_tried = false;    // panel and covering selection: no other case of theirs catches it
  bool has_data = false;     // of a case that answered
  std::array<bool, kRulesElsewhere> elsewhere{};
  std::string proof;  // why it changes no bit
  double seconds = 0;
};

// A generated case without a fault that raised an alarm.
struct Alarm {
  std::string id, message, replay;
};

struct CleanRuns {
  int64_t asked = 0, run = 0;
  int64_t compared = 0;  // elements
  std::vector<Alarm> alarms;
  double seconds = 0;
};

struct KillMatrix {
  int schema_version = 1;
  Environment environment;
  std::string command;
  uint64_t seed = 0;
  bool full = false;
  bool covering_only = false;      // no other case was run
  bool is_whole = false;           // every fault of the catalogue was asked for
  std::vector<std::string> panel;  // the covering selection, in the order in which it is tried
  std::map<std::string, int64_t> not_run;  // cases of the panel that were left out, by reason
  std::vector<FaultRow> faults;
  std::vector<std::string> stale_proofs;  // of faults that were caught, or that are none
  CleanRuns clean;
  std::string failure;   // why nothing counts; empty: nothing
  bool is_void = false;  // of which a clean case of the panel failed
  bool interrupted = false;
  int signal = 0;
  double faults_s = 0, wall_s = 0;
  // Cases went on behind the first that caught a fault, up to kEnoughCatches, for so long.
  bool is_counted = false;
  double counting_s = 0;
};

inline constexpr std::size_t kEnoughCatches = 3;

// So many of all historical faults, and of all mutants, the covering selection alone must catch.
inline constexpr double kCoveringHistorical = 0.97, kCoveringMutants = 0.95;

struct KillCounts {
  int64_t by_covering = 0;  // of the caught: those that some case of the covering selection caught
  int64_t faults = 0, caught = 0, within_one_step = 0, located = 0;
  int64_t survived = 0, equivalent = 0, did_not_act = 0, not_run = 0;
  int64_t with_data = 0;  // of the caught
  std::array<int64_t, kRulesElsewhere> elsewhere{};
  void add(const FaultRow& row);
};

enum class Faults { All, Historical, Mutants };
KillCounts counts(const KillMatrix& matrix, Faults which);
// Names of the checks that caught something, those that caught most first, with how many faults
// each caught first and at all.
struct CheckCount {
  std::string check;
  int64_t first = 0, all = 0;
};
std::vector<CheckCount> checks_of(const KillMatrix& matrix);

bool is_covered(const FaultRow& row);  // caught by a case of the covering selection
bool is_thin(const FaultRow& row);     // caught, and by fewer than kEnoughCatches of all cases
std::string catches_text(const FaultRow& row);  // "2", "3+" where not all cases were tried
std::string thin_text(const FaultRow& row);     // "averaged_twice (2 of 91 cases)"
// Whether the covering selection alone catches as much as it must.
bool covering_holds(const KillMatrix& matrix);

std::string_view word(Fate fate);  // caught, survived, equivalent, did_not_act, not_run
Outcome outcome(const KillMatrix& matrix);
int exit_code(const KillMatrix& matrix);  // 0, 1, 3, 4 where something was not run, 128 + signal
// The figures, a line each.
std::vector<std::string> summary_lines(const KillMatrix& matrix);

std::string to_json(const KillMatrix& matrix);  // faults.schema.json
// In lines of at most so many columns, but for lines to paste; what does not fit of the table is
// left out and named. 0: every line fits.
std::string to_terminal(const KillMatrix& matrix, std::size_t columns = 0);
std::string to_markdown(const KillMatrix& matrix);
std::string to_html(const KillMatrix& matrix);           // one page; needs no other file
std::string page_kill_matrix(const KillMatrix& matrix);  // its sections

}  // namespace equigrad::reports
