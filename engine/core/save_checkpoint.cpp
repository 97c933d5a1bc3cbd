#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "engine/checkpoint/rank_writer.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/core/checkpoints.hpp"
#include "engine/core/saved_engine.hpp"
#include "engine/core/together.hpp"
#include "engine/core/training_engine.hpp"

namespace equigrad::core {
namespace {

using checkpoint::ElementType;
using checkpoint::Path;
using checkpoint::PieceHeader;
using nlohmann::json;

constexpr auto kWhere = "save_checkpoint";

std::string random_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

json parsed_client_state(const std::string& text) {
  auto parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_discarded()) return parsed;
  throw Error(kWhere, "expected a client_state that is JSON, got \"" + text.substr(0, 100) +
                          "\". Give an object, or \"null\".");
}

// Of an optimizer of the caller's: it says itself what it has and cannot give.
void check_can_be_saved(Parts& parts) {
  const auto* client = client_of(parts.optimizer);
  if (client == nullptr) return;
  for (std::size_t i = 0; i < parts.model.table.size(); ++i) {
    static_cast<void>(client->numbers(i));
    for (const auto& name : client->names(i)) {
      if (!is_reserved(name)) continue;
      throw Error(kWhere, "expected another name for an optimizer's state than \"" + name +
                              "\", which a checkpoint's own tensors have. Rename it.");
    }
  }
}

// Bytes of a piece to come, asked for when it is its turn: collective for a frozen parameter.
struct Source {
  PieceHeader header;
  std::function<at::Tensor()> values;  // flat; undefined: this rank has none of it
};

class Save {
 public:
  Save(TrainingEngine& engine, const SaveOptions& options, Path folder, std::string id)
      : engine_(engine),
        parts_(engine.parts()),
        options_(options),
        storage_(options.storage ? *options.storage : checkpoint::disk()),
        folder_(std::move(folder)),
        id_(std::move(id)) {}

  void run(const std::string& tag);

 private:
  bool is_first() const { return parts_.group.communicator->rank() == 0; }
  std::vector<std::string> together(const std::function<std::string()>& attempt) const {
    return core::together(*parts_.group.communicator, kWhere, attempt);
  }
  std::vector<Source> sources() const;
  void add_trained(std::vector<Source>& all, std::size_t parameter) const;
  void add_frozen(std::vector<Source>& all, std::size_t parameter) const;
  void add_of_rank(std::vector<Source>& all) const;
  std::string write_own(const Path& file) const;
  void commit(const std::string& tag, const std::vector<std::string>& rank_files) const;
  void write_manifest(const checkpoint::Manifest& manifest) const;
  void remove_own(const Path& file) const noexcept;
  void remove_leftovers(const std::function<bool(const std::string& name)>& is_left) const;

  TrainingEngine& engine_;
  Parts& parts_;
  const SaveOptions& options_;
  checkpoint::Storage& storage_;
  Path folder_;
  std::string id_;
};

void Save::add_trained(std::vector<Source>& all, std::size_t parameter) const {
  const auto& entry = parts_.model.table[parameter];
  const auto part = written_part(parts_, parameter);
  if (part.range.numel() == 0) return;
  const auto add = [&](const std::string& name, const at::Tensor& flat) {
    all.push_back({{.name = name,
                    .type = element_type_of(flat.scalar_type(), name),
                    .shape = entry.shape,
                    .begin = part.range.begin,
                    .end = part.range.end},
                   [flat] { return flat; }});
  };
  auto& optimizer = parts_.optimizer;
  add(master_name(entry.name), optimizer.masters().narrow(0, part.begin, part.range.numel()));
  const auto names = optimizer.state_names(parameter);
  const auto skipped = part.begin - kept_part(parts_, parameter).begin;  // of the whole, stage 0
  for (std::size_t i = 0; i < names.size(); ++i) {
    add(state_name(names[i], entry.name),
        optimizer.state(parameter, i).narrow(0, skipped, part.range.numel()));
  }
}

void Save::add_frozen(std::vector<Source>& all, std::size_t parameter) const {
  const auto& entry = parts_.model.table[parameter];
  const auto& communicator = *parts_.group.communicator;
  const auto range =
      layout::Partition(entry.numel, communicator.world_size()).range(communicator.rank());
  const auto name = frozen_name(entry.name);
  all.push_back(
      {{.name = name,
        .type = element_type_of(parts_.model.tensors[parameter].scalar_type(), entry.name),
        .shape = entry.shape,
        .begin = range.begin,
        .end = range.end},
       [this, range, parameter_name = entry.name] {
         return engine_.full_parameter(parameter_name)
             .reshape({-1})
             .narrow(0, range.begin, range.numel());
       }});
}

void Save::add_of_rank(std::vector<Source>& all) const {
  const auto& communicator = *parts_.group.communicator;
  const auto add = [&](const std::string& name, const at::Tensor& values) {
    if (values.numel() == 0) return;
    all.push_back({{.name = name,
                    .type = element_type_of(values.scalar_type(), name),
                    .shape = values.sizes().vec(),
                    .begin = 0,
                    .end = values.numel()},
                   [values] { return values; }});
  };
  for (const auto& [name, tensor] : all_buffers(parts_, options_.buffers, kWhere))
    add(buffer_name(communicator.rank(), name), tensor.detach());
  for (const auto& device : random_devices(parts_)) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    add(rng_name(communicator.rank(), device.is_cpu() ? "cpu" : "cuda"), generator.get_state());
  }
}

