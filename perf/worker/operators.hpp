// Operators: counts the operators that LibTorch runs, so that a count can tell whether anything ran
// beside a collective.
//
// Invariants: counts from install() on, on all threads, operators that others run included.
// Units: operators.   Errors: none.   Depends on: ATen's RecordFunction, in the source.
#pragma once

#include <cstdint>

namespace equigrad::perf {

// Once a process; not to be taken back. Each operator costs a callback: counted runs are not timed.
void install_operator_counter();
int64_t operators();

}  // namespace equigrad::perf
