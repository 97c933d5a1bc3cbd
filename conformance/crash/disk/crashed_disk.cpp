#include "conformance/crash/disk/crashed_disk.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

using Kind = Operation::Kind;
using Random = std::mt19937_64;

constexpr std::size_t kNothing = SIZE_MAX, kFolder = SIZE_MAX - 1;  // in the place of a file

struct File {
  std::string bytes;
  std::size_t synced = 0;
  std::vector<std::size_t> sizes;                            // after each write
  std::vector<std::pair<std::size_t, std::size_t>> dropped;  // what a failed sync has lost
};

struct Entry {
  std::string path;
  std::size_t file = kNothing;
};
using Names = std::map<std::string, std::size_t>;

// What one operation did to the names of a folder.
struct Change {
  std::string folder;
  std::vector<Entry> entries;
};

void put(const Change& change, Names& names) {
  for (const auto& [path, file] : change.entries) {
    if (file == kNothing)
      names.erase(path);
    else
      names[path] = file;
  }
}

// The file system while it runs: what is seen, and what of it is on the disk.
class Running {
 public:
  explicit Running(const FolderImage& before) {
    for (const auto& path : before.directories) seen[path] = kFolder;
    for (const auto& [path, bytes] : before.files) {
      seen[path] = files.size();
      files.push_back({.bytes = bytes, .synced = bytes.size(), .sizes = {}, .dropped = {}});
    }
    on_disk = seen;
    of_before = files.size();
  }

  void run(std::size_t rank, const Operation& one) {
    const auto file = std::pair(rank, one.file);
    switch (one.kind) {
      case Kind::MakeDirectory:
        return seen.contains(one.path) ? void()
                                       : change({folder_of(one.path), {{one.path, kFolder}}});
      case Kind::Create:
        created[file] = files.size();
        files.emplace_back();
        return change({folder_of(one.path), {{one.path, created[file]}}});
      case Kind::Append:
        return append(files.at(created.at(file)), one.bytes);
      case Kind::Sync:
        return sync(files.at(created.at(file)), one.failed);
      case Kind::Rename:
        return rename(one);
      case Kind::SyncDirectory:
        return sync_names(one.path);
      case Kind::Remove:
        return seen.contains(one.path) ? change({folder_of(one.path), {{one.path, kNothing}}})
                                       : void();
    }
  }

  static void append(File& file, const std::string& bytes) {
    file.bytes += bytes;
    file.sizes.push_back(file.bytes.size());
  }

  std::vector<File> files;
  std::size_t of_before = 0;  // files that were there before
  std::map<std::pair<std::size_t, std::int64_t>, std::size_t> created;  // by rank and number
  Names seen, on_disk;
  std::vector<Change> unsynced;

 private:
  void change(Change change) {
    put(change, seen);
    unsynced.push_back(std::move(change));
  }
  static void sync(File& file, bool failed) {
    if (failed) file.dropped.emplace_back(file.synced, file.bytes.size());
    file.synced = file.bytes.size();
  }
  void rename(const Operation& one) {
    const auto from = seen.find(one.path);
    if (from == seen.end() || folder_of(one.path) != folder_of(one.to))
      throw Error("crash.disk", "expected to rename within a folder, got " + to_text(one) +
                                    ". The log is not that of a file system.");
    change({folder_of(one.path), {{one.path, kNothing}, {one.to, from->second}}});
  }
  void sync_names(const std::string& folder) {
    for (const auto& one : unsynced)
      if (one.folder == folder) put(one, on_disk);
    std::erase_if(unsynced, [&](const Change& one) { return one.folder == folder; });
  }
};

Running run(const FolderImage& before, const Log& log, const Cut& cut) {
  Running running(before);
  for (const auto& [rank, number] : in_order(log))
    if (number < cut.at(rank)) running.run(rank, log.by_rank[rank][number]);
  return running;
}

// Which changes of names are on the disk, each or none of its entries.
enum class NamesLeft { None, All, First, Some };
enum class BytesLeft { None, All, SizeAlone, Some };

struct Loss {
  NamesLeft names = NamesLeft::Some;
  BytesLeft bytes = BytesLeft::Some;
};

Loss loss_of(std::uint64_t seed, Random& random) {
  constexpr Loss kExtremes[kExtremeSeeds] = {{NamesLeft::None, BytesLeft::None},
                                             {NamesLeft::All, BytesLeft::All},
                                             {NamesLeft::All, BytesLeft::None},
                                             {NamesLeft::None, BytesLeft::All},
                                             {NamesLeft::All, BytesLeft::SizeAlone}};
  if (seed < kExtremeSeeds) return kExtremes[seed];
  return {static_cast<NamesLeft>(random() % 4), static_cast<BytesLeft>(random() % 4)};
}