// Larger elements first, so that each lies where its type may be read in place.
std::vector<Source> Save::sources() const {
  std::vector<Source> all;
  const auto& table = parts_.model.table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].numel == 0) continue;
    if (table[i].trainable)
      add_trained(all, i);
    else if (!options_.exclude_frozen_parameters)
      add_frozen(all, i);
  }
  add_of_rank(all);
  std::stable_sort(all.begin(), all.end(), [](const Source& a, const Source& b) {
    return checkpoint::element_bytes(a.header.type) > checkpoint::element_bytes(b.header.type);
  });
  return all;
}

// Values are asked for to the end, also by a rank that cannot write any more.
std::string Save::write_own(const Path& file) const {
  std::exception_ptr failure;
  const auto attempt = [&failure](const auto& call) {
    if (failure) return;
    try {
      call();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  const auto all = sources();
  std::vector<PieceHeader> headers;
  for (const auto& source : all)
    if (source.header.begin < source.header.end) headers.push_back(source.header);
  std::optional<checkpoint::RankWriter> writer;
  attempt([&] { writer.emplace(storage_, file, headers); });
  for (const auto& source : all) {
    const auto values = source.values();
    if (source.header.begin == source.header.end) continue;
    attempt([&] {
      const auto here = values.cpu().contiguous();
      writer->write(here.const_data_ptr(), here.nbytes());
    });
  }
  std::string written;
  attempt([&] { written = checkpoint::write_rank_file(writer->finish()); });
  if (failure) std::rethrow_exception(failure);
  return written;
}

void Save::commit(const std::string& tag, const std::vector<std::string>& rank_files) const {
  checkpoint::Manifest manifest{.id = id_,
                                .world_size = parts_.world_size(),
                                .engine = to_json(saved_engine(parts_)),
                                .client_state = parsed_client_state(options_.client_state),
                                .files = {},
                                .tensors = {}};
  std::vector<checkpoint::RankFile> files;
  for (std::size_t rank = 0; rank < rank_files.size(); ++rank) {
    files.push_back(checkpoint::read_rank_file(rank_files[rank]));
    const auto path = folder_ / files.back().file.name;
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (error || static_cast<int64_t>(bytes) != files.back().file.bytes) {
      throw Error(kWhere, fmt::format("expected to see the file of rank {}, \"{}\", on rank 0, got "
                                      "{}. All ranks need one folder that they share.",
                                      rank, path.string(),
                                      error ? error.message() : "one of another length"));
    }
  }
  checkpoint::merge(manifest, files);
  write_manifest(manifest);
  if (options_.save_latest) {
    checkpoint::replace_file(storage_, folder_.parent_path() / checkpoint::kLatestName,
                             checkpoint::write_latest(tag));
  }
  std::set<std::string> named;
  for (const auto& file : manifest.files) named.insert(file.name);
  remove_leftovers([&](const auto& name) { return !named.contains(name); });
}

// If it fails before it is there, nothing names this save's files, and they go.
void Save::write_manifest(const checkpoint::Manifest& manifest) const {
  const auto text = checkpoint::write_manifest(manifest);
  const auto file = folder_ / checkpoint::kManifestName;
  try {
    storage_.sync_directory(folder_);
    checkpoint::replace_file(storage_, file, text);
  } catch (...) {
    std::ifstream there(file, std::ios::binary);
    const std::string now{std::istreambuf_iterator<char>(there), {}};
    if (now != text)
      remove_leftovers([&](const auto& name) { return name.find(id_) != std::string::npos; });
    throw;
  }
}

// They take room and do no harm: what cannot be removed stays.
void Save::remove_leftovers(const std::function<bool(const std::string& name)>& is_left) const {
  std::error_code error;
  std::vector<Path> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".safetensors") && is_left(name))
      left.push_back(entry.path());
  }
  for (const auto& path : left) {
    try {
      storage_.remove(path);
    } catch (const Error&) {
    }
  }
}

