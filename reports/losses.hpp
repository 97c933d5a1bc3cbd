// Losses: everything that `equigrad crash` found, as plain values: what was left of checkpoints
// after losses of power, killed ranks, disks that refuse and bits that flip; and which carelessness
// of a saver that would have shown.
//
// Invariants: counts and messages are those of whoever tried the points, never a writer's. Of every
//   part at most kKeptFailures failures are kept; `wrong` counts them all. In JSON the seed is a
//   decimal string, as in every report (json.hpp).
// Units: points; seconds of wall clock.
// Errors: none.
// Depends on: reports/record.hpp (Environment).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

// Points of one kind.
struct LossPart {
  std::string name;  // "power"
  std::string what;  // in words
  int64_t points = 0;
  int64_t by_engines = 0;  // of them: loaded by fresh engines, and trained on
  int64_t old_left = 0, new_left = 0, refused = 0;  // what was there afterwards
  int64_t wrong = 0;
  double seconds = 0;
};

struct LossFailure {
  std::string point, message, replay;
};

// A saver, or a reader, that was made careless.
struct CarelessSaver {
  std::string name, what;
  bool caught = false;
  std::string point, message;  // that caught it first
  int64_t points = 0;          // that were tried until then
};

inline constexpr std::size_t kKeptFailures = 5;

struct Losses {
  int schema_version = 1;
  Environment environment;
  std::string command;
  uint64_t seed = 0;
  std::vector<LossPart> parts;
  std::vector<LossFailure> failures;
  std::vector<CarelessSaver> careless;
  std::string failure;  // why nothing counts; empty: nothing
  bool interrupted = false;
  int signal = 0;
  double wall_s = 0;
};

// A carelessness that no point shows makes the rest void: it would not be seen in the engine.
Outcome outcome(const Losses& losses);
int exit_code(const Losses& losses);  // 0, 1, 3, 4 where nothing was tried, 128 + signal

std::string verdict_text(const Losses& losses);  // one sentence

std::string to_json(const Losses& losses);  // crash.schema.json
std::string to_html(const Losses& losses);  // one page; needs no other file
// In lines of at most so many columns, but for lines to paste; 0: every line fits.
std::string to_terminal(const Losses& losses, std::size_t columns = 0);

}  // namespace equigrad::reports
