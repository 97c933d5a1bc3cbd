// Allocations: counts what LibTorch's CPU allocator hands out, for counts that a gate compares.
//
// Invariants: counts from install() on, of all threads; a block that was handed out before and is
// freed after does not appear. What it returns is aligned as LibTorch's own.
// Units: bytes as asked for.   Errors: none.   Depends on: c10.
#pragma once

#include <cstdint>
#include <functional>

namespace equigrad::perf {

struct Allocations {
  int64_t count = 0, bytes = 0;
  int64_t live_count = 0, live_bytes = 0;  // handed out since install() and not freed
};

// Once a process; not to be taken back.
void install_allocation_counter();
Allocations allocations();

// From now until unwatch(), `note` hears of every new most of live bytes once it has stood until
// this thread's next block comes or goes: whoever books the block has done so by then.
void watch_most(std::function<void(int64_t live_bytes)> note);
void unwatch();

}  // namespace equigrad::perf
