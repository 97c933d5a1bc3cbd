// Bridge binding: parallel::Bridge as _core.Bridge; Python's own part is python/equigrad/_sides.py.
//
// Invariants: every call gives the GIL back, for it may wait for the other side.
// Shapes, errors: those of engine/parallel/bridge.hpp.
// Depends on: engine/parallel/bridge.hpp, pybind11 as torch ships it.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace equigrad::python {

void bind_bridge(py::module_& module);

}  // namespace equigrad::python
