// Seams: the calls between the engine's stations, any of which a fault can take the place of.
//
// The linker leads these calls through here (--wrap, one station a row of seams.def), so the
// engine's objects are those that users get, and there is one build. Without a fault a call goes
// straight on to its station.
//
// Invariants: a fault that takes a call's place goes on by through::; calls that it makes itself
// by that way meet no fault.
// Shapes, units, errors: those of the stations.
// Depends on: the stations' headers.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/autograd/scaled_graph.hpp"
#include "engine/bucket/bucket_queue.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/core/checkpoints.hpp"
#include "engine/core/saved_engine.hpp"
#include "engine/engine.hpp"
#include "engine/gradient/accumulator.hpp"
#include "engine/gradient/micro_batches.hpp"
#include "engine/gradient/window.hpp"
#include "engine/kernels/square_sum.hpp"
#include "engine/kernels/tree_sum.hpp"
#include "engine/kernels/update.hpp"
#include "engine/layout/partition.hpp"
#include "engine/optimizer/sharded_state.hpp"
#include "engine/optimizer/update_rule.hpp"
#include "engine/parallel/distributed_attention.hpp"
#include "engine/parallel/layers.hpp"
#include "engine/parallel/sequence.hpp"
#include "engine/parallel/split_random.hpp"
#include "engine/parameter/page_table.hpp"
#include "engine/schedule/schedule.hpp"
#include "engine/shard/gradient_shard.hpp"

namespace equigrad::conformance::faults {

// The stations themselves.
namespace through {
#define EQUIGRAD_SEAM(result, name, parameters, arguments, station) result name parameters;
#include "conformance/faults/seams.def"
#undef EQUIGRAD_SEAM
}  // namespace through

// What takes a call's place in this process; empty: nothing.
struct Seams {
#define EQUIGRAD_SEAM(result, name, parameters, arguments, station) \
  std::function<result parameters> name;
#include "conformance/faults/seams.def"
#undef EQUIGRAD_SEAM
};
Seams& seams();

// Where the linker leads the calls of a station, by the seam's name.
const void* wrapper_of(const std::string& seam);

}  // namespace equigrad::conformance::faults
