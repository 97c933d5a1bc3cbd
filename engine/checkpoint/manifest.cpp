#include "engine/checkpoint/manifest.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/checkpoint/strict_json.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

constexpr std::string_view kSchema = "equigrad.checkpoint";
constexpr int kMostLevels = 100;
constexpr std::int64_t kMostWhole = std::int64_t{1}
                                    << 53;   // to which every reader of JSON is exact
constexpr std::size_t kMostNameBytes = 255;  // of a file
constexpr const char* kLoadAnother = ". Load another checkpoint.";

std::string whole(std::int64_t number) { return std::to_string(number); }

// ---- From JSON ---------------------------------------------------------------------------------

// An object with these keys and no others.
void check_keys(const Json& value, const std::vector<std::string>& keys, const std::string& where) {
  std::string wanted;
  bool holds = value.is_object() && value.size() == keys.size();
  for (const std::string& key : keys) {
    wanted += (wanted.empty() ? "" : ", ") + key;
    holds = holds && value.contains(key);
  }
  if (!holds)
    throw Error(where, "expected an object of " + wanted + ", got " + shown(value) + kLoadAnother);
}

std::int64_t whole_from(const Json& value, const std::string& where, const char* what) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMostWhole)
    throw Error(where, std::string("expected ") + what + ", a whole number from 0 to 2^53, got " +
                           shown(value) + kLoadAnother);
  return value.get<std::int64_t>();
}

std::string text_from(const Json& value, const std::string& where, const char* what) {
  if (!value.is_string())
    throw Error(where,
                std::string("expected ") + what + ", a text, got " + shown(value) + kLoadAnother);
  return value.get<std::string>();
}

const Json& array_from(const Json& value, const std::string& where, const char* what) {
  if (!value.is_array())
    throw Error(where,
                std::string("expected ") + what + ", an array, got " + shown(value) + kLoadAnother);
  return value;
}

FileEntry file_from(const Json& value, const std::string& where) {
  check_keys(value, {"name", "bytes", "header_bytes", "header_xxh3_128"}, where);
  return {text_from(value["name"], where, "name"), whole_from(value["bytes"], where, "bytes"),
          whole_from(value["header_bytes"], where, "header_bytes"),
          digest_from(text_from(value["header_xxh3_128"], where, "header_xxh3_128"), where)};
}

Piece piece_from(const Json& value, const std::string& where) {
  check_keys(value, {"file", "begin", "end", "offset_bytes", "xxh3_128"}, where);
  return {static_cast<std::size_t>(whole_from(value["file"], where, "file")),
          whole_from(value["begin"], where, "begin"), whole_from(value["end"], where, "end"),
          whole_from(value["offset_bytes"], where, "offset_bytes"),
          digest_from(text_from(value["xxh3_128"], where, "xxh3_128"), where)};
}

TensorEntry tensor_from(const Json& value, const std::string& where) {
  check_keys(value, {"name", "type", "shape", "pieces"}, where);
  TensorEntry tensor{text_from(value["name"], where, "name"), ElementType::F32, {}, {}};
  const std::string here = where + ": tensor " + shown(value["name"]);
  tensor.type = element_type_from(text_from(value["type"], here, "type"), here);
  for (const Json& size : array_from(value["shape"], here, "shape"))
    tensor.shape.push_back(whole_from(size, here, "a size"));
  for (const Json& piece : array_from(value["pieces"], here, "pieces"))
    tensor.pieces.push_back(piece_from(piece, here));
  return tensor;
}

// ---- To JSON -----------------------------------------------------------------------------------

Json to_json(const FileEntry& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_xxh3_128", to_text(file.header)}};
}

Json to_json(const TensorEntry& tensor) {
  Json pieces = Json::array();
  for (const Piece& piece : tensor.pieces)
    pieces.push_back({{"file", piece.file},
                      {"begin", piece.begin},
                      {"end", piece.end},
                      {"offset_bytes", piece.offset_bytes},
                      {"xxh3_128", to_text(piece.digest)}});
  return {{"name", tensor.name},
          {"type", std::string(to_text(tensor.type))},
          {"shape", tensor.shape},
          {"pieces", std::move(pieces)}};
}

