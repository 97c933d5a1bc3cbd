#include "reports/record.hpp"

#include <algorithm>

namespace equigrad::reports {
namespace {

constexpr int kInterruptSignal = 2;  // SIGINT

// What belongs to each verdict, in the order of the enumeration.
struct VerdictRow {
  std::string_view word;
  int64_t Counts::*count;
};
constexpr std::array<VerdictRow, kVerdicts.size()> kRows = {{{"equal", &Counts::equal},
                                                             {"within", &Counts::within},
                                                             {"failed", &Counts::failed},
                                                             {"skipped", &Counts::skipped},
                                                             {"crashed", &Counts::crashed},
                                                             {"timed_out", &Counts::timed_out},
                                                             {"not_run", &Counts::not_run}}};

struct OutcomeRow {
  std::string_view word;
  int exit_code;
};
constexpr std::array<OutcomeRow, 6> kOutcomes = {{{"held", 0},
                                                  {"failed", 1},
                                                  {"void", 1},
                                                  {"broken", 3},
                                                  {"inconclusive", 4},
                                                  {"interrupted", 128}}};

const VerdictRow& row_of(Verdict verdict) { return kRows.at(static_cast<size_t>(verdict)); }
const OutcomeRow& row_of(Outcome outcome) { return kOutcomes.at(static_cast<size_t>(outcome)); }

}  // namespace

bool passed(Verdict verdict) { return verdict == Verdict::Equal || verdict == Verdict::Within; }

bool went_wrong(Verdict verdict) {
  return verdict == Verdict::Failed || verdict == Verdict::Crashed || verdict == Verdict::TimedOut;
}

bool bitwise(const Lane& lane) { return lane.name != "bounded"; }

bool vacuous(const Case& one) {
  const auto empty = [](const Lane& lane) { return passed(lane.verdict) && lane.compared == 0; };
  const auto full = [](const Lane& lane) { return lane.compared > 0; };
  return passed(one.verdict) && (std::any_of(one.lanes.begin(), one.lanes.end(), empty) ||
                                 std::none_of(one.lanes.begin(), one.lanes.end(), full));
}

std::string_view word(Verdict verdict) { return row_of(verdict).word; }

std::string_view word(Outcome outcome) { return row_of(outcome).word; }

int64_t Counts::of(Verdict verdict) const { return this->*row_of(verdict).count; }

void Counts::add(const Case& one) {
  ++(this->*row_of(one.verdict).count);
  if (reports::vacuous(one)) ++vacuous;
  for (const Lane& lane : one.lanes) {
    compared += lane.compared;
    if (bitwise(lane)) differing += lane.differing;
  }
}

Counts counts(const Run& run) {
  Counts sum;
  for (const Case& one : run.cases) sum.add(one);
  for (const auto& [reason, count] : run.not_run) sum.not_run += count;
  return sum;
}

bool self_checked(const Run& run) {
  const auto caught = [](const SelfCheck& check) { return check.caught; };
  return static_cast<int64_t>(run.self_checks.size()) >= kRequiredSelfChecks &&
         std::all_of(run.self_checks.begin(), run.self_checks.end(), caught);
}

Outcome outcome(const Run& run) {
  const Counts sum = counts(run);
  if (run.interrupted) return Outcome::Interrupted;
  if (!run.failure.empty()) return Outcome::Broken;
  if (!run.engine_failure.empty()) return Outcome::Failed;
  if (!self_checked(run)) return Outcome::Void;
  if (sum.failed > 0) return Outcome::Failed;
  if (sum.went_wrong() > 0) return Outcome::Broken;
  if (sum.compared == 0 || sum.vacuous > 0) return Outcome::Inconclusive;
  return Outcome::Held;
}

int exit_code(Outcome outcome, int signal) {
  const bool is_signal = outcome == Outcome::Interrupted;
  return row_of(outcome).exit_code + (is_signal ? (signal == 0 ? kInterruptSignal : signal) : 0);
}

int exit_code(const Run& run) { return exit_code(outcome(run), run.signal); }

}  // namespace equigrad::reports
