// Activations: what a forward pass of a GPT leaves for its backward pass, from sizes alone, on one
// of the ranks that share it (perf/worker/shared_gpt.hpp): what is divided among them, and what
// each has whole.
//
// Invariants: equal to what LibTorch's CPU allocator has handed out, to the byte, in fp32.
// Units: bytes of a rank; batch of a data rank.
// Errors: none.   Depends on: nlohmann-json, comm/mesh. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "engine/comm/mesh.hpp"

namespace equigrad::perf {

struct ActivationBytes {
  int64_t divided = 0, whole = 0;
  int64_t total() const { return divided + whole; }
};

// `model` as perf/worker/model.hpp has it.
ActivationBytes activation_bytes(const nlohmann::json& model, int64_t batch,
                                 const comm::MeshSizes& ranks);

}  // namespace equigrad::perf
