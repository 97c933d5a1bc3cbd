// Process slots: how many cases run at the same time on this machine.
//
// Invariants: at least 1; what does not fit into memory is not started. A limit that cannot be read
// is none.
// Units: bytes.   Errors: none.
// Depends on: POSIX, the C++ standard library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace equigrad::conformance {

// What one rank has to itself, with room to spare: LibTorch's libraries are shared by all of them.
constexpr int64_t kRankBytes = 96 * int64_t{1} << 20;

// One more than there are cores, because the ranks of a case often wait for each other; as many as
// fit into `memory_bytes` (0: unknown) with `ranks_a_slot` ranks each.
std::size_t slots_for(unsigned cores, int64_t memory_bytes, int ranks_a_slot);

// What is free on the machine, or within the limit of this process's control group if that is less;
// 0 where neither can be read.
int64_t available_memory_bytes();

}  // namespace equigrad::conformance
