#include "engine/checkpoint/exported_model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/checkpoint/convert.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

using nlohmann::json;

constexpr std::int64_t kCopiedNumel = std::int64_t{1} << 20;
constexpr const char* kWhere = "checkpoint export";
constexpr const char* kIndexName = "model.safetensors.index.json";

struct Exported {
  TensorHeader header;                 // in its file, and as it is asked for: the name and the type
  const TensorEntry* saved = nullptr;  // null: it has no elements
  std::vector<std::string> aliases;
};
using ModelFile = std::vector<Exported>;

Exported exported(const TensorEntry& saved, std::string name, std::optional<ElementType> type) {
  const bool is_converted = type && is_floating_point(saved.type);
  return {{std::move(name), is_converted ? *type : saved.type, saved.shape, 0}, &saved, {}};
}

bool has_no_element(const json& about) {
  const auto shape = about.value("shape", std::vector<std::int64_t>());
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

// As the model computes, a trained parameter is what it was saved as beside its master, or else
// its master, rounded. One without elements is not saved.
Exported parameter(const SavedCheckpoint& saved, const json& about, const ExportOptions& options) {
  const auto name = about.at("name").get<std::string>();
  const std::string as_computed = "parameter/" + name, master = "master/" + name;
  const bool is_trained = about.at("trainable").get<bool>();
  const bool is_master = is_trained && (options.type || !saved.has(as_computed));
  const std::string& source = is_master ? master : as_computed;
  auto type = options.type;
  if (is_master && !type)
    type = element_type_from(saved.manifest().engine.at("param_type").get<std::string>(), kWhere);
  Exported one;
  if (!saved.has(source) && has_no_element(about)) {
    one.header = {name, type.value_or(ElementType::F32), about.at("shape"), 0};
  } else if (is_trained || saved.has(source)) {
    one = exported(saved.entry(source), name, type);
  } else {
    throw Error(kWhere, "expected \"" + source + "\" in " + saved.folder().string() +
                            ", got a checkpoint that was saved without frozen parameters. Export "
                            "without them too: --exclude-frozen.");
  }
  one.aliases = about.value("aliases", std::vector<std::string>());
  return one;
}

std::vector<Exported> all_tensors(const SavedCheckpoint& saved, const ExportOptions& options) {
  std::vector<Exported> all;
  try {
    for (const json& about : saved.manifest().engine.at("parameters"))
      if (about.at("trainable").get<bool>() || !options.exclude_frozen)
        all.push_back(parameter(saved, about, options));
  } catch (const json::exception& error) {
    throw Error(kWhere, "expected the engine's parameters in " +
                            (saved.folder() / kManifestName).string() + ", got: " + error.what() +
                            ". Another program wrote it.");
  }
  constexpr std::string_view kBuffers = "rank0/buffer/";
  for (const TensorEntry& entry : saved.manifest().tensors)
    if (entry.name.starts_with(kBuffers))
      all.push_back(exported(entry, entry.name.substr(kBuffers.size()), options.type));
  return all;
}

// In the order of the model, as many to a file as it holds.
std::vector<ModelFile> in_files(std::vector<Exported> all, std::int64_t file_bytes) {
  std::vector<ModelFile> files(1);
  std::int64_t bytes = 0;
  for (Exported& one : all) {
    const std::int64_t more = bytes_of(one.header);
    if (!files.back().empty() && more > file_bytes - bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += more;
    files.back().push_back(std::move(one));
  }
  for (ModelFile& file : files)
    std::stable_sort(file.begin(), file.end(), [](const Exported& a, const Exported& b) {
      return element_bytes(a.header.type) > element_bytes(b.header.type);
    });
  return files;
}

std::string file_name(std::size_t file, std::size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", file + 1, count);
  return name;
}

// Loaders look for more than one name: another model's file beside this one's would be taken.
void expect_no_model(const Path& out) {
  for (const auto& entry : std::filesystem::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    const bool is_model = name.starts_with("model") && name.ends_with(".safetensors");
    if (is_model || name == kIndexName)
      throw Error(kWhere, "expected a folder without a model, got " + entry.path().string() +
                              ". Name another folder, or remove that file.");
  }
}

std::string header_text(const ModelFile& file) {
  SafetensorsHeader header;
  header.metadata["format"] = "pt";
  for (const Exported& one : file) {
    header.tensors.push_back(one.header);
    for (const std::string& alias : one.aliases) header.metadata.emplace(alias, one.header.name);
  }
  return make_header(header);
}

void append_part(const SavedCheckpoint& saved, const Exported& one, std::int64_t begin,
                 std::int64_t end, OutputFile& output) {
  const std::int64_t numel = end - begin;
  const auto size = [numel](ElementType type) {
    return static_cast<std::size_t>(numel * element_bytes(type));
  };
  std::vector<std::byte> values(size(one.saved->type)), converted;
  saved.read(one.saved->name, begin, end, values.data());
  if (one.header.type != one.saved->type) {
    converted.resize(size(one.header.type));
    convert(values.data(), one.saved->type, converted.data(), one.header.type, numel);
    values.swap(converted);
  }
  output.append(values.data(), values.size());
}

void append_tensor(const SavedCheckpoint& saved, const Exported& one, OutputFile& output) {
  if (one.saved == nullptr) return;
  const std::int64_t numel = numel_of(one.saved->shape);
  for (const Piece& piece : one.saved->pieces) saved.verify(*one.saved, piece);
  for (std::int64_t begin = 0; begin < numel; begin += kCopiedNumel)
    append_part(saved, one, begin, std::min(numel, begin + kCopiedNumel), output);
}

// Under another name until it is whole; one that an interrupted export has left is written anew.
void write_file(const SavedCheckpoint& saved, const ModelFile& file, const Path& path,
                Storage& storage) {
  const Path unfinished = path.string() + ".saving";
  storage.remove(unfinished);
  {
    const auto output = storage.create(unfinished);
    const std::string header = header_text(file);
    output->append(header.data(), header.size());
    for (const Exported& one : file) append_tensor(saved, one, *output);
    output->sync();
  }
  storage.rename(unfinished, path);
}

std::string index_text(const std::vector<ModelFile>& files) {
  json index;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i)
    for (const Exported& one : files[i]) {
      bytes += bytes_of(one.header);
      index["weight_map"][one.header.name] = file_name(i, files.size());
    }
  index["metadata"]["total_size"] = bytes;
  return index.dump(2) + "\n";
}

}  // namespace

std::vector<std::string> export_model(const SavedCheckpoint& saved, const Path& out,
                                      const ExportOptions& options, Storage& storage) {
  const auto files = in_files(all_tensors(saved, options), options.file_bytes);
  storage.make_directories(out);
  const auto lock = storage.lock(out);
  expect_no_model(out);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < files.size(); ++i) {
    names.push_back(file_name(i, files.size()));
    write_file(saved, files[i], out / names.back(), storage);
  }
  storage.sync_directory(out);
  if (files.size() > 1) {
    names.emplace_back(kIndexName);
    replace_file(storage, out / kIndexName, index_text(files));
  }
  return names;
}

}  // namespace equigrad::checkpoint
