#include "conformance/crash/disk/careless_storage.hpp"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "conformance/crash/disk/folder_image.hpp"
#include "engine/checkpoint/manifest.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

const std::string kManifest(checkpoint::kManifestName);
const std::string kLatest(checkpoint::kLatestName);
const std::string kSaving = ".saving";

bool is_rank_file(const Path& path) { return name_of(path.string()).starts_with("rank-"); }
bool is_named(const Path& path, const std::string& name) { return name_of(path.string()) == name; }

// "rank-00000-of-00002-ID.safetensors": the part before the last '-', and what is behind it.
std::string without_id(const std::string& path) {
  return path.substr(0, path.rfind('-')) + ".safetensors";
}
std::string id_of(const std::string& path) { return path.substr(path.rfind('-') + 1); }

// A sync that does nothing, or what it is given.
class OtherSync final : public ForwardingFile {
 public:
  OtherSync(std::shared_ptr<OutputFile> file, std::function<void(OutputFile&)> sync)
      : ForwardingFile(std::move(file)), sync_(std::move(sync)) {}
  void sync() override {
    if (sync_) sync_(*file_);
  }

 private:
  std::function<void(OutputFile&)> sync_;
};

class NoFileSync final : public ForwardingStorage {
 public:
  NoFileSync(std::shared_ptr<Storage> storage, std::function<bool(const Path&)> is_it)
      : ForwardingStorage(std::move(storage)), is_it_(std::move(is_it)) {}
  std::unique_ptr<OutputFile> create(const Path& file) override {
    auto created = storage_->create(file);
    if (!is_it_(file)) return created;
    return std::make_unique<OtherSync>(std::move(created), nullptr);
  }

 private:
  std::function<bool(const Path&)> is_it_;
};

class NoErrorOfSync final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  std::unique_ptr<OutputFile> create(const Path& file) override {
    return std::make_unique<OtherSync>(storage_->create(file), [](OutputFile& output) {
      try {
        output.sync();
      } catch (const Error&) {  // this is what it does wrong
      }
    });
  }
};

// The folder's names are not synced before the renaming to `name`, or not after it.
class NoFolderSync final : public ForwardingStorage {
 public:
  NoFolderSync(std::shared_ptr<Storage> storage, std::string name, bool before)
      : ForwardingStorage(std::move(storage)), name_(std::move(name)), before_(before) {}
  void rename(const Path& from, const Path& to) override {
    storage_->rename(from, to);
    if (is_named(to, name_)) renamed_in_ = folder_of(to.string());
  }
  void sync_directory(const Path& directory) override {
    const bool is_after = directory.string() == renamed_in_;
    if (before_ ? renamed_in_.empty() : is_after) return;
    storage_->sync_directory(directory);
  }

 private:
  std::string name_;
  bool before_;
  std::string renamed_in_;
};

// Synced when it has its name, not before.
class SyncAfterRename final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  std::unique_ptr<OutputFile> create(const Path& file) override {
    auto created = storage_->create(file);
    if (!is_named(file, kManifest + kSaving)) return created;
    late_ = std::move(created);
    return std::make_unique<OtherSync>(late_, nullptr);
  }
  void rename(const Path& from, const Path& to) override {
    storage_->rename(from, to);
    if (!late_ || !is_named(to, kManifest)) return;
    late_->sync();
    late_.reset();
  }

 private:
  std::shared_ptr<OutputFile> late_;
};

class LatestFirst final : public ForwardingStorage {
 public:
  LatestFirst(std::shared_ptr<Storage> storage, std::string folder)
      : ForwardingStorage(std::move(storage)), folder_(std::move(folder)) {}
  std::unique_ptr<OutputFile> create(const Path& file) override {
    if (!written_ && name_of(file.string()).starts_with("rank-00000-")) {
      written_ = true;
      const auto tag = name_of(folder_of(file.string()));
      checkpoint::replace_file(*storage_, Path(folder_ + "/" + kLatest),
                               checkpoint::write_latest(tag));
    }
    return storage_->create(file);
  }

 private:
  std::string folder_;
  bool written_ = false;
};

// The old file is emptied and written anew, under its own name.
class InPlace final : public ForwardingStorage {
 public:
  InPlace(std::shared_ptr<Storage> storage, std::string name)
      : ForwardingStorage(std::move(storage)), name_(std::move(name)) {}
  std::unique_ptr<OutputFile> create(const Path& file) override {
    if (!is_named(file, name_ + kSaving)) return storage_->create(file);
    const std::string text = file.string();
    const Path place(text.substr(0, text.size() - kSaving.size()));
    storage_->remove(place);
    return storage_->create(place);
  }
  void rename(const Path& from, const Path& to) override {
    if (!is_named(to, name_)) storage_->rename(from, to);
  }

