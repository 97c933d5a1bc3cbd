// Checkpoint types: what engine.save_checkpoint() and engine.load_checkpoint() take beside a folder
// and a tag, and what a load gives back. What is in a checkpoint: docs/checkpoints.md.
//
// Shapes: buffers keep theirs.
// Errors: none.
// Depends on: ATen tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace equigrad {

namespace checkpoint {
class Storage;  // engine/checkpoint/storage.hpp
}

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

struct SaveOptions {
  // JSON: the caller's own, given back by the load. Rank 0's is kept.
  std::string client_state = "null";
  bool save_latest = true;  // DIRECTORY/latest names this tag afterwards
  bool exclude_frozen_parameters = false;
  // This rank's tensors that no optimizer updates: running means and the like. Those of the module
  // that the engine was made from come by themselves.
  std::vector<NamedTensor> buffers = {};
  // Returns when a copy has been made in host memory, as large as this rank's part, and writes it
  // while training goes on; finish_checkpoint() ends it.
  bool asynchronous = false;
  std::shared_ptr<checkpoint::Storage> storage = nullptr;  // none: the file system
};

struct LoadOptions {
  // Every parameter and buffer of the model is in the checkpoint, and no other: else an error. If
  // false, what only one of them has stays as it is.
  bool module_strict = true;
  bool optimizer_states = true;           // if false they begin anew, as those of a new engine
  bool lr_scheduler_states = true;        // if false the schedule stays where it is
  bool module_only = false;               // weights and buffers; nothing else changes but masters
  std::vector<NamedTensor> buffers = {};  // to be written; see SaveOptions
  // Of the tensors that are read. Those of the manifest and of the headers are always checked.
  bool check_digests = true;
  // Called with the saved client_state before anything is written; what it throws on any rank is an
  // error on all, and nothing is loaded.
  std::function<void(const std::string& client_state)> check = {};
};

struct LoadedCheckpoint {
  std::string path;                   // DIRECTORY/TAG
  std::string client_state = "null";  // JSON
};

}  // namespace equigrad
