// Saving and loading: the options that go in, and what comes out.
#include <pybind11/functional.h>

#include <utility>

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
                         const Named& buffers) {
  return {.client_state = std::move(client_state),
          .save_latest = save_latest,
          .exclude_frozen_parameters = exclude_frozen_parameters,
          .buffers = named(buffers)};
}

LoadOptions load_options(bool module_strict, bool optimizer_states, bool lr_scheduler_states,
                         bool module_only, const Named& buffers,
                         std::function<void(const std::string&)> check) {
  return {.module_strict = module_strict,
          .optimizer_states = optimizer_states,
          .lr_scheduler_states = lr_scheduler_states,
          .module_only = module_only,
          .buffers = named(buffers),
          .check = std::move(check)};
}

}  // namespace

void bind_checkpoint(py::module_& module, py::class_<Engine>& engine) {
  py::class_<SaveOptions>(module, "SaveOptions")
      .def(py::init(&save_options), py::kw_only(), py::arg("client_state"), py::arg("save_latest"),
           py::arg("exclude_frozen_parameters"), py::arg("buffers"));
  py::class_<LoadOptions>(module, "LoadOptions")
      .def(py::init(&load_options), py::kw_only(), py::arg("module_strict"),
           py::arg("optimizer_states"), py::arg("lr_scheduler_states"), py::arg("module_only"),
           py::arg("buffers"), py::arg("check"));
  py::class_<LoadedCheckpoint>(module, "LoadedCheckpoint")
      .def_readonly("path", &LoadedCheckpoint::path)
      .def_readonly("client_state", &LoadedCheckpoint::client_state, "JSON.");
  engine
      .def("save_checkpoint", &Engine::save_checkpoint, py::arg("directory"), py::arg("tag"),
           py::arg("options"), NoGil())
      .def("load_checkpoint", &Engine::load_checkpoint, py::arg("directory"), py::arg("tag"),
           py::arg("options"), "None where the folder has no file `latest` and there is no tag.",
           NoGil());
}

}  // namespace equigrad::python