template <class Entry>
std::string lines_of(const std::vector<Entry>& entries) {
  std::string lines;
  for (const Entry& entry : entries)
    lines += (lines.empty() ? "\n  " : ",\n  ") + to_json(entry).dump();
  return '[' + lines + ']';
}

// ---- What holds of a whole one -----------------------------------------------------------------

void check_plain_name(const std::string& name, const std::string& where) {
  const bool has_other = std::any_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  if (name.empty() || name == "." || name == ".." || name.size() > kMostNameBytes || has_other)
    throw Error(where, "expected the plain name of a file, without folders, got " +
                           shown(std::string_view(name)) + kLoadAnother);
}

void check_file(const FileEntry& file, const std::string& where) {
  check_plain_name(file.name, where);
  const std::string here = where + ": file " + shown(std::string_view(file.name));
  check_writable(Json(file.name), here, 0);
  if (file.bytes > kMostWhole || file.header_bytes < 8 || file.header_bytes > file.bytes)
    throw Error(here, "expected a header of 8 bytes or more, in a file of at most 2^53, got " +
                          whole(file.header_bytes) + " in " + whole(file.bytes) + kLoadAnother);
}

// Elements; its bytes fit a file.
std::int64_t numel_in_file(const TensorEntry& tensor, const std::string& here) {
  const std::int64_t bytes = bytes_of({tensor.name, tensor.type, tensor.shape, 0}, here);
  if (bytes > kMostWhole)
    throw Error(here,
                "expected a tensor of at most 2^53 bytes, got " + whole(bytes) + kLoadAnother);
  return bytes / element_bytes(tensor.type);
}

void check_pieces(const TensorEntry& tensor, const Manifest& manifest, const std::string& here) {
  const std::int64_t numel = numel_in_file(tensor, here);
  std::int64_t end = 0;
  for (const Piece& piece : tensor.pieces) {
    if (piece.begin != end || piece.end <= piece.begin || piece.end > numel)
      throw Error(here, "expected the next piece to begin at element " + whole(end) +
                            " and to end behind that, at most at " + whole(numel) + ", got [" +
                            whole(piece.begin) + ", " + whole(piece.end) + ')' + kLoadAnother);
    if (piece.file >= manifest.files.size())
      throw Error(here, "expected a file below " + std::to_string(manifest.files.size()) +
                            ", got " + std::to_string(piece.file) + kLoadAnother);
    if (piece.offset_bytes < 0 || piece.offset_bytes > kMostWhole)
      throw Error(here, "expected an offset from 0 to 2^53, got " + whole(piece.offset_bytes) +
                            kLoadAnother);
    end = piece.end;
  }
  if (end != numel)
    throw Error(here, "expected pieces of all " + whole(numel) + " elements, got " + whole(end) +
                          kLoadAnother);
}

// Where a piece lies in its file.
struct Region {
  std::int64_t begin_bytes;
  std::int64_t end_bytes;
  const TensorEntry* tensor;
};

// Every byte of every file belongs to its header or to one piece.
void check_files_covered(const Manifest& manifest, const std::string& where) {
  std::vector<std::vector<Region>> regions(manifest.files.size());
  for (const TensorEntry& tensor : manifest.tensors)
    for (const Piece& piece : tensor.pieces) {
      const std::int64_t bytes = (piece.end - piece.begin) * element_bytes(tensor.type);
      regions[piece.file].push_back({piece.offset_bytes, piece.offset_bytes + bytes, &tensor});
    }
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const FileEntry& file = manifest.files[i];
    const std::string here = where + ": file " + shown(std::string_view(file.name));
    std::sort(regions[i].begin(), regions[i].end(),
              [](const Region& a, const Region& b) { return a.begin_bytes < b.begin_bytes; });
    std::int64_t end = 0;
    for (const Region& region : regions[i]) {
      if (region.begin_bytes != end)
        throw Error(here, "expected the next piece at byte " + whole(end) + ", got byte " +
                              whole(region.begin_bytes) + ", of tensor " +
                              shown(std::string_view(region.tensor->name)) + kLoadAnother);
      end = region.end_bytes;
    }
    if (end != file.bytes - file.header_bytes)
      throw Error(here, "expected pieces of all " + whole(file.bytes - file.header_bytes) +
                            " bytes behind its header, got " + whole(end) + kLoadAnother);
  }
}

