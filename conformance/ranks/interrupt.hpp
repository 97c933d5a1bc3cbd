// Interrupt: SIGINT and SIGTERM as a flag, so that a run can end with a partial report.
//
// Invariants: the first signal sets the flag; a second one ends the process at once.
// Units: none.   Errors: none.   Depends on: POSIX.
#pragma once

namespace equigrad::conformance::ranks {

void watch_interrupts();
int interrupted();  // the signal's number, or 0

}  // namespace equigrad::conformance::ranks
