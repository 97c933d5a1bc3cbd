// Who the ranks are, and how they are connected.
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "engine/comm/backend.hpp"
#include "engine/comm/launch.hpp"
#include "python/binding/binding.hpp"

namespace equigrad::python {
namespace {

using comm::Communicator;
using comm::LaunchEnvironment;
using NoGil = py::call_guard<py::gil_scoped_release>;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::shared_ptr<Communicator> connect_at(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         int world_size, std::optional<int> device_index,
                                         double timeout_s) {
  const py::gil_scoped_release no_gil;
  if (device_index)
    return comm::nccl_over(store, rank, world_size, *device_index, milliseconds(timeout_s));
  return comm::gloo_over(store, rank, world_size, milliseconds(timeout_s));
}

}  // namespace

void bind_ranks(py::module_& module) {
  py::class_<LaunchEnvironment>(module, "LaunchEnvironment", "Who this process is among the ranks.")
      .def_readonly("rank", &LaunchEnvironment::rank)
      .def_readonly("world_size", &LaunchEnvironment::world_size)
      .def_readonly("local_rank", &LaunchEnvironment::local_rank)
      .def_readonly("source", &LaunchEnvironment::source);
  module.def(
      "read_launch_environment",
      [] {
        return comm::read_launch_environment(
            [](const char* name) -> const char* { return std::getenv(name); });
      },
      "From the variables of torchrun, mpirun, Slurm or Hydra; without any, one rank.");

  py::class_<Communicator, std::shared_ptr<Communicator>>(
      module, "Communicator", "The ranks of an engine.", py::release_gil_before_calling_cpp_dtor())
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("world_size", &Communicator::world_size)
      .def(
          "broadcast",
          [](Communicator& ranks, const at::Tensor& tensor, int root) {
            ranks.broadcast(tensor, root)->wait();
          },
          py::arg("tensor"), py::arg("root"), NoGil(), "In place, from rank `root`.");
  module.def(
      "connect",
      [](const LaunchEnvironment& launch, bool cuda, double timeout_s) {
        return comm::connect(launch, cuda ? c10::kCUDA : c10::kCPU, milliseconds(timeout_s));
      },
      py::arg("launch"), py::arg("cuda"), py::arg("timeout_s"), NoGil(),
      "Ranks that a launcher started, over NCCL if cuda, else over Gloo.");
  module.def("connect_at", &connect_at, py::arg("store"), py::arg("rank"), py::arg("world_size"),
             py::arg("device_index"), py::arg("timeout_s"),
             "Ranks that meet at a torch.distributed store, over NCCL if there is a device_index.");
}

}  // namespace equigrad::python
