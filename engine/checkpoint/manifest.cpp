#include "engine/checkpoint/manifest.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
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

std::string whole(std::int64_t number) { return std::to_string(number); }

// What is looked at, and what to do when it is wrong.
struct Place {
  std::string where;
  const char* remedy;

  Place of(const char* kind, std::string_view name) const {
    return {where + ": " + kind + ' ' + quote(name), remedy};
  }
  // `what`: "expected X, got Y"
  [[noreturn]] void fail(const std::string& what) const { throw Error(where, what + remedy); }
};

Place saving() {
  return {"save_checkpoint", ". This is a mistake in Equigrad: report it, with the model's sizes."};
}
Place loading(const std::string& where) { return {where, ". Load another checkpoint."}; }

// ---- From JSON ---------------------------------------------------------------------------------

// An object with these keys and no others.
void check_keys(const Json& value, const std::vector<std::string>& keys, const Place& place) {
  std::string wanted;
  bool holds = value.is_object() && value.size() == keys.size();
  for (const std::string& key : keys) {
    wanted += (wanted.empty() ? "" : ", ") + key;
    holds = holds && value.contains(key);
  }
  if (!holds) place.fail("expected an object of " + wanted + ", got " + shown(value));
}

std::int64_t whole_from(const Json& value, const char* what, const Place& place) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMostWhole)
    place.fail(std::string("expected ") + what + ", a whole number from 0 to 2^53, got " +
               shown(value));
  return value.get<std::int64_t>();
}

std::int64_t whole_in(const Json& object, const char* key, const Place& place) {
  return whole_from(object.at(key), key, place);
}

std::string text_in(const Json& object, const char* key, const Place& place) {
  const Json& value = object.at(key);
  if (!value.is_string())
    place.fail(std::string("expected ") + key + ", a text, got " + shown(value));
  return value.get<std::string>();
}

const Json& array_in(const Json& object, const char* key, const Place& place) {
  const Json& value = object.at(key);
  if (!value.is_array())
    place.fail(std::string("expected ") + key + ", an array, got " + shown(value));
  return value;
}

Digest digest_in(const Json& object, const char* key, const Place& place) {
  return digest_from(text_in(object, key, place), place.where);
}

FileEntry file_from(const Json& value, const Place& place) {
  check_keys(value, {"name", "bytes", "header_bytes", "header_xxh3_128"}, place);
  return {text_in(value, "name", place), whole_in(value, "bytes", place),
          whole_in(value, "header_bytes", place), digest_in(value, "header_xxh3_128", place)};
}

std::vector<std::string> with(std::vector<std::string> keys, bool has_more, const char* key) {
  if (has_more) keys.emplace_back(key);
  return keys;
}

Piece piece_from(const Json& value, bool is_of_part, const Place& place) {
  check_keys(value, with({"file", "begin", "end", "offset_bytes", "xxh3_128"}, is_of_part, "part"),
             place);
  return {static_cast<std::size_t>(whole_in(value, "file", place)),
          whole_in(value, "begin", place),
          whole_in(value, "end", place),
          whole_in(value, "offset_bytes", place),
          digest_in(value, "xxh3_128", place),
          is_of_part ? whole_in(value, "part", place) : 0};
}

Cut cut_from(const Json& value, const Place& place) {
  check_keys(value, {"dimension", "segments", "parts"}, place);
  Cut cut{.dimension = whole_in(value, "dimension", place),
          .segments = {},
          .parts = whole_in(value, "parts", place)};
  for (const Json& segment : array_in(value, "segments", place))
    cut.segments.push_back(whole_from(segment, "a segment", place));
  return cut;
}

// Tensors in parts came with version 2.
TensorEntry tensor_from(const Json& value, const Place& outer, int version = kManifestVersion) {
  const bool is_cut = version > 1 && value.is_object() && value.contains("cut");
  check_keys(value, with({"name", "type", "shape", "pieces"}, is_cut, "cut"), outer);
  TensorEntry tensor{text_in(value, "name", outer), ElementType::F32, {}, {}};
  const Place place = outer.of("tensor", tensor.name);
  tensor.type = element_type_from(text_in(value, "type", place), place.where);
  const Json& shape = array_in(value, "shape", place);
  if (shape.size() > kMostDimensions)
    place.fail("expected a shape of at most 64 sizes, got " + std::to_string(shape.size()));
  for (const Json& size : shape) tensor.shape.push_back(whole_from(size, "a size", place));
  if (is_cut) tensor.cut = cut_from(value["cut"], place);
  for (const Json& piece : array_in(value, "pieces", place))
    tensor.pieces.push_back(piece_from(piece, is_cut, place));
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
  for (const Piece& piece : tensor.pieces) {
    pieces.push_back({{"file", piece.file},
                      {"begin", piece.begin},
                      {"end", piece.end},
                      {"offset_bytes", piece.offset_bytes},
                      {"xxh3_128", to_text(piece.digest)}});
    if (tensor.cut) pieces.back()["part"] = piece.part;
  }
  Json entry = {{"name", tensor.name},
                {"type", std::string(to_text(tensor.type))},
                {"shape", tensor.shape},
                {"pieces", std::move(pieces)}};
  if (tensor.cut)
    entry["cut"] = {{"dimension", tensor.cut->dimension},
                    {"segments", tensor.cut->segments},
                    {"parts", tensor.cut->parts}};
  return entry;
}