Names names_left(const Running& running, NamesLeft left, Random& random) {
  Names names = running.on_disk;
  const std::size_t first = random() % (running.unsynced.size() + 1);
  for (std::size_t i = 0; i < running.unsynced.size(); ++i) {
    const bool some = random() % 2 == 0;
    if (left == NamesLeft::All || (left == NamesLeft::First && i < first) ||
        (left == NamesLeft::Some && some))
      put(running.unsynced[i], names);
  }
  return names;
}

// What is read where nothing was written: the page of [begin, end).
class Unwritten {
 public:
  Unwritten(const Running& running, Random& random) : random_(random), what_(random() % 3) {
    if (running.of_before > 0) older_ = &running.files[random() % running.of_before].bytes;
  }
  void fill(std::string& bytes, std::size_t begin, std::size_t end) const {
    for (std::size_t i = begin; i < end; ++i) {
      const bool is_old = what_ == 2 && older_ != nullptr && i < older_->size();
      bytes[i] = is_old ? (*older_)[i] : what_ == 0 ? '\0' : static_cast<char>(random_());
    }
  }

 private:
  Random& random_;
  std::uint64_t what_;  // zeros, anything, an older file's
  const std::string* older_ = nullptr;
};

std::size_t size_left(const File& file, BytesLeft left, std::size_t page, Random& random) {
  const std::size_t whole = file.bytes.size();
  if (left == BytesLeft::None) return file.synced;
  if (left != BytesLeft::Some) return whole;
  switch (random() % 4) {
    case 0:
      return file.synced;
    case 1:
      return file.sizes.empty() ? whole
                                : std::max(file.synced, file.sizes[random() % file.sizes.size()]);
    case 2:
      return std::clamp(random() % (whole / page + 1) * page, file.synced, whole);
    default:
      return whole;
  }
}

std::string bytes_left(const File& file, BytesLeft left, const Unwritten& unwritten,
                       Random& random) {
  const std::size_t page = random() % 4 == 0 ? 512 : 4096;
  const std::size_t size = size_left(file, left, page, random);
  std::string bytes = file.bytes.substr(0, size);
  for (std::size_t at = file.synced; at < size;) {
    const std::size_t end = std::min(size, (at / page + 1) * page);
    const auto state = random() % 3;  // whole, as it was after some write, not written
    const std::size_t version = file.sizes.empty() ? 0 : file.sizes[random() % file.sizes.size()];
    if (left == BytesLeft::SizeAlone || (left == BytesLeft::Some && state == 2))
      unwritten.fill(bytes, at, end);
    else if (left == BytesLeft::Some && state == 1 && version < end)
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(std::max(at, version)),
                bytes.begin() + static_cast<std::ptrdiff_t>(end), '\0');
    at = end;
  }
  for (const auto& [begin, end] : file.dropped)
    if (left != BytesLeft::All) unwritten.fill(bytes, std::min(begin, size), std::min(end, size));
  return bytes;
}

bool is_reached(const std::string& path, const Names& names) {
  const auto folder = folder_of(path);
  if (folder.empty()) return true;
  const auto found = names.find(folder);
  return found != names.end() && found->second == kFolder && is_reached(folder, names);
}

FolderImage image_of(const Names& names, const std::vector<std::string>& bytes) {
  FolderImage image;
  for (const auto& [path, file] : names) {
    if (!is_reached(path, names)) continue;
    if (file == kFolder)
      image.directories.insert(path);
    else
      image.files[path] = bytes[file];
  }
  return image;
}

}  // namespace

FolderImage after_power_loss(const FolderImage& before, const Log& log, const Cut& cut,
                             std::uint64_t seed) {
  const auto running = run(before, log, cut);
  Random random(seed);
  const auto loss = loss_of(seed, random);
  const auto names = names_left(running, loss.names, random);
  const Unwritten unwritten(running, random);
  std::vector<std::string> bytes;
  for (const auto& file : running.files)
    bytes.push_back(bytes_left(file, loss.bytes, unwritten, random));
  return image_of(names, bytes);
}

FolderImage after_kill(const FolderImage& before, const Log& log, const Cut& cut,
                       std::uint64_t seed) {
  auto running = run(before, log, cut);
  Random random(seed);
  for (std::size_t rank = 0; rank < cut.size(); ++rank) {
    if (cut[rank] >= log.by_rank[rank].size()) continue;
    const auto& next = log.by_rank[rank][cut[rank]];
    if (next.kind != Kind::Append || seed % 2 == 0) continue;
    Running::append(running.files.at(running.created.at({rank, next.file})),
                    next.bytes.substr(0, random() % (next.bytes.size() + 1)));
  }
  std::vector<std::string> bytes;
  for (const auto& file : running.files) bytes.push_back(file.bytes);
  return image_of(running.seen, bytes);
}

}  // namespace equigrad::conformance::crash
