// RunRows: what a run's record says beside its cases: memory, and what loss scales lose.
//
// Invariants: one row of memory for each stage, precision, number of ranks and category, of the
// largest rank of any case; one of underflow for each precision, model and scale, over its twins.
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
  std::map<std::string, reports::MemoryRow> memory_;
  std::map<std::string, reports::UnderflowRow> underflow_;
};

}  // namespace equigrad::conformance
