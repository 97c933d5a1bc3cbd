// Pending save: one save from the moment when it is agreed on: its files, then its manifest.
//
//   write (this rank's file, at once or by a thread of its own) -> finish (manifest, latest, rest)
//
// Invariants: nothing of it counts until finish() renames the manifest; a save that is destroyed
// before has never been, and its file goes. What a thread writes was copied when it began.
// Shapes: pieces are flat.
// Errors: those of storage; one on any rank is one on all, from finish().
// Depends on: engine/core/together.hpp, checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/checkpoint/rank_writer.hpp"
#include "engine/checkpoint/storage.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::core {

inline constexpr auto kSaveCheckpoint = "save_checkpoint";  // where its errors come from

// A piece to come, and its values when it is its turn: flat. Every rank asks for all of them, for
// they may come by a collective call; one that is empty is not written.
struct PieceSource {
  checkpoint::PieceHeader header;
  std::function<at::Tensor()> values;
};

// What all ranks have agreed on.
struct SaveAgreement {
  std::string directory;
  std::string tag;
  std::string id;
  bool save_latest = true;
  checkpoint::Path folder() const { return checkpoint::Path(directory) / tag; }
};

// What the manifest says beside its tensors.
struct SaveWords {
  nlohmann::json engine;
  nlohmann::json client_state;
};

class PendingSave {
 public:
  // Makes the folder. Collective.
  PendingSave(comm::Communicator& communicator, std::shared_ptr<checkpoint::Storage> storage,
              SaveAgreement agreement, SaveWords words);
  ~PendingSave();
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;

  void write(const std::vector<PieceSource>& sources);
  // Copies what there is first, and returns while it is written.
  void write_beside(const std::vector<PieceSource>& sources);
  // Waits for the files of all ranks. Collective.
  void finish();

 private:
  bool is_first() const { return communicator_.rank() == 0; }
  void commit(const std::vector<std::string>& rank_files) const;
  void write_manifest(const std::string& text) const;
  void remove_files(const std::function<bool(const std::string& name)>& is_meant) const;
  void remove_own() const noexcept;

  comm::Communicator& communicator_;
  std::shared_ptr<checkpoint::Storage> storage_;
  SaveAgreement agreement_;
  SaveWords words_;
  checkpoint::Path file_;  // this rank's
  std::shared_ptr<void> lock_;
  std::future<std::string> written_;  // valid until finish()
};

}  // namespace equigrad::core