void check(const Manifest& manifest, const std::string& where) {
  check_plain_name(manifest.id, where);
  if (manifest.world_size < 1)
    throw Error(where,
                "expected a world_size from 1, got " + whole(manifest.world_size) + kLoadAnother);
  std::set<std::string_view> names;
  for (const FileEntry& file : manifest.files) {
    check_file(file, where);
    if (!names.insert(file.name).second)
      throw Error(where, "expected every file once, got " + shown(std::string_view(file.name)) +
                             " twice" + kLoadAnother);
  }
  const TensorEntry* before = nullptr;
  for (const TensorEntry& tensor : manifest.tensors) {
    const std::string here = where + ": tensor " + shown(std::string_view(tensor.name));
    if (before != nullptr && tensor.name <= before->name)
      throw Error(here,
                  std::string("expected every tensor once, in the order of their names, ") +
                      (tensor.name == before->name ? "got it twice" : "got it behind ") +
                      (tensor.name == before->name ? "" : shown(std::string_view(before->name))) +
                      kLoadAnother);
    check_writable(Json(tensor.name), here, 0);
    check_pieces(tensor, manifest, here);
    before = &tensor;
  }
  check_files_covered(manifest, where);
}

// ---- The text's front --------------------------------------------------------------------------

constexpr std::string_view kFront = R"({"schema": "equigrad.checkpoint", "version": )";
constexpr std::string_view kBeforeDigest = R"(, "xxh3_128": ")";
constexpr std::size_t kDigits = 32;
const std::string kNoDigest(kDigits, '0');

// The text's version, and where its digest stands.
struct Front {
  std::string_view version;
  std::size_t digest_begin = 0;  // 0: not where this version has it
};

Front front_of(std::string_view text) {
  Front front;
  const std::size_t begin = kFront.size();
  const std::size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
  front.version = text.substr(begin, end - begin);
  if (text.substr(end).starts_with(kBeforeDigest)) front.digest_begin = end + kBeforeDigest.size();
  return front;
}

[[noreturn]] void throw_no_manifest(std::string_view text, const std::string& where) {
  std::string got = "a text that begins with " + shown(text.substr(0, 40));
  try {
    const Json other = read_object(text, where, kMostLevels);
    if (other.contains("schema")) got = "one of schema " + shown(other["schema"]);
  } catch (const Error&) {  // then it has no schema either
  }
  throw Error(where, "expected a manifest of schema " + std::string(kSchema) + ", got " + got +
                         ". Name the folder of a checkpoint, or load another one.");
}

void check_digest(std::string_view text, const Front& front, const std::string& where) {
  const std::string_view rest = text.substr(front.digest_begin);
  if (front.digest_begin == 0 || rest.size() < kDigits)
    throw Error(where, "expected a digest behind the version, got " + shown(rest.substr(0, 40)) +
                           ": the file has been changed, or is not whole" + kLoadAnother);
  Digester digester;
  digester.add(text.data(), front.digest_begin);
  digester.add(kNoDigest.data(), kDigits);
  digester.add(rest.data() + kDigits, rest.size() - kDigits);
  const Digest expected = digest_from(rest.substr(0, kDigits), where);
  if (digester.digest() != expected)
    throw Error(where, "expected the digest " + to_text(expected) + ", which it says itself, got " +
                           to_text(digester.digest()) +
                           ": the file has been changed, or is not whole" + kLoadAnother);
}

constexpr const char* kSaving = "save_checkpoint";

}  // namespace

