#include "python/binding/binding.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The engine. Use the package equigrad, whose calls check what they are given.";
  equigrad::python::bind_core(module);
}