template <class Entry>
std::string lines_of(const std::vector<Entry>& entries) {
  std::string lines;
  for (const Entry& entry : entries)
    lines += (lines.empty() ? "\n  " : ",\n  ") + to_json(entry).dump();
  return '[' + lines + ']';
}

// ---- What holds of a whole one -----------------------------------------------------------------

void check_plain_name(const std::string& name, const Place& place) {
  const bool has_other = std::any_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  if (name.empty() || name == "." || name == ".." || name.size() > kMostNameBytes || has_other)
    place.fail("expected the plain name of a file, without folders, got " + quote(name));
  check_writable(Json(name), place.where, 0);
}

void check_file(const FileEntry& file, const Place& outer) {
  check_plain_name(file.name, outer);
  const Place place = outer.of("file", file.name);
  if (file.bytes > kMostWhole || file.header_bytes < 8 || file.header_bytes > file.bytes)
    place.fail("expected a header of 8 bytes or more, in a file of at most 2^53, got " +
               whole(file.header_bytes) + " in " + whole(file.bytes));
}

void check_pieces(const TensorEntry& tensor, std::size_t files, const Place& place) {
  const std::int64_t bytes = bytes_of({tensor.name, tensor.type, tensor.shape, 0}, place.where);
  if (bytes > kMostWhole)
    place.fail("expected a tensor of at most 2^53 bytes, got " + whole(bytes));
  const std::string problem = tensor.cut ? problem_of(*tensor.cut, tensor.shape) : "";
  if (!problem.empty()) place.fail(problem);
  const std::int64_t all = bytes / element_bytes(tensor.type);
  const std::int64_t numel = tensor.cut ? all / tensor.cut->parts : all;  // of a part
  std::int64_t part = 0, end = 0;
  for (const Piece& piece : tensor.pieces) {
    if (end == numel && (part + 1) * numel < all) {
      ++part;
      end = 0;
    }
    if (piece.part != part)
      place.fail("expected the next piece to be of part " + whole(part) + ", got one of part " +
                 whole(piece.part));
    if (piece.begin != end || piece.end <= piece.begin || piece.end > numel)
      place.fail("expected the next piece to begin at element " + whole(end) +
                 " and to end behind that, at " + whole(numel) + " or before, got [" +
                 whole(piece.begin) + ", " + whole(piece.end) + ')');
    if (piece.file >= files)
      place.fail("expected a file below " + std::to_string(files) + ", got " +
                 std::to_string(piece.file));
    if (piece.offset_bytes < 0 || piece.offset_bytes > kMostWhole)
      place.fail("expected an offset from 0 to 2^53, got " + whole(piece.offset_bytes));
    end = piece.end;
  }
  if (part * numel + end != all)
    place.fail("expected pieces of all " + whole(all) + " elements, got " +
               whole(part * numel + end));
}

// Where a piece lies in its file.
struct Region {
  std::int64_t begin_bytes;
  std::int64_t end_bytes;
  const TensorEntry* tensor;
};

// Every byte of every file belongs to its header or to one piece.
void check_files_covered(const Manifest& manifest, const Place& outer) {
  std::vector<std::vector<Region>> regions(manifest.files.size());
  for (const TensorEntry& tensor : manifest.tensors)
    for (const Piece& piece : tensor.pieces) {
      const std::int64_t bytes = (piece.end - piece.begin) * element_bytes(tensor.type);
      regions[piece.file].push_back({piece.offset_bytes, piece.offset_bytes + bytes, &tensor});
    }
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const Place place = outer.of("file", manifest.files[i].name);
    std::sort(regions[i].begin(), regions[i].end(),
              [](const Region& a, const Region& b) { return a.begin_bytes < b.begin_bytes; });
    std::int64_t end = 0;
    for (const Region& region : regions[i]) {
      if (region.begin_bytes != end)
        place.fail("expected the next piece at byte " + whole(end) + ", got one of tensor " +
                   quote(region.tensor->name) + " at byte " + whole(region.begin_bytes));
      end = region.end_bytes;
    }
    const std::int64_t wanted = manifest.files[i].bytes - manifest.files[i].header_bytes;
    if (end != wanted)
      place.fail("expected pieces of all " + whole(wanted) + " bytes behind its header, got " +
                 whole(end));
  }
}

