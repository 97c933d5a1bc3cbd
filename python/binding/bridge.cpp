#include "python/binding/bridge.hpp"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/parallel/bridge.hpp"

namespace equigrad::python {
namespace {

using parallel::Bridge;
using parallel::BridgeOptions;
using parallel::Side;
using NoGil = py::call_guard<py::gil_scoped_release>;

std::unique_ptr<Bridge> make_bridge(std::shared_ptr<comm::Communicator> world, const Side& producer,
                                    const Side& consumer, int64_t rows,
                                    std::vector<int64_t> row_sizes, at::ScalarType dtype,
                                    bool gradients, int in_flight,
                                    std::optional<double> gradient_factor) {
  return std::make_unique<Bridge>(std::move(world), producer, consumer,
                                  BridgeOptions{.rows = rows,
                                                .row_sizes = std::move(row_sizes),
                                                .dtype = dtype,
                                                .gradients = gradients,
                                                .in_flight = in_flight,
                                                .gradient_factor = gradient_factor});
}

}  // namespace

void bind_bridge(py::module_& module) {
  py::class_<Side>(module, "Side", "Ranks of a world that make, or take, activations.")
      .def(py::init([](int first, int data, int replicas) {
             return Side{.first = first, .data = data, .replicas = replicas};
           }),
           py::arg("first"), py::arg("data"), py::arg("replicas") = 1)
      .def_readonly("first", &Side::first)
      .def_readonly("data", &Side::data)
      .def_readonly("replicas", &Side::replicas)
      .def_property_readonly("end", &Side::end);
  py::class_<Bridge>(module, "Bridge", "Activations one way and their gradients back.",
                     py::release_gil_before_calling_cpp_dtor())
      .def(py::init(&make_bridge), py::arg("world"), py::arg("producer"), py::arg("consumer"),
           py::arg("rows"), py::arg("row_sizes"), py::arg("dtype"), py::arg("gradients"),
           py::arg("in_flight"), py::arg("gradient_factor"), NoGil())
      .def("send", &Bridge::send, py::arg("output"), NoGil(),
           "Of a producer: this rank's rows. Returns at once.")
      .def("receive_gradient", &Bridge::receive_gradient, NoGil(),
           "Of a producer: the gradient of the oldest message without one.")
      .def("receive", &Bridge::receive, NoGil(),
           "Of a consumer: this rank's rows, a leaf that requires grad if gradients go back.")
      .def(
          "send_gradient",
          [](Bridge& bridge, const std::optional<at::Tensor>& gradient) {
            bridge.send_gradient(gradient.value_or(at::Tensor()));
          },
          py::arg("gradient"), NoGil(),
          "Of a consumer: the gradient of the oldest message without one.")
      .def("finish", &Bridge::finish, NoGil(), "Waits until all that was sent has been received.")
      .def_property_readonly(
          "rows",
          [](const Bridge& bridge) { return py::slice(bridge.rows().begin, bridge.rows().end, 1); },
          "This rank's rows of the whole batch, as a slice.");
}

}  // namespace equigrad::python
