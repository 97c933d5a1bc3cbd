// SharedGpt: the reference's GPT (reference/models/model.hpp) where tensor ranks have parts of its
// blocks' matrices, or ranks of a sequence have parts of every sequence, of the engine's layers.
//
//   on T tensor ranks     qkv, up: a rank's outputs;  projection, down: its inputs;  attention: its
//                         heads;  embedding, norms, head and logits: whole
//   on S sequence ranks   tokens: a rank's part;  attention: whole sequences of its heads
//
// What a forward pass leaves for the backward pass: perf/race/activations.hpp.
//
// Invariants: parameters have the names of the reference's, in its order; read_part() reads this
// rank's parts of its values.
// Shapes: batches [B, C] int64, whole.   Units: bytes.
// Errors: equigrad::Error for sizes that a group does not divide.
// Depends on: engine/comm/mesh.hpp, engine/parallel, reference/models/model.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "engine/comm/mesh.hpp"
#include "reference/models/model.hpp"

namespace equigrad::perf {

std::shared_ptr<reference::Model> make_shared_gpt(const reference::GptOptions& options,
                                                  const comm::Mesh& ranks);
// Of whole values by name.
void read_part(reference::Model& model, const std::map<std::string, at::Tensor>& values,
               const comm::Mesh& ranks);

}  // namespace equigrad::perf