void check(const Manifest& manifest, const Place& place) {
  check_plain_name(manifest.id, place);
  if (manifest.world_size < 1)
    place.fail("expected a world_size from 1, got " + whole(manifest.world_size));
  std::set<std::string_view> names;
  for (const FileEntry& file : manifest.files) {
    check_file(file, place);
    if (!names.insert(file.name).second)
      place.fail("expected every file once, got " + quote(file.name) + " twice");
  }
  const TensorEntry* before = nullptr;
  for (const TensorEntry& tensor : manifest.tensors) {
    const Place here = place.of("tensor", tensor.name);
    if (before != nullptr && tensor.name == before->name)
      here.fail("expected every tensor once, got this one twice");
    if (before != nullptr && tensor.name < before->name)
      here.fail("expected tensors by name, got it behind " + quote(before->name));
    check_writable(Json(tensor.name), here.where, 0);
    check_pieces(tensor, manifest.files.size(), here);
    before = &tensor;
  }
  check_files_covered(manifest, place);
}

// ---- The text's front --------------------------------------------------------------------------

constexpr std::string_view kFront = R"({"schema": "equigrad.checkpoint", "version": )";
constexpr std::string_view kBeforeDigest = R"(, "xxh3_128": ")";
constexpr std::size_t kDigestDigits = 32;
constexpr std::string_view kNoDigest = "00000000000000000000000000000000";

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
  std::string got = "a text that begins with " + quote(text.substr(0, 40));
  try {
    const Json other = read_object(text, where, kMostLevels);
    if (other.contains("schema")) got = "one of schema " + shown(other["schema"]);
  } catch (const Error&) {  // then it has no schema either
  }
  throw Error(where, "expected a manifest of schema " + std::string(kSchema) + ", got " + got +
                         ". Name the folder of a checkpoint, or load another one.");
}

void check_digest(std::string_view text, const Front& front, const Place& place) {
  const std::string changed = ": the file has been changed, or is not whole";
  const std::string_view rest = text.substr(front.digest_begin);
  if (front.digest_begin == 0 || rest.size() < kDigestDigits)
    place.fail("expected a digest behind the version, got " + quote(rest) + changed);
  Digester digester;
  digester.add(text.data(), front.digest_begin);
  digester.add(kNoDigest.data(), kDigestDigits);
  digester.add(rest.data() + kDigestDigits, rest.size() - kDigestDigits);
  const Digest expected = digest_from(rest.substr(0, kDigestDigits), place.where);
  if (digester.digest() != expected)
    place.fail("expected the digest " + to_text(expected) + ", which it says itself, got " +
               to_text(digester.digest()) + changed);
}

Manifest manifest_from(Json&& root, int version, const Place& place) {
  check_keys(root,
             {"schema", "version", "xxh3_128", "id", "world_size", "engine", "client_state",
              "files", "tensors"},
             place);
  Manifest manifest;
  manifest.id = text_in(root, "id", place);
  const std::int64_t world_size = whole_in(root, "world_size", place);
  if (world_size > INT32_MAX)
    place.fail("expected a world_size below 2^31, got " + whole(world_size));
  manifest.world_size = static_cast<int>(world_size);
  manifest.engine = std::move(root["engine"]);
  manifest.client_state = std::move(root["client_state"]);
  for (const Json& file : array_in(root, "files", place))
    manifest.files.push_back(file_from(file, place));
  for (const Json& tensor : array_in(root, "tensors", place))
    manifest.tensors.push_back(tensor_from(tensor, place, version));
  check(manifest, place);
  return manifest;
}

}  // namespace

