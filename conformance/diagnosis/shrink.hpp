// Shrink: from a case that fails to the smallest one that still fails in the same way.
//
//   4 ranks -> 2, 3 micro-batches -> 2, 3 steps -> 1, model gpt -> linear2, zero3 -> zero0
//
// Dimension after dimension, from its simplest value on, and again from the first one until no
// value of any dimension can be made simpler (Zeller and Hildebrandt, Simplifying and Isolating
// Failure-Inducing Input, 2002, over a product of short chains).
//
// Invariants: no candidate is tried twice; the order is fixed, so equal answers give equal ends;
// what comes out failed when it was tried; no single dimension of it can be simpler.
// Units: counts of steps, ranks and micro-batches.   Errors: those of `fails`.
// Depends on: matrix.hpp. No torch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "conformance/cases/matrix.hpp"

namespace equigrad::conformance {

struct Candidate {
  CaseSpec spec;
  int steps = 1;
  std::string name() const;  // the id, and the steps
};

// Whether a candidate fails in the same way; nothing: stop, and keep what was found.
using Fails = std::function<std::optional<bool>(const Candidate&)>;

struct Shrunk {
  Candidate smallest;
  int tried = 0;
  bool stopped = false;
};
Shrunk shrink(const Candidate& failing, const Fails& fails);

// Whether a case can have this model: one of the matrix, or linear1 to linear7
// (cases/linear_model.hpp).
bool is_model(const std::string& name);

// "4 ranks -> 2, 3 steps -> 1"; empty where nothing differs.
std::string path_between(const Candidate& from, const Candidate& to);

}  // namespace equigrad::conformance
