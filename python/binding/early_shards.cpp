// What zero.Init has partitioned and no engine has taken over yet.
#include "engine/parameter/early_shards.hpp"

#include "python/binding/binding.hpp"

namespace equigrad::python {

void bind_early_shards(py::module_& module) {
  using parameter::EarlyShard;
  py::class_<EarlyShard>(module, "EarlyShard", "This rank's part of a parameter of zero.Init.")
      .def_readonly("shard", &EarlyShard::shard)
      .def(
          "with_values",
          [](EarlyShard early, const at::Tensor& shard) {
            early.shard = shard;
            return early;
          },
          py::arg("shard"));
  module.def("early_shard", &parameter::early_shard, py::arg("parameter"),
             "None where the parameter has its data, or an engine holds it.");
  module.def("give_back", &parameter::give_back, py::arg("parameter"), py::arg("whole"),
             "The parameter's storage is that of `whole` from now on.");
  module.def("keep_early_shard", &parameter::keep_early_shard, py::arg("parameter"),
             py::arg("early"), "Takes the parameter's data away.");
}

}  // namespace equigrad::python
