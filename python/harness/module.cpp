// The module equigrad._harness: all that _core is, of an engine into which faults can be planted, and
// check(). A process has one of the two.
#include "python/binding/binding.hpp"
#include "python/harness/check.hpp"

PYBIND11_MODULE(_harness, module) {
  module.doc() =
      "The engine with its harness. Use equigrad.check, which runs it in a process of its own.";
  equigrad::python::bind_core(module);
  equigrad::python::bind_check(module);
}
