// FaultJudge: what the ranks of a case with a planted fault answered, as a row's part of the kill
// matrix: did it act, was it caught, by which checks, how late, and was it located.
//
// Invariants: a case that passes caught nothing; what threw, died or hung was caught, because the
// same case without the fault was run and held.
// Units: steps and micro-batches count from 0.
// Errors: nlohmann::json::exception for an answer of another form.
// Depends on: faults/fault.hpp (in the source), judge.hpp, matrix.hpp, ranks/pool.hpp,
// reports/kill_matrix.hpp.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/ranks/pool.hpp"
#include "conformance/verdict/judge.hpp"
#include "reports/kill_matrix.hpp"

namespace equigrad::conformance {

struct FaultVerdict {
  std::optional<reports::Found> found;  // nothing: not caught
  int64_t acted_times = 0;              // over all ranks; -1: they could not say
  int acted_step = -1, acted_micro_batch = -1;
  bool answered = false;  // by all ranks
  std::array<bool, reports::kRulesElsewhere> elsewhere{};
};

// `phase` is where the fault shows first, as the catalogue has it.
FaultVerdict judge_fault(const std::string& phase, const CaseSpec& spec, const std::string& replay,
                         const std::vector<ranks::Outcome>& outcomes);

// What the first line of a failure has wrong about the fault, by the fault's own account; empty:
// nothing.
std::string misplaced(const std::string& phase, const Judged& judged,
                      const std::vector<ranks::Outcome>& outcomes);

// The same as judge_fault, of a case of the contract.
FaultVerdict judge_contract_fault(const std::string& phase, const std::string& id,
                                  const std::string& replay,
                                  const std::vector<ranks::Outcome>& outcomes);

// "forward", "gradient", "norm", "update", "parameter" or "scale", of a kind of comparison.
std::string phase_of(const std::string& kind);

}  // namespace equigrad::conformance
