// equigrad checkpoint: what a checkpoint is, whether it is whole, what differs between two, and its
// weights as one model.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "conformance/cli/cli.hpp"
#include "conformance/cli/report_folder.hpp"
#include "engine/checkpoint/difference.hpp"
#include "engine/checkpoint/exported_model.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/error.hpp"
#include "reports/text.hpp"

namespace equigrad::conformance::cli {
namespace {

using checkpoint::Path;
using checkpoint::SavedCheckpoint;
using checkpoint::TensorEntry;
using nlohmann::json;
using reports::count_of;
using reports::grouped;

bool is_there(const Path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Tags of a folder whose `latest` is gone.
std::string tags_in(const Path& folder) {
  std::vector<std::string> tags;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (is_there(entry.path() / checkpoint::kManifestName))
      tags.push_back(entry.path().filename().string());
  std::sort(tags.begin(), tags.end());
  return reports::joined(tags, ", ");
}

// DIRECTORY, whose `latest` names the tag, or DIRECTORY/TAG.
SavedCheckpoint opened(const std::string& folder) {
  Path path = std::filesystem::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // behind it is a separator
  const bool is_tag = is_there(path / checkpoint::kManifestName);
  if (!is_tag && is_there(path / checkpoint::kLatestName))
    return SavedCheckpoint::open(path, checkpoint::latest_tag(path));
  const std::string tags = is_tag ? "" : tags_in(path);
  if (!tags.empty())
    throw Error("checkpoint", "expected the folder of a checkpoint, got " + path.string() +
                                  ", which has no file \"latest\" but the checkpoints " + tags +
                                  ". Name one of them.");
  return SavedCheckpoint::open(path.parent_path(), path.filename().string());
}

// ---- inspect -------------------------------------------------------------------------------

std::int64_t bytes_of(const TensorEntry& tensor) {
  return checkpoint::numel_of(tensor.shape) * checkpoint::element_bytes(tensor.type);
}

std::string padded(std::string text, std::size_t columns) {
  text.resize(std::max(text.size(), columns), ' ');
  return text;
}
std::string right(const std::string& text, std::size_t columns) {
  return std::string(text.size() < columns ? columns - text.size() : 0, ' ') + text;
}

std::string row(const std::string& name, const std::string& value) {
  return padded(name, 14) + value + "\n";
}

// {"a": 1, "b": null} as "a 1, b null"; any other value as JSON.
std::string in_words(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return value.dump();
  std::vector<std::string> words;
  for (const auto& [key, one] : value.items()) words.push_back(key + " " + one.dump());
  return reports::joined(words, ", ");
}

std::int64_t bytes_of_files(const SavedCheckpoint& saved) {
  std::int64_t bytes = 0;
  for (const auto& file : saved.manifest().files) bytes += file.bytes;
  return bytes;
}

// What the engine wrote of itself, but lists: those of parameters and groups are counted.
std::string engine_text(const json& engine) {
  std::string text;
  if (!engine.is_object()) return text;
  for (const auto& [key, value] : engine.items())
    text += row(key, value.is_array() ? grouped(value.size()) : in_words(value));
  return text;
}

std::string about_text(const SavedCheckpoint& saved) {
  const auto& manifest = saved.manifest();
  const auto client = manifest.client_state.dump();
  return row("checkpoint", saved.folder().string()) + row("id", manifest.id) +
         row("ranks", std::to_string(manifest.world_size)) + engine_text(manifest.engine) +
         row("client_state", client.size() <= 80 ? client : count_of(client.size(), "byte")) +
         row("files", grouped(manifest.files.size()) + ", " + grouped(bytes_of_files(saved)) +
                          " bytes (" + reports::bytes_text(bytes_of_files(saved)) + ")");
}

// Of one that a tensor group saved also in how many parts.
std::string shape_text(const checkpoint::TensorEntry& tensor) {
  const auto shape = json(tensor.shape).dump();
  return tensor.cut ? shape + " in " + count_of(tensor.cut->parts, "part") : shape;
}

std::string tensors_text(const SavedCheckpoint& saved) {
  std::vector<std::vector<std::string>> rows = {{"tensor", "type", "shape", "pieces", "bytes"}};
  for (const auto& tensor : saved.manifest().tensors)
    rows.push_back({tensor.name, std::string(to_text(tensor.type)), shape_text(tensor),
                    grouped(tensor.pieces.size()), grouped(bytes_of(tensor))});
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& cells : rows)
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  std::string text;
  for (const auto& cells : rows)
    text += padded(cells[0], widths[0]) + "  " + padded(cells[1], widths[1]) + "  " +
            padded(cells[2], widths[2]) + "  " + right(cells[3], widths[3]) + "  " +
            right(cells[4], widths[4]) + "\n";
  return text;
}

json record_of(const SavedCheckpoint& saved) {
  const auto& manifest = saved.manifest();
  json record{{"folder", saved.folder().string()},
              {"id", manifest.id},
              {"world_size", manifest.world_size},
              {"engine", manifest.engine},
              {"client_state", manifest.client_state},
              {"bytes", bytes_of_files(saved)},
              {"files", json::array()},
              {"tensors", json::array()}};
  for (const auto& file : manifest.files)
    record["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  for (const auto& tensor : manifest.tensors) {
    json entry = {{"name", tensor.name},
                  {"type", to_text(tensor.type)},
                  {"shape", tensor.shape},
                  {"pieces", tensor.pieces.size()},
                  {"bytes", bytes_of(tensor)}};
    if (tensor.cut)
      entry["cut"] = {{"dimension", tensor.cut->dimension},
                      {"segments", tensor.cut->segments},
                      {"parts", tensor.cut->parts}};
    record["tensors"].push_back(std::move(entry));
  }
  return record;
}

// ---- verify --------------------------------------------------------------------------------

// What is wrong with the pieces, one message each.
std::vector<std::string> problems_of(const SavedCheckpoint& saved) {
  std::vector<std::string> problems;
  for (const auto& tensor : saved.manifest().tensors)
    for (const auto& piece : tensor.pieces) try {
        saved.verify(tensor, piece);
      } catch (const Error& error) {
        problems.push_back(error.what() + std::string(" It is elements ") + grouped(piece.begin) +
                           " to " + grouped(piece.end - 1) +
                           (tensor.cut ? " of part " + grouped(piece.part) : "") + ".");
      }
  return problems;
}

// ---- diff ----------------------------------------------------------------------------------

std::string difference_text(const checkpoint::TensorDifference& found) {
  if (!found.what.empty()) return found.name + ": " + found.what + "\n";
  const bool has_nan = found.largest_ulps == std::numeric_limits<std::uint64_t>::max();
  return found.name + ": " + grouped(found.differ_numel) + " of " +
         count_of(found.numel, "element") + " differ, the first at " + grouped(found.first) +
         ", at most by " +
         (has_nan ? "as much as can be (NaN and a number)" : count_of(found.largest_ulps, "ulp")) +
         "\n";
}

checkpoint::ExportOptions export_options(const CheckpointCommand& command) {
  checkpoint::ExportOptions options;
  if (command.as_computed) options.type = std::nullopt;
  if (command.sixteen_bit == "bf16") options.type = checkpoint::ElementType::BF16;
  if (command.sixteen_bit == "fp16") options.type = checkpoint::ElementType::F16;
  options.file_bytes = static_cast<std::int64_t>(
      std::min<uint64_t>(command.file_bytes, std::numeric_limits<std::int64_t>::max()));
  options.exclude_frozen = command.exclude_frozen;
  return options;
}

}  // namespace

int checkpoint_inspect_command(const CheckpointCommand& command) {
  const auto saved = opened(command.folder);
  (command.json == "-" ? std::cerr : std::cout) << about_text(saved) << "\n" << tensors_text(saved);
  if (!command.json.empty()) write_file(command.json, record_of(saved).dump(2) + "\n");
  return kHeld;
}

int checkpoint_verify_command(const CheckpointCommand& command) {
  std::vector<std::string> problems;
  std::string held;
  try {
    const auto saved = opened(command.folder);
    problems = problems_of(saved);
    held = saved.folder().string() + ": " + count_of(saved.manifest().tensors.size(), "tensor") +
           " in " + count_of(saved.manifest().files.size(), "file") + ", " +
           reports::bytes_text(bytes_of_files(saved));
  } catch (const Error& error) {
    problems = {error.what()};
  }
  for (const auto& problem : problems) std::cout << "WRONG  " << problem << "\n";
  if (!problems.empty()) return kFailed;
  std::cout << "HELD  " << held << ": every digest is that of what was saved\n";
  return kHeld;
}

int checkpoint_diff_command(const CheckpointCommand& command) {
  const auto a = opened(command.folder), b = opened(command.other);
  const auto settings = checkpoint::setting_differences(a.manifest(), b.manifest());
  const auto tensors = checkpoint::differences(a, b);
  std::cout << "A  " << a.folder().string() << "\nB  " << b.folder().string() << "\n";
  for (const auto& one : settings)
    std::cout << one.path << ": " << (one.a.empty() ? "nothing" : one.a) << " and "
              << (one.b.empty() ? "nothing" : one.b) << "\n";
  for (const auto& one : tensors) std::cout << difference_text(one);
  if (settings.empty() && tensors.empty()) {
    std::cout << "EQUAL  every tensor and every setting\n";
    return kHeld;
  }
  std::cout << "DIFFERENT  " << count_of(tensors.size(), "tensor") << ", "
            << count_of(settings.size(), "setting") << "\n";
  return kFailed;
}

int checkpoint_export_command(const CheckpointCommand& command) {
  const auto saved = opened(command.folder);
  for (const auto& name : checkpoint::export_model(saved, command.out, export_options(command))) {
    const auto file = Path(command.out) / name;
    const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(file));
    std::cout << file.string() << "  " << reports::bytes_text(bytes) << "\n";
  }
  return kHeld;
}

}  // namespace equigrad::conformance::cli