 private:
  std::string name_;
};

class RemovesFirst final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  std::unique_ptr<OutputFile> create(const Path& file) override {
    if (is_rank_file(file)) id_ = id_of(file.string());
    if (is_named(file, kManifest + kSaving)) remove_others(folder_of(file.string()));
    return storage_->create(file);
  }

 private:
  void remove_others(const std::string& folder) {
    for (const auto& [path, bytes] : read_folder(folder).files)
      if (is_rank_file(path) && id_of(path) != id_) storage_->remove(Path(folder + "/" + path));
  }
  std::string id_;
};

using checkpoint::Manifest;
using checkpoint::Piece;
using checkpoint::TensorEntry;

// A manifest whose text is known when it is synced, and which then says something else.
class OtherManifest final : public ForwardingFile {
 public:
  OtherManifest(std::shared_ptr<OutputFile> file, std::function<void(Manifest&)> change)
      : ForwardingFile(std::move(file)), change_(std::move(change)) {}
  void append(const void* data, std::size_t bytes) override {
    text_.append(static_cast<const char*>(data), bytes);
  }
  void sync() override {
    auto manifest = checkpoint::read_manifest(text_, "crash.careless");
    change_(manifest);
    const auto text = checkpoint::write_manifest(manifest);
    file_->append(text.data(), text.size());
    file_->sync();
  }

 private:
  std::function<void(Manifest&)> change_;
  std::string text_;
};

void forget_ids(Manifest& manifest) {
  for (auto& file : manifest.files) file.name = without_id(file.name);
}

class NamesWithoutId final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  std::unique_ptr<OutputFile> create(const Path& file) override {
    if (is_named(file, kManifest + kSaving))
      return std::make_unique<OtherManifest>(storage_->create(file), forget_ids);
    if (!is_rank_file(file)) return storage_->create(file);
    const Path other(without_id(file.string()));
    storage_->remove(other);
    auto created = storage_->create(other);
    // Rank 0 looks whether the file is there under the name that it was told.
    if (symlink(name_of(other.string()).c_str(), file.c_str()) != 0)
      throw Error("crash.careless", "expected to link " + file.string() + ", got an error.");
    return created;
  }
  void remove(const Path& file) override {
    if (!is_rank_file(file)) storage_->remove(file);  // to the engine they are of no manifest
  }
};

// Of every tensor that is saved in parts the manifest says something else.
class OtherParts final : public ForwardingStorage {
 public:
  OtherParts(std::shared_ptr<Storage> storage, void (*change)(TensorEntry& entry))
      : ForwardingStorage(std::move(storage)), change_(change) {}
  std::unique_ptr<OutputFile> create(const Path& file) override {
    if (!is_named(file, kManifest + kSaving)) return storage_->create(file);
    return std::make_unique<OtherManifest>(storage_->create(file),
                                           [change = change_](Manifest& manifest) {
                                             for (auto& entry : manifest.tensors)
                                               if (entry.cut) change(entry);
                                           });
  }

 private:
  void (*change_)(TensorEntry& entry);
};

void exchange_parts(TensorEntry& entry) {
  for (auto& piece : entry.pieces) piece.part = entry.cut->parts - 1 - piece.part;
  std::stable_sort(entry.pieces.begin(), entry.pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.part < b.part; });
}

void forget_cut(TensorEntry& entry) {
  const auto each = checkpoint::numel_of(entry.shape) / entry.cut->parts;
  for (auto& piece : entry.pieces) {
    const auto part = std::exchange(piece.part, 0);
    piece.begin += part * each;
    piece.end += part * each;
  }
  entry.cut.reset();
}

void forget_packing(TensorEntry& entry) {
  entry.cut->segments = {entry.shape[static_cast<std::size_t>(entry.cut->dimension)]};
}

using Made = std::shared_ptr<Storage>;

struct Row {
  Carelessness told;
  Made (*make)(Made storage, const std::string& folder);
};

template <class Kind, class... Arguments>
Made made(Made storage, Arguments... arguments) {
  return std::make_shared<Kind>(std::move(storage), arguments...);
}

bool is_manifest(const Path& path) { return is_named(path, kManifest + kSaving); }
bool is_latest(const Path& path) { return is_named(path, kLatest + kSaving); }

