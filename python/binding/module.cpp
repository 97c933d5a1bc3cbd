#include <torch/version.h>

#include "python/binding/binding.hpp"
#include "python/binding/bridge.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The engine. Use the package equigrad, whose calls check what they are given.";
  module.attr("version") = EQUIGRAD_VERSION;
  module.attr("torch_version") = TORCH_VERSION;
  equigrad::python::bind_errors(module);
  equigrad::python::bind_ranks(module);
  equigrad::python::bind_parallel(module);
  equigrad::python::bind_split_random(module);
  equigrad::python::bind_bridge(module);
  equigrad::python::bind_engine(module);
  equigrad::python::bind_early_shards(module);
}
