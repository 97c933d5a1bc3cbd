#include "engine/checkpoint/saved_checkpoint.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/checkpoint/copy.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

constexpr std::string_view kDigestLine = "xxh3_128 ";

std::string_view text_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_there(const Path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Of elements [begin, end) of the whole in turn: `take(piece, from, whole, numel)` for those that
// are elements [from, from + numel) of a piece.
template <class Take>
void for_each_place(const TensorEntry& entry, std::int64_t begin, std::int64_t end, Take take) {
  while (begin < end) {
    const auto at = entry.cut ? stretch_of_whole(*entry.cut, entry.shape, begin)
                              : Stretch{.part = 0, .whole = begin, .local = begin, .numel = end};
    const auto piece =
        std::partition_point(entry.pieces.begin(), entry.pieces.end(), [&at](const Piece& one) {
          return one.part < at.part || (one.part == at.part && one.end <= at.local);
        });
    const auto numel = std::min({at.numel, piece->end - at.local, end - begin});
    take(*piece, at.local - piece->begin, begin, numel);
    begin += numel;
  }
}

std::string quoted(const Path& path) { return "\"" + path.string() + "\""; }

// mp_rank_00_model_states.pt, zero_pp_rank_0_mp_rank_00_optim_states.pt, ...
bool is_of_deepspeed(const Path& folder) {
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator(folder, gone))
    if (entry.path().filename().string().ends_with("_states.pt")) return true;
  return false;
}

}  // namespace

void check_tag(std::string_view tag, const std::string& where) {
  const bool is_plain = !tag.empty() && tag != "." && tag != ".." && tag != kLatestName &&
                        tag.size() <= 200 && std::none_of(tag.begin(), tag.end(), [](char c) {
                          return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
                        });
  if (is_plain) return;
  throw Error(where,
              "expected a tag that is the plain name of a folder, got \"" +
                  std::string(tag.substr(0, 100)) +
                  "\". Leave out separators, and name the folder above it as the directory.");
}

std::string write_latest(std::string_view tag) {
  return std::string(tag) + "\n" + std::string(kDigestLine) +
         to_text(digest_of(tag.data(), tag.size())) + "\n";
}

std::string read_latest(std::string_view text, const std::string& where) {
  const auto end = text.find('\n');
  const auto tag = text.substr(0, end);
  check_tag(tag, where);
  const auto rest = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  const bool is_by_hand = rest.empty() && tag.find(kDigestLine) == std::string_view::npos;
  if (is_by_hand || text == write_latest(tag)) return std::string(tag);
  throw Error(where, "expected a tag, and in a second line its digest, got \"" + std::string(tag) +
                         "\" with another one. The file has been changed: write the tag alone into "
                         "it, or give the tag.");
}

std::string latest_tag(const Path& directory) {
  const auto file = directory / kLatestName;
  if (!is_there(file)) {
    throw Error("load_checkpoint", "expected " + quoted(file) +
                                       ", which names the newest tag, got none. Give the tag, or "
                                       "another folder.");
  }
  return read_latest(text_of(MappedFile(file)), file.string());
}

std::optional<std::string> newest_tag(const Path& directory) {
  if (!is_there(directory / kLatestName)) return {};
  return latest_tag(directory);
}

