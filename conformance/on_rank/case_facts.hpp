// CaseFacts: what stays as it is while a case runs on this rank: its settings, its twin, and what
// its model is made of.
//
// Invariants: nothing in it changes after facts_of.
// Shapes: those of the parameters, by name.   Units: none.
// Errors: those of parse_id and Twin; nlohmann::json::exception for a request without a key.
// Depends on: cases/twin.hpp, cases/overflowing_model.hpp, oracle/update_bound.hpp,
// ranks/rank_context.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/cases/overflowing_model.hpp"
#include "conformance/cases/twin.hpp"
#include "conformance/oracle/update_bound.hpp"
#include "conformance/ranks/rank_context.hpp"

namespace equigrad::conformance {

struct CaseFacts {
  CaseSpec spec;
  uint64_t seed;
  std::string keep;  // folder for tensors; empty: none
  ranks::RankContext& context;
  const reference::Data& data;
  Twin twin;
  std::map<std::string, std::vector<int64_t>> shapes;
  std::map<std::string, reference::OptimizerSpec> rules;       // by parameter, its group's settings
  std::map<std::string, at::ScalarType> communication_dtypes;  // of safe modules, under autocast
};

CaseFacts facts_of(const nlohmann::json& request, ranks::RankContext& context,
                   const reference::Data& data, OverflowingModel& model);

// Of a parameter that was updated so many times.
oracle::UpdateSpec update_spec(const CaseFacts& facts, const std::string& name, int64_t updates);

}  // namespace equigrad::conformance
