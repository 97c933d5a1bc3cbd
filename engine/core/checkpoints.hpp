// Checkpoints: an engine's state into a folder and out of it, on all ranks together.
//
//   save   agree -> folder -> every rank its file -> manifest -> latest -> what is left over goes
//   load   agree -> open and verify, on every rank -> write into the engine -> publish
//
// Invariants: a save counts from the rename of the manifest on, a load from the first write, which
// comes when every rank has read and verified all that it needs; so an error before leaves the
// checkpoint, or the engine, as it was. A rank whose own part fails takes part to the end.
// Shapes: a rank writes an equal part of every tensor, at every stage; it holds no more than one
// tensor beside what it trains with.
// Errors: those of Engine::save_checkpoint and load_checkpoint.
// Depends on: engine/core/training_engine.hpp, checkpoint.
// Paper: none; the order of syncs and renames is that of Pillai et al., All File Systems Are Not
// Created Equal (OSDI 2014), section 3.
#pragma once

#include <optional>
#include <string>

#include "engine/api/checkpoint_types.hpp"

namespace equigrad {
class TrainingEngine;
}

namespace equigrad::core {

struct Parts;

void save_checkpoint(TrainingEngine& engine, const std::string& directory, const std::string& tag,
                     const SaveOptions& options);
// What an asynchronous save has begun; nothing without one.
void finish_checkpoint(TrainingEngine& engine);
std::optional<LoadedCheckpoint> load_checkpoint(TrainingEngine& engine,
                                                const std::string& directory,
                                                const std::string& tag, const LoadOptions& options);

// An error unless the engine is between two windows, with no scope of gather() open.
void check_idle(const Parts& parts, const std::string& where);
// Whose generators are kept: the CPU's, and that of the engine's own device.
std::vector<at::Device> random_devices(const Parts& parts);
// Those of the module that the engine was made from, and the caller's; an error for two of a name.
std::vector<NamedTensor> all_buffers(const Parts& parts, const std::vector<NamedTensor>& given,
                                     const std::string& where);

}  // namespace equigrad::core
