// Perf ranks: variants of one piece of work, timed against each other in one run on real ranks.
//
//   round 1:  A B C   round 2:  B C A   round 3:  C A B   ...        (a barrier before each)
//
// A group's variants live side by side in the same ranks and take turns, so that whatever the
// machine does meanwhile meets all of them; ratios are taken round by round. A variant's time is
// the slowest rank's. Debian's Google Benchmark is a debug build: it only keeps the books here, the
// ranks hold the clock. Memory is taken from a run of its own, in a process that did nothing else.
//
// Invariants: all variants of a group have the same settings, ranks and number of rounds.
// Units: times are wall clock, *_ns; memory in bytes, in the output in MiB (2^20).
// Errors: std::runtime_error when a rank fails.
// Depends on: conformance/ranks/pool.hpp, Google Benchmark (sources only).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/ranks/rank_context.hpp"

namespace equigrad::perf {

// One way to do the work, on one rank.
class Variant {
 public:
  virtual ~Variant() = default;
  // What comes before a run and is not its cost.
  virtual void prepare() {}
  virtual void run() = 0;
  // The peak of what it says it holds; 0 if it keeps no books.
  virtual int64_t peak_bytes() const { return 0; }
};

using MakeVariant = std::function<std::unique_ptr<Variant>(
    const std::string& variant, const nlohmann::json& settings, conformance::ranks::RankContext&)>;

struct Group {
  std::string name;  // "gpt_0.4M/fp32/ranks:2"; a row is <group>/<variant>
  int world = 1;
  std::vector<std::string> variants;
  std::vector<std::string> bases;  // variants to which every row states its ratio
  int rounds = 11;
  bool memory = false;
  nlohmann::json settings;
};

// Registers one Google Benchmark row a variant.
void register_group(const Group& group, const MakeVariant& make);

}  // namespace equigrad::perf
