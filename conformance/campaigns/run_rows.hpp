// RunRows: what a run's record says beside its cases: memory, and what loss scales lose.
//
// Invariants: memory is of one model for each precision and number of ranks, the one whose case
// holds most, at every stage that ran; all rows of a stage are of one rank of one case, so that
// kinds add up. One row of underflow for each precision, model and scale, over its twins.
// Units: bytes; elements.
// Errors: nlohmann::json::exception for an answer of another form.
// Depends on: judge.hpp, reports/record.hpp, nlohmann-json. No torch.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "conformance/verdict/judge.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

class RunRows {
 public:
  void add_memory(const CaseSpec& spec, const Judged& judged);
  // `answer` is that of a twin (program.cpp): null where the precision has no loss scale.
  void add_underflow(const CaseSpec& spec, const nlohmann::json& answer);
  void give(reports::Run& run) const;

 private:
  // By precision and ranks, model, stage.
  std::map<std::pair<std::string, int>, std::map<std::string, std::map<int, HeldMemory>>> memory_;
  std::map<std::string, reports::UnderflowRow> underflow_;
};

}  // namespace equigrad::conformance