SavedCheckpoint SavedCheckpoint::open(const Path& directory, const std::string& tag) {
  check_tag(tag, "load_checkpoint");
  SavedCheckpoint saved;
  saved.folder_ = directory / tag;
  const auto file = saved.folder_ / kManifestName;
  if (!is_there(saved.folder_)) {
    throw Error("load_checkpoint", "expected a checkpoint at " + quoted(saved.folder_) +
                                       ", got no such folder. Look for the folder and the tag.");
  }
  if (!is_there(file) && is_of_deepspeed(saved.folder_)) {
    throw Error(
        "load_checkpoint",
        "expected a checkpoint of this engine at " + quoted(saved.folder_) +
            ", got one of DeepSpeed. Turn it into one of this engine, in another folder, by "
            "equigrad.import_deepspeed(FROM, None, TO) in Python, once and without ranks, "
            "and load TO.");
  }
  if (!is_there(file)) {
    throw Error("load_checkpoint", "expected " + quoted(file) +
                                       ", got none: this save did not come to its end, and nothing "
                                       "of it is loaded. Give an earlier tag.");
  }
  const MappedFile text(file);
  saved.manifest_ = read_manifest(text_of(text), file.string());
  saved.digest_ = digest_of(text.bytes().data(), text.bytes().size());
  for (const auto& entry : saved.manifest_.files) {
    const auto path = saved.folder_ / entry.name;
    MappedFile mapped(path);
    const auto bytes = mapped.bytes();
    if (static_cast<std::int64_t>(bytes.size()) != entry.bytes) {
      throw Error("load_checkpoint", "expected " + std::to_string(entry.bytes) + " bytes in " +
                                         quoted(path) + ", got " + std::to_string(bytes.size()) +
                                         ". The file has been changed, or was not copied whole.");
    }
    if (digest_of(bytes.data(), static_cast<std::size_t>(entry.header_bytes)) != entry.header) {
      throw Error("load_checkpoint", "expected the header that was saved in " + quoted(path) +
                                         ", got another. The file has been changed: load another "
                                         "tag, or a copy of this one.");
    }
    saved.files_.push_back(std::move(mapped));
  }
  return saved;
}

const TensorEntry& SavedCheckpoint::entry(std::string_view tensor) const {
  const auto* found = manifest_.find(tensor);
  if (found != nullptr) return *found;
  throw Error("load_checkpoint", "expected \"" + std::string(tensor) + "\" in " + quoted(folder_) +
                                     ", got a checkpoint without it. It is one of another model, "
                                     "optimizer or number of ranks.");
}

// read_manifest has checked that it lies in its file.
const std::byte* SavedCheckpoint::at(const Piece& piece) const {
  const auto offset = manifest_.files[piece.file].header_bytes + piece.offset_bytes;
  return files_[piece.file].bytes().data() + offset;
}

void SavedCheckpoint::verify(const TensorEntry& entry, const Piece& piece) const {
  const auto bytes = (piece.end - piece.begin) * element_bytes(entry.type);
  if (digest_of(at(piece), static_cast<std::size_t>(bytes)) == piece.digest) return;
  throw Error("load_checkpoint",
              "expected the bytes that were saved of \"" + entry.name + "\" in " +
                  quoted(folder_ / manifest_.files[piece.file].name) +
                  ", got others. The file has been changed: load another tag, or a copy of this "
                  "one.");
}

void SavedCheckpoint::verify(std::string_view tensor, std::int64_t begin, std::int64_t end) const {
  verify(tensor, {Stretch{.part = 0, .whole = begin, .local = 0, .numel = end - begin}});
}

void SavedCheckpoint::verify(std::string_view tensor, const std::vector<Stretch>& stretches) const {
  const auto& all = entry(tensor);
  std::vector<bool> is_met(all.pieces.size());
  for (const auto& one : stretches) {
    EQUIGRAD_CHECK(0 <= one.whole && one.whole + one.numel <= numel_of(all.shape),
                   "checkpoint.verify", "what is verified lies in the tensor");
    for_each_place(all, one.whole, one.whole + one.numel,
                   [&](const Piece& piece, std::int64_t, std::int64_t, std::int64_t) {
                     is_met[static_cast<std::size_t>(&piece - all.pieces.data())] = true;
                   });
  }
  for (std::size_t i = 0; i < is_met.size(); ++i)
    if (is_met[i]) verify(all, all.pieces[i]);
}

void SavedCheckpoint::verify_all() const {
  for (const auto& tensor : manifest_.tensors)
    for (const auto& piece : tensor.pieces) verify(tensor, piece);
}

void SavedCheckpoint::read(std::string_view tensor, std::int64_t begin, std::int64_t end,
                           void* into) const {
  const auto& all = entry(tensor);
  const auto width = element_bytes(all.type);
  EQUIGRAD_CHECK(0 <= begin && end <= numel_of(all.shape), "checkpoint.read",
                 "what is read lies in the tensor");
  for_each_place(
      all, begin, end,
      [&](const Piece& piece, std::int64_t from, std::int64_t whole, std::int64_t numel) {
        copy_past_cache(static_cast<std::byte*>(into) + (whole - begin) * width,
                        at(piece) + from * width, static_cast<std::size_t>(numel * width));
      });
}

}  // namespace equigrad::checkpoint