void Save::run(const std::string& tag) {
  const auto& communicator = *parts_.group.communicator;
  std::shared_ptr<void> lock;
  together([&]() -> std::string {
    if (!is_first()) return {};
    storage_.make_directories(folder_);
    lock = storage_.lock(folder_);
    return {};
  });
  const auto file =
      folder_ / checkpoint::rank_file_name(communicator.rank(), communicator.world_size(), id_);
  std::vector<std::string> rank_files;
  try {
    rank_files = together([&] { return write_own(file); });
  } catch (...) {
    remove_own(file);
    throw;
  }
  together([&]() -> std::string {
    if (is_first()) commit(tag, rank_files);
    return {};
  });
}

void Save::remove_own(const Path& file) const noexcept {
  try {
    storage_.remove(file);
  } catch (...) {
    // The error that made the save fail is on its way to the caller.
  }
}

}  // namespace

std::vector<at::Device> random_devices(const Parts& parts) {
  const auto device = parts.group.communicator->device();
  if (device.is_cpu()) return {at::Device(at::kCPU)};
  return {at::Device(at::kCPU), device};
}

void check_idle(const Parts& parts, const std::string& where) {
  parts.inspection.gathering.check_closed("engine." + where);
  const auto passes = parts.window.progress().passes;
  if (passes != 0 || !parts.schedules.micro_batches.is_between_windows()) {
    throw Error(where, fmt::format("expected to be between two accumulation windows, got one with "
                                   "{} backward passes. Call it after the step() of a boundary "
                                   "(is_gradient_accumulation_boundary()).",
                                   passes));
  }
  if (parts.loss.scaler->is_held()) {
    throw Error(where,
                "expected no gradients of the loss scale that this engine shares, got a window of "
                "another engine that holds some. Call it after the step() of all of them.");
  }
}

std::vector<NamedTensor> all_buffers(const Parts& parts, const std::vector<NamedTensor>& given,
                                     const std::string& where) {
  auto all = parts.model.buffers;
  all.insert(all.end(), given.begin(), given.end());
  std::set<std::string> names;
  for (const auto& [name, tensor] : all) {
    if (!tensor.defined())
      throw Error(where, "expected values in buffer \"" + name +
                             "\", got an undefined tensor. Leave it out.");
    if (!names.insert(name).second)
      throw Error(where, "expected buffers with different names, got \"" + name +
                             "\" twice. Those of the engine's own module need not be given.");
  }
  return all;
}

void save_checkpoint(TrainingEngine& engine, const std::string& directory, const std::string& tag,
                     const SaveOptions& options) {
  RECORD_USER_SCOPE("engine.save_checkpoint");
  const at::NoGradGuard no_grad;
  engine.rethrow_failure();
  auto& parts = engine.parts();
  const auto& communicator = *parts.group.communicator;
  const auto name =
      tag.empty() ? fmt::format("global_step{}", parts.outcome.counters.global_steps) : tag;
  parts.group.participant.meet(agreement::SaveCheckpoint{});
  const auto id = communicator.rank() == 0 ? random_id() : std::string();
  const auto said = together(*parts.group.communicator, kWhere, [&] {
    check_idle(parts, kWhere);
    checkpoint::check_tag(name, kWhere);
    check_can_be_saved(parts);
    parsed_client_state(options.client_state);
    all_buffers(parts, options.buffers, kWhere);
    return json{{"directory", directory},
                {"tag", name},
                {"save_latest", options.save_latest},
                {"exclude_frozen_parameters", options.exclude_frozen_parameters},
                {"id", id}}
        .dump(-1, ' ', false, json::error_handler_t::replace);
  });
  const auto first = json::parse(said.front());
  for (std::size_t rank = 1; rank < said.size(); ++rank) {
    auto other = json::parse(said[rank]);
    other["id"] = first["id"];
    if (other == first) continue;
    throw Error(kWhere, fmt::format("expected the same directory, tag and options on every rank, "
                                    "got {} on rank {} and {} on rank 0. Make the same call on "
                                    "every rank.",
                                    other.dump(), rank, first.dump()));
  }
  Save(engine, options, Path(directory) / name, first["id"].get<std::string>()).run(name);
}

}  // namespace equigrad::core
