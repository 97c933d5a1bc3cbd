// Saving and loading: the options that go in, and what comes out.
#include <fmt/format.h>
#include <pybind11/functional.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <utility>

#include "engine/checkpoint/rank_writer.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/core/saved_engine.hpp"
#include "engine/engine.hpp"
#include "python/binding/binding.hpp"

namespace equigrad::python {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

std::vector<NamedTensor> named(const Named& tensors) {
  std::vector<NamedTensor> all;
  for (const auto& [name, tensor] : tensors) all.push_back({name, tensor});
  return all;
}

SaveOptions save_options(std::string client_state, bool save_latest, bool exclude_frozen_parameters,
                         const Named& buffers, bool asynchronous) {
  return {.client_state = std::move(client_state),
          .save_latest = save_latest,
          .exclude_frozen_parameters = exclude_frozen_parameters,
          .buffers = named(buffers),
          .asynchronous = asynchronous};
}

LoadOptions load_options(bool module_strict, bool optimizer_states, bool lr_scheduler_states,
                         bool module_only, const Named& buffers,
                         std::function<void(const std::string&)> check, bool check_digests) {
  return {.module_strict = module_strict,
          .optimizer_states = optimizer_states,
          .lr_scheduler_states = lr_scheduler_states,
          .module_only = module_only,
          .buffers = named(buffers),
          .check_digests = check_digests,
          .check = std::move(check)};
}

constexpr auto kWhere = "write_checkpoint";

checkpoint::RankFile write_tensors(const checkpoint::Path& file, Named tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });
  std::vector<checkpoint::PieceHeader> pieces;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.numel() == 0) continue;
    pieces.push_back({.name = name,
                      .type = core::element_type_of(tensor.scalar_type(), name),
                      .shape = tensor.sizes().vec(),
                      .begin = 0,
                      .end = tensor.numel()});
  }
  checkpoint::RankWriter writer(checkpoint::disk(), file, pieces);
  for (const auto& [name, tensor] : tensors) {
    const auto here = tensor.detach().cpu().contiguous();
    if (here.numel() > 0) writer.write(here.const_data_ptr(), here.nbytes());
  }
  return writer.finish();
}

// What no engine has saved, in one file.
std::string write_checkpoint(const std::string& directory, const std::string& tag, int world_size,
                             const std::string& engine, const std::string& client_state,
                             const Named& tensors) {
  checkpoint::check_tag(tag, kWhere);
  auto& disk = checkpoint::disk();
  const auto folder = checkpoint::Path(directory) / tag;
  const auto file = folder / checkpoint::kManifestName;
  disk.make_directories(folder);
  const auto lock = disk.lock(folder);
  if (std::filesystem::exists(file))
    throw Error(kWhere, "expected no checkpoint in \"" + folder.string() +
                            "\", got one. Give another folder or tag.");
  std::random_device device;
  checkpoint::Manifest manifest{.id = fmt::format("{:08x}{:08x}", device(), device()),
                                .world_size = world_size,
                                .engine = nlohmann::json::parse(engine),
                                .client_state = nlohmann::json::parse(client_state),
                                .files = {},
                                .tensors = {}};
  core::saved_engine_from(manifest.engine, file.string());
  const auto name = checkpoint::rank_file_name(0, 1, manifest.id);
  checkpoint::merge(manifest, {write_tensors(folder / name, tensors)});
  disk.sync_directory(folder);
  checkpoint::replace_file(disk, file, checkpoint::write_manifest(manifest));
  checkpoint::replace_file(disk, folder.parent_path() / checkpoint::kLatestName,
                           checkpoint::write_latest(tag));
  return folder.string();
}

}  // namespace

void bind_checkpoint(py::module_& module, py::class_<Engine>& engine) {
  py::class_<SaveOptions>(module, "SaveOptions")
      .def(py::init(&save_options), py::arg("client_state"), py::arg("save_latest"),
           py::arg("exclude_frozen_parameters"), py::arg("buffers"), py::arg("asynchronous"));
  py::class_<LoadOptions>(module, "LoadOptions")
      .def(py::init(&load_options), py::arg("module_strict"), py::arg("optimizer_states"),
           py::arg("lr_scheduler_states"), py::arg("module_only"), py::arg("buffers"),
           py::arg("check"), py::arg("check_digests"));
  py::class_<LoadedCheckpoint>(module, "LoadedCheckpoint")
      .def_readonly("path", &LoadedCheckpoint::path)
      .def_readonly("client_state", &LoadedCheckpoint::client_state, "JSON.");
  module.def("write_checkpoint", &write_checkpoint, py::arg("directory"), py::arg("tag"),
             py::arg("world_size"), py::arg("engine"), py::arg("client_state"), py::arg("tensors"),
             NoGil());
  engine
      .def("save_checkpoint", &Engine::save_checkpoint, py::arg("directory"), py::arg("tag"),
           py::arg("options"), NoGil())
      .def("finish_checkpoint", &Engine::finish_checkpoint, NoGil())
      .def("load_checkpoint", &Engine::load_checkpoint, py::arg("directory"), py::arg("tag"),
           py::arg("options"), "None where the folder has no file `latest` and there is no tag.",
           NoGil());
}

}  // namespace equigrad::python
