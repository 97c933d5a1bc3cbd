// Check: conformance/check for models that Python makes.
//
// A subject is a Python object with move_to(device), parameters(), modules(), leaf_modules(), buffers() and
// forward(step, rank, micro_batch, world, dtype, seed), as python/equigrad/_subject.py has it.
//
// Invariants: the calling process is forked, so it has one thread and has run nothing of torch; forks
// tell Python's runtime, before and after. What Python raises in a rank comes back as words with its
// traceback.
// Shapes: those of the model.   Units: those of CheckOptions.
// Errors: equigrad::Error as check() has them.
// Depends on: binding.hpp, conformance/check.
#pragma once

#include "python/binding/binding.hpp"

namespace equigrad::python {

void bind_check(py::module_& module);

}  // namespace equigrad::python
