// Rows: what a run's record (record.hpp) holds beside its cases.
//
// Invariants: plain values.
// Units: bytes and elements; scales are powers of two; seconds are wall clock.
// Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <cstdint>
#include <string>

namespace equigrad::reports {

// Cases of a run that had all ended before those of the next part began.
struct Part {
  std::string name;  // covering, rest
  int64_t cases = 0;
  double wall_s = 0;
};

// Bytes that one rank (the largest) holds in one category of the engine's ledger.
struct MemoryRow {
  int stage = 0;
  std::string precision;
  int ranks = 0;
  std::string category;  // parameters, gradients, master, optimizer, buckets, ...
  int64_t bytes = 0;     // at the end of a step
  int64_t peak_bytes = 0;
};

// What the loss scale of a precision loses of a model's gradients in fp16: elements of the first
// step that is applied, over the cases that were run.
struct UnderflowRow {
  std::string precision, model;
  double scale = 1;
  int64_t numel = 0, zero = 0, subnormal = 0, overflow = 0;
  double lossless = 0;  // the smallest power of two that would lose none; 0: there is none
};

}  // namespace equigrad::reports
