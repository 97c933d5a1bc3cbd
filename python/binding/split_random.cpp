// Random numbers of what ranks have parts of: regions of the default generator, and their check.
#include "engine/parallel/split_random.hpp"

#include "python/binding/binding.hpp"

namespace equigrad::python {

using parallel::RandomParts;
using parallel::RandomWatch;

void bind_split_random(py::module_& module) {
  using py::arg;
  const auto group = arg("group").none(true);
  py::enum_<RandomParts>(module, "RandomParts", "Of what a region has parts.")
      .value("Tensor", RandomParts::Tensor)
      .value("Sequence", RandomParts::Sequence);
  module.def("split_seed", &parallel::split_seed, arg("drawn"), arg("rank"), arg("of"),
             "The seed of a region.");
  module.def("enter_split_random", &parallel::enter_split_random, group, arg("device"), arg("of"),
             "From here on ranks draw other numbers; whether it was this call that entered.");
  module.def("leave_split_random", &parallel::leave_split_random, arg("of"),
             "Puts the generators' states back; whether there was a region to leave.");
  module.def("abandon_split_random", &parallel::abandon_split_random, arg("of"),
             "The same while an exception is under way.");
  module.def("has_drawn_since_split_random", &parallel::has_drawn_since_split_random, arg("of"),
             "Whether anything was drawn since the last region was left.");
  py::class_<RandomWatch>(module, "RandomWatch", "What is drawn from here on beside regions.")
      .def(py::init<c10::Device>(), arg("device"))
      .def_property_readonly("has_drawn", &RandomWatch::has_drawn)
      .def("check_same", &RandomWatch::check_same, group, py::call_guard<py::gil_scoped_release>(),
           "Whether any rank has drawn; an error if ranks did by other states. Collective.");
}

}  // namespace equigrad::python