const TensorEntry* Manifest::find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const TensorEntry& entry, std::string_view key) { return entry.name < key; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

std::string write_rank_file(const RankFile& file) {
  const Place place = saving();
  Json tensors = Json::array();
  for (const TensorEntry& tensor : file.tensors) {
    check_writable(Json(tensor.name), place.where, 0);
    tensors.push_back(to_json(tensor));
  }
  check_writable(Json(file.file.name), place.where, 0);
  return Json{{"file", to_json(file.file)}, {"tensors", std::move(tensors)}}.dump();
}

RankFile read_rank_file(std::string_view text) {
  const Place place = saving();
  const Json root = read_object(text, place.where, kMostLevels);
  check_keys(root, {"file", "tensors"}, place);
  RankFile file{file_from(root["file"], place), {}};
  for (const Json& tensor : array_in(root, "tensors", place)) {
    file.tensors.push_back(tensor_from(tensor, place));
    const TensorEntry& entry = file.tensors.back();
    if (entry.pieces.size() != 1)
      place.of("tensor", entry.name)
          .fail("expected one piece, got " + std::to_string(entry.pieces.size()));
  }
  return file;
}

void merge(Manifest& manifest, const std::vector<RankFile>& files) {
  const Place place = saving();
  manifest.files.clear();
  manifest.tensors.clear();
  std::map<std::string, std::pair<TensorEntry, std::size_t>>
      by_name;  // and which file had it first
  for (std::size_t i = 0; i < files.size(); ++i) {
    manifest.files.push_back(files[i].file);
    for (const TensorEntry& tensor : files[i].tensors) {
      const TensorEntry empty{tensor.name, tensor.type, tensor.shape, {}, tensor.cut};
      auto& [entry, first] = by_name.try_emplace(tensor.name, empty, i).first->second;
      if (entry.type != tensor.type || entry.shape != tensor.shape)
        throw Error(place.of("tensor", tensor.name).where,
                    "expected " + std::string(to_text(entry.type)) + ' ' +
                        shown(Json(entry.shape)) + " in file " + quote(files[i].file.name) +
                        ", as in " + quote(files[first].file.name) + ", got " +
                        std::string(to_text(tensor.type)) + ' ' + shown(Json(tensor.shape)) +
                        ". Give every rank the same model.");
      if (entry.cut != tensor.cut)
        throw Error(place.of("tensor", tensor.name).where,
                    "expected one cut in files " + quote(files[first].file.name) + " and " +
                        quote(files[i].file.name) +
                        ", got two. Give every rank the same plan of its tensor group.");
      for (const Piece& piece : tensor.pieces)
        if (piece.begin != piece.end)
          entry.pieces.push_back(
              {i, piece.begin, piece.end, piece.offset_bytes, piece.digest, piece.part});
    }
  }
  for (auto& [name, found] : by_name) {
    std::vector<Piece>& pieces = found.first.pieces;
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return std::tie(a.part, a.begin) < std::tie(b.part, b.begin);
    });
    manifest.tensors.push_back(std::move(found.first));
  }
  check(manifest, place);
}

std::string write_manifest(const Manifest& manifest) {
  const Place place = saving();
  check(manifest, place);
  check_writable(manifest.engine, place.where + ": engine", kMostLevels - 1);
  check_writable(manifest.client_state, place.where + ": client_state", kMostLevels - 1);
  const bool has_parts = std::any_of(manifest.tensors.begin(), manifest.tensors.end(),
                                     [](const TensorEntry& one) { return one.cut.has_value(); });
  std::string text = std::string(kFront) + std::to_string(has_parts ? 2 : 1);
  text += kBeforeDigest;
  const std::size_t digest_begin = text.size();
  text += std::string(kNoDigest) + "\",\n \"id\": " + Json(manifest.id).dump() +
          ", \"world_size\": " + std::to_string(manifest.world_size) +
          ",\n \"engine\": " + manifest.engine.dump() +
          ",\n \"client_state\": " + manifest.client_state.dump() +
          ",\n \"files\": " + lines_of(manifest.files) +
          ",\n \"tensors\": " + lines_of(manifest.tensors) + "}\n";
  return text.replace(digest_begin, kDigestDigits, to_text(digest_of(text.data(), text.size())));
}

Manifest read_manifest(std::string_view text, const std::string& where) {
  if (!text.starts_with(kFront)) throw_no_manifest(text, where);
  const Place place = loading(where);
  const Front front = front_of(text);
  int version = 0;
  for (int known = 1; known <= kManifestVersion; ++known)
    if (front.version == std::to_string(known)) version = known;
  if (version != 0 || front.digest_begin != 0) check_digest(text, front, place);
  if (version == 0)
    throw Error(where, "expected version " + std::to_string(kManifestVersion) + " of " +
                           std::string(kSchema) + " or an earlier one, got version " +
                           quote(front.version) +
                           ". Load it with the Equigrad that saved it, or a later one.");
  return manifest_from(read_object(text, where, kMostLevels), version, place);
}

}  // namespace equigrad::checkpoint