Made as_it_is(Made storage, const std::string&) { return storage; }

const std::vector<Row>& rows() {
  static const std::vector<Row> rows = {
      {{"rank_file_not_synced", "a rank's file is not synced"},
       [](Made to, const std::string&) { return made<NoFileSync>(to, is_rank_file); }},
      {{"names_not_synced_before_the_commit",
        "the folder is not synced before the manifest is "
        "renamed"},
       [](Made to, const std::string&) { return made<NoFolderSync>(to, kManifest, true); }},
      {{"names_not_synced_after_the_commit",
        "the folder is not synced after the manifest is "
        "renamed"},
       [](Made to, const std::string&) { return made<NoFolderSync>(to, kManifest, false); }},
      {{"manifest_not_synced", "the manifest is not synced"},
       [](Made to, const std::string&) { return made<NoFileSync>(to, is_manifest); }},
      {{"manifest_synced_after_the_rename", "the manifest is renamed first and synced then"},
       [](Made to, const std::string&) { return made<SyncAfterRename>(to); }},
      {{"manifest_in_place", "the manifest is written in its place, without a rename"},
       [](Made to, const std::string&) { return made<InPlace>(to, kManifest); }},
      {{"latest_first", "latest is written before the files"},
       [](Made to, const std::string& folder) { return made<LatestFirst>(to, folder); }},
      {{"latest_not_synced", "latest is not synced"},
       [](Made to, const std::string&) { return made<NoFileSync>(to, is_latest); }},
      {{"latest_in_place", "latest is written in its place, without a rename"},
       [](Made to, const std::string&) { return made<InPlace>(to, kLatest); }},
      {{"latest_name_not_synced", "the folder is not synced after latest is renamed"},
       [](Made to, const std::string&) { return made<NoFolderSync>(to, kLatest, false); }},
      {{"old_files_removed_first",
        "files of the old manifest are removed before the new one is "
        "there"},
       [](Made to, const std::string&) { return made<RemovesFirst>(to); }},
      {{"names_without_id", "a rank's file has the name that it had in the save before"},
       [](Made to, const std::string&) { return made<NamesWithoutId>(to); }},
      {{"new_folder_not_synced", "the name of a new folder is not synced"}, as_it_is},
      {{.name = "parts_in_each_others_place",
        .what = "parts of a split tensor are told in the order of the ranks from behind",
        .of_parts = true},
       [](Made to, const std::string&) { return made<OtherParts>(to, exchange_parts); }},
      {{.name = "cut_not_told",
        .what = "parts of a split tensor stand behind each other as if they were rows of it",
        .of_parts = true},
       [](Made to, const std::string&) { return made<OtherParts>(to, forget_cut); }},
      {{.name = "packing_not_told",
        .what = "a split tensor is told to be one matrix, whatever is packed in it",
        .of_parts = true},
       [](Made to, const std::string&) { return made<OtherParts>(to, forget_packing); }},
      {{.name = "error_of_sync_ignored",
        .what = "a sync that fails is taken for one that did not",
        .needs_error = true},
       [](Made to, const std::string&) { return made<NoErrorOfSync>(to); }},
      {{.name = "digests_not_checked",
        .what = "who loads compares no digest of what is saved",
        .of_reader = true},
       as_it_is}};
  return rows;
}

const Row& row(const std::string& name) {
  for (const auto& one : rows())
    if (one.told.name == name) return one;
  throw Error("crash.careless",
              "expected a carelessness, got \"" + name + "\". equigrad crash tells them all.");
}

}  // namespace

const std::vector<Carelessness>& carelessnesses() {
  static const std::vector<Carelessness> all = [] {
    std::vector<Carelessness> told;
    for (const auto& one : rows()) told.push_back(one.told);
    return told;
  }();
  return all;
}

const Carelessness& carelessness(const std::string& name) { return row(name).told; }

std::shared_ptr<Storage> careless(const std::string& name, std::shared_ptr<Storage> storage,
                                  const std::string& folder) {
  return name.empty() ? storage : row(name).make(std::move(storage), folder);
}

std::vector<Operation> as_done(const std::string& name, std::vector<Operation> operations) {
  if (name != "new_folder_not_synced") return operations;
  std::vector<Operation> done;
  for (auto& one : operations) {
    const bool is_promise = one.kind == Operation::Kind::SyncDirectory && !done.empty() &&
                            done.back().kind == Operation::Kind::MakeDirectory;
    if (!is_promise) done.push_back(std::move(one));
  }
  return done;
}

}  // namespace equigrad::conformance::crash
