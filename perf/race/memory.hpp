// Memory: what a rank holds at the highest moment of every phase of a step, by category.
//
// The engine's categories are its own books' (memory/ledger.hpp); what LibTorch's CPU allocator has
// handed out beside them is told apart by when it is there:
//
//   other        between steps: the batches, and memory that collectives receive into; in step()
//                what lives only as long as the update
//   activations  in forward and backward, beyond that: what operators save, their temporaries, and
//                gradients on their way to the buckets
//
// The forecast of the highest moment is made before the engine runs (memory_forecast.hpp). Where
// ranks share a model, or a sequence, its moments are those of plain LibTorch on one of them, whose
// groups carry nothing: what is divided is divided, what is replicated whole.
//
// Invariants: columns of a row add up to its sum.   Units: bytes, of rank 0; a step of accumulation
// 1.   Errors: std::runtime_error when a rank fails.   Depends on: rank_processes, comm/mesh.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/comm/mesh.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::perf {

struct PhaseBytes {
  std::string phase;  // "between", "forward", "backward", "step"
  int64_t live_bytes = 0;
  std::array<int64_t, memory::kCategories> held_bytes{};
  int64_t activation_bytes = 0, other_bytes = 0;
};

struct MemoryRow {
  std::string contestant;
  std::vector<PhaseBytes> phases;
  int64_t forecast_bytes = 0;  // of the highest moment, at most; 0: none
  int64_t left_bytes = 0;      // by forward, for the backward pass that begins

  int64_t peak_bytes() const;
};

// Plain LibTorch first, then the engine's stages, fp32: 0 to 3, on a tensor group 0 to 2. Of ZeRO's
// ranks, data x sequence, there are two at most, as in memory_forecast.hpp.
std::vector<MemoryRow> measure_memory(const std::string& worker, const std::string& scratch,
                                      const nlohmann::json& model, int64_t batch,
                                      const comm::MeshSizes& ranks);
std::string memory_table(const std::vector<MemoryRow>& rows);

}  // namespace equigrad::perf