const TensorEntry* Manifest::find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const TensorEntry& entry, std::string_view key) { return entry.name < key; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

std::string write_rank_file(const RankFile& file) {
  Json tensors = Json::array();
  for (const TensorEntry& tensor : file.tensors) {
    check_writable(Json(tensor.name), kSaving, 0);
    tensors.push_back(to_json(tensor));
  }
  check_writable(Json(file.file.name), kSaving, 0);
  return Json{{"file", to_json(file.file)}, {"tensors", std::move(tensors)}}.dump();
}

RankFile read_rank_file(std::string_view text) {
  const Json root = read_object(text, kSaving, kMostLevels);
  check_keys(root, {"file", "tensors"}, kSaving);
  RankFile file{file_from(root["file"], kSaving), {}};
  for (const Json& tensor : array_from(root["tensors"], kSaving, "tensors")) {
    file.tensors.push_back(tensor_from(tensor, kSaving));
    if (file.tensors.back().pieces.size() != 1)
      throw Error(kSaving, "expected one piece of tensor " + shown(tensor["name"]) + ", got " +
                               std::to_string(file.tensors.back().pieces.size()) + ". Save again.");
  }
  return file;
}

void merge(Manifest& manifest, const std::vector<RankFile>& files) {
  manifest.files.clear();
  std::map<std::string, std::pair<TensorEntry, std::size_t>> by_name;  // and who had it first
  for (std::size_t i = 0; i < files.size(); ++i) {
    manifest.files.push_back(files[i].file);
    for (const TensorEntry& tensor : files[i].tensors) {
      auto& [entry, first] =
          by_name
              .try_emplace(tensor.name, TensorEntry{tensor.name, tensor.type, tensor.shape, {}}, i)
              .first->second;
      if (entry.type != tensor.type || entry.shape != tensor.shape)
        throw Error(kSaving, "expected tensor " + shown(std::string_view(tensor.name)) + " to be " +
                                 std::string(to_text(entry.type)) + ' ' + shown(Json(entry.shape)) +
                                 " in " + files[i].file.name + ", as in " + files[first].file.name +
                                 ", got " + std::string(to_text(tensor.type)) + ' ' +
                                 shown(Json(tensor.shape)) + ". Give every rank the same model.");
      for (Piece piece : tensor.pieces) {
        piece.file = i;
        if (piece.begin != piece.end) entry.pieces.push_back(piece);
      }
    }
  }
  manifest.tensors.clear();
  for (auto& [name, found] : by_name) {
    auto& pieces = found.first.pieces;
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    manifest.tensors.push_back(std::move(found.first));
  }
  check(manifest, kSaving);
}

std::string write_manifest(const Manifest& manifest) {
  check(manifest, kSaving);
  check_writable(manifest.engine, std::string(kSaving) + ": engine", kMostLevels - 1);
  check_writable(manifest.client_state, std::string(kSaving) + ": client_state", kMostLevels - 1);
  std::string text = std::string(kFront) + std::to_string(kManifestVersion);
  text += kBeforeDigest;
  const std::size_t digest_begin = text.size();
  text += kNoDigest + "\",\n \"id\": " + Json(manifest.id).dump() +
          ", \"world_size\": " + std::to_string(manifest.world_size) +
          ",\n \"engine\": " + manifest.engine.dump() +
          ",\n \"client_state\": " + manifest.client_state.dump() +
          ",\n \"files\": " + lines_of(manifest.files) +
          ",\n \"tensors\": " + lines_of(manifest.tensors) + "}\n";
  return text.replace(digest_begin, kDigits, to_text(digest_of(text.data(), text.size())));
}

Manifest read_manifest(std::string_view text, const std::string& where) {
  if (!text.starts_with(kFront)) throw_no_manifest(text, where);
  const Front front = front_of(text);
  const bool is_ours = front.version == std::to_string(kManifestVersion);
  if (is_ours || front.digest_begin != 0) check_digest(text, front, where);
  if (!is_ours)
    throw Error(where, "expected version " + std::to_string(kManifestVersion) + " of " +
                           std::string(kSchema) + ", got version " + shown(front.version) +
                           ". Load it with the Equigrad that saved it, or a later one.");
  Json root = read_object(text, where, kMostLevels);
  check_keys(root,
             {"schema", "version", "xxh3_128", "id", "world_size", "engine", "client_state",
              "files", "tensors"},
             where);
  Manifest manifest;
  manifest.id = text_from(root["id"], where, "id");
  const std::int64_t world_size = whole_from(root["world_size"], where, "world_size");
  if (world_size > INT32_MAX)
    throw Error(where, "expected a world_size below 2^31, got " + whole(world_size) + kLoadAnother);
  manifest.world_size = static_cast<int>(world_size);
  manifest.engine = std::move(root["engine"]);
  manifest.client_state = std::move(root["client_state"]);
  for (const Json& file : array_from(root["files"], where, "files"))
    manifest.files.push_back(file_from(file, where));
  for (const Json& tensor : array_from(root["tensors"], where, "tensors"))
    manifest.tensors.push_back(tensor_from(tensor, where));
  check(manifest, where);
  return manifest;
}

}  // namespace equigrad::checkpoint
