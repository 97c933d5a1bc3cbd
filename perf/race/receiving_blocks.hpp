// Receiving blocks: the memory that reductions receive into, as comm/workspace.hpp gives and keeps
// them, and as layout/launch_schedule.hpp and comm/reduction.hpp ask for them: group by group, each
// launched before the one before it has arrived, Reduction::kInFlight pieces of a bucket.
//
// Invariants: fp32 in the pinned order, an all-reduce of two ranks at most, or a reduce-scatter.
// Units: bytes of a rank, the most of any step.
// Errors: none.   Depends on: comm/reduction.hpp, layout.
#pragma once

#include <cstdint>

#include "engine/layout/bucket_plan.hpp"

namespace equigrad::perf {

int64_t receiving_bytes(const layout::BucketPlan& plan, int world);

}  // namespace equigrad::perf
