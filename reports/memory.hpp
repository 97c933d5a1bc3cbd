// Memory: what a rank holds at the highest moment of each phase of a step, by kind, beside what was
// forecast; of `equigrad bench memory`.
//
// Invariants: a moment's bytes are in the order of `kinds`, and add up to what is live then. Text
// that comes from outside is escaped in the page; the page needs no other file.
// Units: bytes of one rank, in fp32; seconds.
// Errors: none.
// Depends on: reports/record.hpp (Environment).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::reports {

struct MemoryMoment {
  std::string phase;  // between, forward, backward, step
  std::vector<int64_t> bytes;

  int64_t live_bytes() const;
};

struct MemoryHolder {
  std::string contestant;
  std::vector<MemoryMoment> moments;  // one at least
  int64_t forecast_bytes = 0;         // of the highest moment, at most; 0: none
};

struct MemoryGroup {
  std::string name;  // the model and its ranks
  std::vector<MemoryHolder> holders;
  int64_t left_bytes = 0;     // that forward leaves for the backward pass
  int64_t formula_bytes = 0;  // of these, by the formula
};

struct Memory {
  int schema_version = 1;
  Environment environment;
  std::string command;
  double wall_s = 0;
  std::vector<std::string> kinds;  // parameters, gradients, ...
  std::vector<MemoryGroup> groups;
};

const MemoryMoment& highest(const MemoryHolder& holder);  // the first of several
std::string forecast_text(const MemoryHolder& holder);    // how far it is off: +1.25 %; or nothing

std::string to_json(const Memory& memory);
std::string to_html(const Memory& memory);

}  // namespace equigrad::reports
