// Load source: what a load takes from a checkpoint into an engine, and by which names; and whether
// all of it fits, which is known before anything is written.
//
// Invariants: nothing here writes into the engine.
// Shapes: parameters by index of the engine's table; names of tensors are those of the manifest.
// Errors: those of saved_checkpoint and saved_engine; check_load() throws equigrad::Error for what
// is of another model, optimizer or precision, is not there, or has been changed.
// Depends on: engine/core/training_engine.hpp, saved_engine, checkpoint.
#pragma once

#include <string>
#include <vector>

#include "engine/api/checkpoint_types.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/core/saved_engine.hpp"
#include "engine/core/training_engine.hpp"
#include "engine/core/whole_tensor.hpp"

namespace equigrad::core {

inline constexpr auto kLoadCheckpoint = "load_checkpoint";  // where its errors come from

struct LoadSource {
  Parts& parts;
  const LoadOptions& options;
  checkpoint::SavedCheckpoint saved;
  SavedEngine from;  // what the saved engine said of itself
  std::vector<NamedTensor> buffers;
  optimizer::ClientState* client;  // null: the optimizer is the configured one

  LoadSource(Parts& engine, const LoadOptions& wanted, checkpoint::SavedCheckpoint checkpoint);
  bool loads_optimizer() const { return options.optimizer_states && !options.module_only; }
  // Where the values of a parameter are: of one that was trained its master; empty: nowhere.
  std::string name_in_file(std::size_t parameter) const;
  // Where a trained parameter is as the model had it, which was not what its master says; empty:
  // nowhere, or in another type than this model's.
  std::string name_written_past(std::size_t parameter) const;
  // Of the optimizer, as large as the parameter, by name.
  std::vector<std::string> states_of(std::size_t parameter) const;
  bool is_same_mesh() const;
  int source_rank() const;  // whose own tensors this rank takes
};

// Everything that can fail, on this rank.
void check_load(const LoadSource& source);

}  // namespace equigrad::core
