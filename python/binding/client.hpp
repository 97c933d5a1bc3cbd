// Client: an optimizer of Python's as the engine's SliceOptimizer.
//
// The object has the methods of SliceOptimizer by name (python/equigrad/_client.py). A slice is
// (name, parameter, begin, end, master); a gradient that no rank has is None.
// Invariants: Python is called with the GIL, from whichever thread the engine is on; the object is
// released with it.
// Shapes: those of engine/api/slice_optimizer.hpp.
// Errors: an exception of the object's comes out of the engine's call as it was raised.
// Depends on: engine/api/slice_optimizer.hpp, pybind11 as torch ships it.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "engine/api/slice_optimizer.hpp"

namespace equigrad::python {

// Null for None.
std::shared_ptr<SliceOptimizer> client_of(const py::object& optimizer);

}  // namespace equigrad::python
