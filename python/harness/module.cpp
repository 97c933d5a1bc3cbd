// The module equigrad._harness: all that _core is, of an engine into which faults can be planted, and
// check(). A process has one of the two.
#include <torch/version.h>

#include "python/binding/binding.hpp"
#include "python/binding/bridge.hpp"
#include "python/harness/check.hpp"

PYBIND11_MODULE(_harness, module) {
  module.doc() =
      "The engine with its harness. Use equigrad.check, which runs it in a process of its own.";
  module.attr("version") = EQUIGRAD_VERSION;
  module.attr("torch_version") = TORCH_VERSION;
  equigrad::python::bind_errors(module);
  equigrad::python::bind_ranks(module);
  equigrad::python::bind_parallel(module);
  equigrad::python::bind_bridge(module);
  equigrad::python::bind_engine(module);
  equigrad::python::bind_early_shards(module);
  equigrad::python::bind_check(module);
}
