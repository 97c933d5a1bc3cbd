// Meshes of ranks, and what a group of one computes together: regions, split layers, the plan.
#include <pybind11/stl.h>

#include "engine/comm/backend.hpp"
#include "engine/comm/launch.hpp"
#include "engine/comm/mesh.hpp"
#include "engine/config/config.hpp"
#include "engine/parallel/layers.hpp"
#include "engine/parallel/regions.hpp"
#include "engine/parallel/split_marks.hpp"
#include "engine/parallel/tensor_plan.hpp"
#include "python/binding/binding.hpp"

namespace equigrad::python {
namespace {

using comm::Mesh;
using comm::MeshSizes;
using parallel::Group;
using parallel::Split;
using NoGil = py::call_guard<py::gil_scoped_release>;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

Mesh connect_mesh_at(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                     int sequence, int tensor, std::optional<int> device_index, double timeout_s) {
  const py::gil_scoped_release no_gil;
  return comm::mesh_over(store, rank, comm::mesh_sizes(world_size, sequence, tensor), device_index,
                         milliseconds(timeout_s));
}

void bind_mesh(py::module_& module) {
  py::class_<Mesh>(module, "Mesh", "Ranks in a grid of data x sequence x tensor.",
                   py::release_gil_before_calling_cpp_dtor())
      .def(py::init([](const std::shared_ptr<comm::Communicator>& ranks) { return Mesh(ranks); }),
           py::arg("ranks"), "Of data alone.")
      .def_property_readonly("data_size", [](const Mesh& mesh) { return mesh.sizes().data; })
      .def_property_readonly("sequence_size",
                             [](const Mesh& mesh) { return mesh.sizes().sequence; })
      .def_property_readonly("tensor_size", [](const Mesh& mesh) { return mesh.sizes().tensor; })
      .def_property_readonly("world", &Mesh::world, "All ranks.")
      .def_property_readonly("zero", &Mesh::zero, "Those that ZeRO shards over.")
      .def_property_readonly("tensor", &Mesh::tensor, "The tensor group; None of one rank.")
      .def_property_readonly("sequence", &Mesh::sequence, "The sequence group; None of one rank.");
  py::implicitly_convertible<comm::Communicator, Mesh>();
  module.def(
      "connect_mesh",
      [](const comm::LaunchEnvironment& launch, int sequence, int tensor, bool cuda,
         double timeout_s) {
        return comm::connect_mesh(launch, cuda ? c10::kCUDA : c10::kCPU, milliseconds(timeout_s),
                                  comm::mesh_sizes(launch.world_size, sequence, tensor));
      },
      py::arg("launch"), py::arg("sequence"), py::arg("tensor"), py::arg("cuda"),
      py::arg("timeout_s"), NoGil(), "As connect, with all groups of a mesh.");
  module.def("connect_mesh_at", &connect_mesh_at, py::arg("store"), py::arg("rank"),
             py::arg("world_size"), py::arg("sequence"), py::arg("tensor"), py::arg("device_index"),
             py::arg("timeout_s"), "As connect_at, with all groups of a mesh.");
}

void bind_split(py::module_& module) {
  py::class_<Split>(module, "Split", "How a tensor is cut along one dimension, in segments.")
      .def(py::init(
               [](int64_t dimension, std::vector<int64_t> segments, std::vector<int64_t> shape) {
                 return Split{dimension, std::move(segments), std::move(shape)};
               }),
           py::arg("dimension"), py::arg("segments"), py::arg("shape"))
      .def_readonly("dimension", &Split::dimension)
      .def_readonly("segments", &Split::segments)
      .def_readonly("shape", &Split::shape, "Of the whole.");
  module.def("bias_split", &parallel::bias_split, py::arg("split"),
             "The same cut of the vector that goes with its dimension.");
  module.def("part_of", &parallel::part_of, py::arg("whole"), py::arg("split"), py::arg("rank"),
             py::arg("size"), "One rank's part, a copy.");
  module.def("whole_of", &parallel::whole_of, py::arg("parts"), py::arg("split"),
             "The whole, of all ranks' parts in their order.");
  module.def("mark_split", &parallel::mark_split, py::arg("part"), py::arg("split"),
             py::arg("size"), "Tells an engine that a parameter is one part of `size`.");
  module.def("split_of", &parallel::split_of, py::arg("parameter"),
             "What mark_split has said; None of a whole parameter.");
}

// Python's None is no tensor to torch.
template <auto kLinear>
at::Tensor without_bias_too(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const Group& group) {
  return kLinear(input, weight, bias.value_or(at::Tensor()), group);
}

void bind_regions(py::module_& module) {
  using py::arg;
  const auto group = arg("group").none(true);
  module.def("copy_to", &parallel::copy_to, arg("whole"), group, NoGil(),
             "The same; backward adds over the group.");
  module.def("reduce_from", &parallel::reduce_from, arg("part"), group, NoGil(),
             "The sum over the group; backward is the same.");
  module.def("scatter_to", &parallel::scatter_to, arg("whole"), arg("dimension"), group,
             arg("segments") = parallel::Segments(), NoGil(),
             "This rank's part; backward gathers.");
  module.def("gather_from", &parallel::gather_from, arg("part"), arg("dimension"), group,
             arg("segments") = parallel::Segments(), NoGil(),
             "All ranks' parts; backward is this rank's.");
  module.def("all_to_all", &parallel::all_to_all, arg("part"), arg("scatter"), arg("gather"), group,
             NoGil(), "Split along `gather` to split along `scatter`; backward is the way back.");
  module.def("sum_over", &parallel::sum_over, arg("part"), group, NoGil(),
             "The sum over the group, not differentiated.");
  module.def("column_linear", &without_bias_too<parallel::column_linear>, arg("whole"),
             arg("weight"), arg("bias"), group, NoGil(), "This rank's outputs of a linear.");
  module.def("row_linear", &without_bias_too<parallel::row_linear>, arg("part"), arg("weight"),
             arg("bias"), group, NoGil(), "A linear of this rank's inputs, summed.");
  module.def("embedding", &parallel::embedding, arg("indices"), arg("weight"), group,
             arg("padding") = std::nullopt, NoGil(),
             "Whole rows, of which each rank has some entries.");
  module.def("cross_entropy", &parallel::cross_entropy, arg("logits"), arg("targets"), group,
             arg("ignored") = parallel::kIgnoredTarget, NoGil(),
             "Of logits of which each rank has some entries.");
  module.def("cross_entropy_by_row", &parallel::cross_entropy_by_row, arg("logits"), arg("targets"),
             group, arg("ignored") = parallel::kIgnoredTarget, NoGil(),
             "As cross_entropy, of each row.");
}

void bind_plan(py::module_& module) {
  using parallel::Candidate;
  using parallel::ModulePlan;
  using parallel::Placement;
  py::enum_<parallel::ModuleKind>(module, "ModuleKind", "What a module is to the plan.")
      .value("Linear", parallel::ModuleKind::Linear)
      .value("Conv1D", parallel::ModuleKind::Conv1D)
      .value("Embedding", parallel::ModuleKind::Embedding)
      .value("Other", parallel::ModuleKind::Other);
  py::enum_<Placement>(module, "Placement", "Where a module's weight is.")
      .value("Replicated", Placement::Replicated)
      .value("Column", Placement::Column)
      .value("Row", Placement::Row)
      .value("Vocabulary", Placement::Vocabulary);
  py::class_<ModulePlan>(module, "ModulePlan", "How one module is split.")
      .def_readonly("placement", &ModulePlan::placement)
      .def_readonly("weight", &ModulePlan::weight)
      .def_readonly("gathers_output", &ModulePlan::gathers_output)
      .def_readonly("takes_whole_input", &ModulePlan::takes_whole_input)
      .def_readonly("sums_gradient", &ModulePlan::sums_gradient)
      .def_readonly("reason", &ModulePlan::reason);
  // (name, kind, shape, has_bias, identity of the weight)
  using Given =
      std::tuple<std::string, parallel::ModuleKind, std::vector<int64_t>, bool, std::uintptr_t>;
  module.def(
      "plan_tensor_parallel",
      [](const EngineConfig& config, const std::string& type, int64_t heads,
         int64_t key_value_heads,
         const std::vector<std::pair<std::string, std::string>>& plan_of_model,
         const std::vector<Given>& given) {
        std::vector<Candidate> candidates;
        for (const auto& [name, kind, shape, has_bias, weight] : given)
          candidates.push_back(
              {name, kind, shape, has_bias, reinterpret_cast<const void*>(weight)});
        const auto plan = parallel::plan_tensor_parallel(config.tensor_parallel,
                                                         {.type = type,
                                                          .heads = heads,
                                                          .key_value_heads = key_value_heads,
                                                          .plan = plan_of_model},
                                                         candidates);
        return std::pair(plan.modules, parallel::describe(plan));
      },
      py::arg("config"), py::arg("model_type"), py::arg("heads"), py::arg("key_value_heads"),
      py::arg("plan_of_model"), py::arg("candidates"), "By module, and a line for each.");
}

}  // namespace

void bind_parallel(py::module_& module) {
  bind_mesh(module);
  bind_split(module);
  bind_regions(module);
  bind_sequence(module);
  bind_plan(module);
}

}  // namespace equigrad::python
