// CaseFacts: what stays as it is while a case runs on this rank: its settings, its twin, and what
// its model is made of.
//
// Invariants: nothing in it changes after facts_of.
// Shapes: those of the parameters, by name; of one that is split over tensor ranks, of this rank's
// part.   Units: none.
// Errors: those of Twin.
// Depends on: cases/twin.hpp, cases/case_model.hpp, oracle/update_bound.hpp,
// ranks/rank_context.hpp, engine/comm/mesh.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "conformance/cases/case_model.hpp"
#include "conformance/cases/twin.hpp"
#include "conformance/oracle/update_bound.hpp"
#include "conformance/ranks/rank_context.hpp"
#include "engine/comm/mesh.hpp"
#include "reference/recipe.hpp"

namespace equigrad::conformance {

struct CaseFacts {
  int stage = 0;
  reference::Recipe recipe;  // the twin's, in the order of this stage
  std::string keep;          // folder for tensors; empty: none
  ranks::RankContext& context;
  MakeCaseModel make_model;  // for whoever runs passes again
  Twin twin;
  comm::MeshSizes sizes = {};    // of the ranks
  comm::MeshPlace place = {};    // of this one
  TensorPlace tensor_rank = {};  // what it has of the model
  // Of those that ZeRO shards over.
  int zero_rank() const { return place.data * sizes.sequence + place.sequence; }
  std::map<std::string, std::vector<int64_t>> shapes = {}, whole_shapes = {};
  std::map<std::string, reference::OptimizerSpec> rules = {};  // by parameter, its group's settings
  std::map<std::string, std::size_t> groups = {};              // by parameter, its group's number
  std::map<std::string, at::ScalarType> communication_dtypes = {};  // of safe modules, under
                                                                    // autocast
};

// What a rank of a case has of its model.
TensorPlace tensor_place(int rank, const CaseSpec& spec);

// Fills in what the ranks and the model, whole, tell: sizes, place, shapes, rules, groups and
// communication_dtypes.
void add_model(CaseFacts& facts, reference::Model& model);

// Of a parameter that was updated so many times.
oracle::UpdateSpec update_spec(const CaseFacts& facts, const std::string& name, int64_t updates);

}  // namespace equigrad::conformance
