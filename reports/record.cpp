#include "reports/record.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace equigrad::reports {
namespace {

constexpr int kInterruptSignal = 2;  // SIGINT

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("[reports.merge] " + what);
}

void require_same_origin(const Run& first, const Run& other) {
  require(first.schema_version == other.schema_version,
          "expected schema_version " + std::to_string(first.schema_version) + ", got " +
              std::to_string(other.schema_version) + ". Write all shards with one version.");
  require(first.seed == other.seed, "expected seed " + std::to_string(first.seed) + ", got " +
                                        std::to_string(other.seed) +
                                        ". Run all shards with the same --seed.");
  require(first.environment.commit == other.environment.commit,
          "expected commit " + first.environment.commit + ", got " + other.environment.commit +
              ". Build all shards from the same commit.");
}

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

std::string_view word(Verdict verdict) {
  switch (verdict) {
    case Verdict::Equal:
      return "equal";
    case Verdict::Within:
      return "within";
    case Verdict::Failed:
      return "failed";
    case Verdict::Skipped:
      return "skipped";
    case Verdict::Crashed:
      return "crashed";
    case Verdict::TimedOut:
      return "timed_out";
    case Verdict::NotRun:
      return "not_run";
  }
  return "not_run";
}

std::string_view word(Outcome outcome) {
  switch (outcome) {
    case Outcome::Held:
      return "held";
    case Outcome::Failed:
      return "failed";
    case Outcome::Void:
      return "void";
    case Outcome::Broken:
      return "broken";
    case Outcome::Inconclusive:
      return "inconclusive";
    case Outcome::Interrupted:
      return "interrupted";
  }
  return "inconclusive";
}

void Counts::add(const Case& one) {
  switch (one.verdict) {
    case Verdict::Equal:
      ++equal;
      break;
    case Verdict::Within:
      ++within;
      break;
    case Verdict::Failed:
      ++failed;
      break;
    case Verdict::Skipped:
      ++skipped;
      break;
    case Verdict::Crashed:
      ++crashed;
      break;
    case Verdict::TimedOut:
      ++timed_out;
      break;
    case Verdict::NotRun:
      ++not_run;
      break;
  }
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
  if (!self_checked(run)) return Outcome::Void;
  if (sum.failed > 0) return Outcome::Failed;
  if (sum.crashed + sum.timed_out > 0) return Outcome::Broken;
  if (sum.compared == 0 || sum.vacuous > 0) return Outcome::Inconclusive;
  return Outcome::Held;
}

int exit_code(Outcome outcome, int signal) {
  switch (outcome) {
    case Outcome::Held:
      return 0;
    case Outcome::Failed:
    case Outcome::Void:
      return 1;
    case Outcome::Broken:
      return 3;
    case Outcome::Inconclusive:
      return 4;
    case Outcome::Interrupted:
      return 128 + (signal == 0 ? kInterruptSignal : signal);
  }
  return 4;
}

int exit_code(const Run& run) { return exit_code(outcome(run), run.signal); }

Run merge(const std::vector<Run>& shards) {
  require(!shards.empty(), "expected at least one run, got none. Name the run.json files.");
  Run whole = shards.front();
  whole.parts.clear();
  std::set<std::string> seen;
  for (const Case& one : whole.cases) seen.insert(one.id);
  for (size_t i = 1; i < shards.size(); ++i) {
    const Run& shard = shards[i];
    require_same_origin(whole, shard);
    for (const Case& one : shard.cases) {
      require(seen.insert(one.id).second,
              "expected each case once, got " + one.id + " twice. Give each shard its own cases.");
      whole.cases.push_back(one);
    }
    if (whole.statements.empty()) whole.statements = shard.statements;
    whole.self_checks.insert(whole.self_checks.end(), shard.self_checks.begin(),
                             shard.self_checks.end());
    whole.memory.insert(whole.memory.end(), shard.memory.begin(), shard.memory.end());
    whole.underflow.insert(whole.underflow.end(), shard.underflow.begin(), shard.underflow.end());
    for (const auto& [reason, count] : shard.not_run) whole.not_run[reason] += count;
    if (whole.failure.empty()) whole.failure = shard.failure;
    whole.interrupted = whole.interrupted || shard.interrupted;
    if (whole.signal == 0) whole.signal = shard.signal;
    whole.wall_s += shard.wall_s;
  }
  return whole;
}

}  // namespace equigrad::reports
