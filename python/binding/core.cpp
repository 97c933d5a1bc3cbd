#include <torch/version.h>

#include "python/binding/binding.hpp"
#include "python/binding/bridge.hpp"

namespace equigrad::python {

void bind_core(py::module_& module) {
  module.attr("version") = EQUIGRAD_VERSION;
  module.attr("torch_version") = TORCH_VERSION;
  bind_errors(module);
  bind_ranks(module);
  bind_parallel(module);
  bind_split_random(module);
  bind_bridge(module);
  bind_engine(module);
  bind_early_shards(module);
}

}  // namespace equigrad::python
