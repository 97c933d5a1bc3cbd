// Binding: the engine as the Python module equigrad._core. Python's own part is python/equigrad/.
//
// Invariants: nothing is computed here. Every call that may wait for another rank, or run an
// operator, gives the GIL back; hooks and observers take it. An exception keeps its kind and, if it
// was Python's, its traceback: equigrad.Error, equigrad.ConfigError, equigrad.CommunicationError,
// else what torch makes of it.
// Shapes: tensors are those of engine.hpp, by torch's own casters.
// Errors: those of the calls.
// Depends on: engine.hpp, comm/launch, parallel/layers, parallel/tensor_plan,
// parameter/early_shards, pybind11 as torch ships it.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace equigrad {
class Engine;
}

namespace equigrad::python {

// All that both modules have, _core and the harness's.
void bind_core(py::module_& module);

void bind_errors(py::module_& module);
void bind_ranks(py::module_& module);
void bind_parallel(py::module_& module);
void bind_sequence(py::module_& module);
void bind_split_random(py::module_& module);
void bind_engine(py::module_& module);
void bind_early_shards(py::module_& module);
void bind_checkpoint(py::module_& module, py::class_<Engine>& engine);

}  // namespace equigrad::python
