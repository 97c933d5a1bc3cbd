// Preflight: what must be true of a model and its batches before comparing it proves anything, in
// one process, on plain autograd.
//
//   deterministic under a seed; one loss, finite, with a graph; parameters that train; batches that
//   differ by rank and micro-batch; a forward pass in every precision; ranks that fit into memory
//
// Invariants: every pass of the first optimizer step is run, on the weights as they were made and
// with one generator, so that passes of equal batches are equal.
// Shapes/Units: bytes.
// Errors: equigrad::Error for what makes a comparison meaningless; it names the operator, the
// parameter or the number. What a model's own code throws comes back in one too.
// Depends on: check_case.hpp, engine/layout/parameter_table.hpp.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/check/check_case.hpp"
#include "conformance/ranks/pool.hpp"

namespace equigrad::conformance {

struct Preflight {
  bool gives_loss = true;                // false: an output and its gradient
  std::vector<std::string> unused = {};  // trainable, and no pass gave them a gradient
  std::vector<std::string> unseen = {};  // buffers that a twin's file cannot hold
  int64_t numel = 0;
  int64_t most_bytes = 0;    // of a rank's engine, in the case that needs most
  std::string most_in = {};  // its id
  int64_t all_bytes = 0;     // of all ranks of that case
};
nlohmann::json to_json(const Preflight& preflight);
Preflight preflight_of(const nlohmann::json& json);

// `widest`: of the cases, the one with most ranks and micro-batches.
Preflight look_at(const MakeSubject& make, const CheckCase& widest);
// Refuses a precision in whose dtype the model's forward pass does not run.
void require_precisions(const MakeSubject& make, const std::vector<CheckCase>& cases);
// Of a process in which the model did not run: CheckRefused for what it threw, Error for how it
// ended.
[[noreturn]] void refuse_model(const ranks::Outcome& outcome);
// Adds what the ranks of the cases need.
void add_memory(Preflight& preflight, Subject& subject, const std::vector<CheckCase>& cases);

// Refuses what does not fit; 0: it is not known what is free.
void require_memory(const Preflight& preflight, int64_t available_bytes);

}  // namespace equigrad::conformance
