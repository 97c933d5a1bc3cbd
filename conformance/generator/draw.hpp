// Draw: generated cases, from a seed.
//
//   Generated.<seed>.<workload>.<execution>
//
// Of every key of the configuration's table that can have more than one value, every value class is
// drawn sooner or later, left out too; sizes, counts of tensors and of steps log-uniformly; kinds
// of tensors, hooks, events and communicators beside them. What may be drawn of a key depends on
// the others where DeepSpeed's documents say so; it is never asked of the engine's own parser.
//
// Every kMeshEvery-th workload has a core and is of a mesh: ranks that share a model or a sequence.
//
// Invariants: a case depends on its three numbers alone; a workload has kExecutions executions,
// which compute the same numbers. Most cases are small: one in a hundred is large.
// Units: sizes count elements.
// Errors: equigrad::Error for an id of another form.
// Depends on: workload.hpp, dice.hpp. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "conformance/generator/dice.hpp"
#include "conformance/generator/workload.hpp"

namespace equigrad::conformance {

constexpr int kExecutions = 8;
constexpr int64_t kMeshEvery = 6;

bool is_of_mesh(int64_t workload);
// The n-th workload that is, from 0.
int64_t mesh_workload(int64_t n);

GeneratedCase draw_case(uint64_t seed, int64_t workload, int execution);
std::string generated_id(uint64_t seed, int64_t workload, int execution);
// Whether a text begins as such an id does.
bool is_generated_id(const std::string& text);
GeneratedCase case_of_id(const std::string& id);

// Of the tables of keys: draw_config.cpp, draw_knobs.cpp; of tensors: draw_model.cpp; of ranks that
// share a core: draw_core.cpp, which draws the ranks too. `data`: ranks with batches of their own.
nlohmann::json draw_config(Dice& dice, int data, int accumulation, std::size_t groups);
// `how`: its stage and its way in.
nlohmann::json draw_knobs(Dice& dice, const Workload& workload, const Execution& how);
void draw_model(Dice& dice, Workload& workload);
void draw_core(Dice& dice, Workload& workload);

// Below which no stage may be, for what a configuration of numbers asks for.
int least_stage(const nlohmann::json& config);

}  // namespace equigrad::conformance
