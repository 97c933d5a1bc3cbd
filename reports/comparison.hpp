// Comparison: everything that `equigrad compare` found about two configurations, as plain values.
//
// Both were trained from the same seeds: a pair of runs has the same initial weights and the same
// batches, so the difference of a pair is the configurations' own.
//
// Invariants: statistics and verdict are given by whoever compared, never by a writer.
// Configuration
//   0 is A, 1 is B; differences are B - A. Only complete pairs are in the statistics.
// Shapes: losses and curves are indexed by step or by block of steps, in order.
// Units: losses and margin in nats; bytes are of the largest rank; levels and p between 0 and 1.
// Errors: none.
// Depends on: reports/record.hpp (Environment).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

enum class ComparisonOutcome {
  Equivalent,    // the final loss of B is that of A, give or take the margin: shown
  Different,     // it isn't: a difference from 0 is shown, be it within the margin or not
  Inconclusive,  // neither can be said, or a configuration has not learned
  Failed,        // an engine threw
  Broken,        // a rank died or hung
  Interrupted,
};

struct ComparedConfiguration {
  std::string name;  // fp32_masters
  std::string text;  // the JSON
};

struct ComparedRun {
  int configuration = 0;
  uint64_t seed = 0;
  bool complete = false;
  std::string trouble;         // what ended it early
  std::vector<double> losses;  // by step, the mean over ranks
  double final_loss = 0;       // mean of the last Comparison::final_steps
  double mean_loss = 0;
  double drop = 0;                      // mean of the first final_steps less final_loss
  double step_s = 0;                    // median over steps of the slowest rank
  std::map<std::string, int64_t> held;  // bytes by category of the engine's ledger, after the run
  int64_t held_bytes = 0, held_peak_bytes = 0;
  int64_t process_peak_bytes = 0, process_growth_bytes = 0;
  int64_t skipped_steps = 0;
};

// A mean over seeds, and its interval at Comparison::confidence.
struct Estimate {
  double mean = 0, low = 0, high = 0;
};

struct ComparedQuantity {
  std::string name;  // final loss
  std::string unit;  // nats, s, bytes
  std::array<Estimate, 2> each;
  Estimate difference;  // of pairs
  double ratio = 0;     // B's mean / A's
};

struct CurvePoint {
  int64_t step = 0;  // the last of its block
  std::array<Estimate, 2> each;
  Estimate difference;
};

struct EquivalenceResult {
  double p_low = 1, p_high = 1;  // of a difference of -margin or less, of margin or more
  double p_no_difference = 1;    // two-sided
  double low = 0, high = 0;      // the 1 - 2 level interval of the difference
};

struct Comparison {
  int schema_version = 1;
  Environment environment;
  std::string command;
  std::array<ComparedConfiguration, 2> configurations;
  std::string data;   // text: plays.txt
  std::string model;  // gpt, layers 3, dim 96, heads 4, context 64
  int64_t parameters = 0;
  int64_t tokens_per_step = 0;  // of images: images
  int ranks = 0;
  int64_t steps = 0;
  int64_t final_steps = 0;
  double margin = 0;
  bool margin_is_default = false;
  double confidence = 0.95;
  double level = 0.05;  // of each one-sided test
  std::vector<uint64_t> seeds;
  std::vector<ComparedRun> runs;  // in the order in which they were run
  int64_t pairs = 0;              // complete ones
  std::vector<ComparedQuantity> quantities;
  std::vector<CurvePoint> curve;
  EquivalenceResult equivalence;
  ComparisonOutcome outcome = ComparisonOutcome::Inconclusive;
  int signal = 0;      // that interrupted it
  std::string reason;  // one sentence
  double wall_s = 0;
};

std::string_view word(ComparisonOutcome outcome);
int exit_code(
    const Comparison& comparison);  // 0, 1 different or failed, 3, 4 inconclusive, 128 + signal

// 2.3456, 12.3 ms, 1.21 MiB; a difference has its sign.
std::string value_text(double value, std::string_view unit, bool with_sign = false);
std::string estimate_text(const Estimate& estimate, std::string_view unit, bool with_sign = false);
std::string letter_of(const ComparedRun& run);  // A, B
// What the margin is and who stated it.
std::string margin_text(const Comparison& comparison);
// "p = 0.003 that the difference is ...": the test in one sentence; empty without pairs.
std::string equivalence_text(const Comparison& comparison);

std::string to_json(const Comparison& comparison);      // a line for each run
std::string to_terminal(const Comparison& comparison);  // tables and verdict, no colour
std::string to_markdown(const Comparison& comparison);
std::string to_html(const Comparison& comparison);  // one page; needs no other file

// The section of that page, and its drawings.
std::string page_compare(const Comparison& comparison);
std::string loss_drawing(const Comparison& comparison);
std::string difference_drawing(const Comparison& comparison);

}  // namespace equigrad::reports
