// Diagnosis: from the tensors that differ at the first place to a likely cause.
//
// A gradient is explained by every rank's contributions, computed anew with the twin's weights of
// its step; an update by the rule's own mistakes, from the numbers that it had; a norm by what may
// have been measured instead; a published parameter by place and time; a loss by the weights that
// its forward may have read.
//
// Invariants: says nothing about right or wrong.
// Shapes: got and want are flat elements [begin, begin + numel) of the whole parameter.
// Units: steps and micro-batches count from 0.   Errors: those of the reference and the oracle.
// Depends on: verdict/divergence.hpp, case_model.hpp, twin.hpp, oracle/update_bound.hpp.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "conformance/cases/case_model.hpp"
#include "conformance/cases/twin.hpp"
#include "conformance/oracle/update_bound.hpp"
#include "conformance/verdict/divergence.hpp"
#include "reference/recipe.hpp"

namespace equigrad::conformance {

// What is compared.
struct Site {
  Phase phase;
  int step;
  std::string what;            // "gradient", "master", "norm of the gradient"
  std::string parameter = {};  // empty: none
  int64_t begin = 0;
  int micro_batch = -1;
};

struct Failure {
  Site site;
  at::Tensor got, want;
};

// An update as it was: what it began with, and what came of it.
struct UpdateSeen {
  oracle::UpdateSpec spec;
  oracle::Weights before, after;
  at::Tensor gradient;
};

// Where a parameter comes in the order of registration, and in which bucket it is sent.
struct Position {
  int64_t number = 0;
  int bucket = -1;
};

struct DiagnosisInput {
  int stage;
  const reference::Recipe& recipe;  // the twin's
  const MakeCaseModel& make_model;
  const Twin& twin;
  const TensorPlace& tensor_rank;  // what it has of the model
  std::map<std::string, std::vector<int64_t>> shapes, whole_shapes;
  std::string keep;                                            // folder for tensors; empty: none
  int rank;                                                    // of those ZeRO shards over
  double norm;                                                 // that the engine measured
  std::map<std::string, at::ScalarType> communication_dtypes;  // of safe modules, under autocast
  std::map<std::string, oracle::UpdateSpec> rules;             // by parameter
  std::map<std::string, UpdateSeen> updates;
};

struct Diagnosis {
  std::string text;
  std::vector<std::string> files;  // names inside `keep`
};
// Tells `divergences` what it finds out about them.
Diagnosis diagnose(const DiagnosisInput& input, const std::vector<Failure>& failures,
                   Divergences& divergences);

}  // namespace equigrad::conformance
