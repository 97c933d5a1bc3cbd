// Core: the network of a workload that its ranks share (WorkloadCore in generator/workload.hpp), as
// cases/gated_model.hpp and on_rank/split_model.hpp are asked for it, and its batches.
//
// Invariants: weights depend on the workload alone; a batch on the data rank, so ranks that share a
// model or a sequence have the same one. Some label counts in every batch.
// Shapes: tokens and labels [batch, context] int64; labels are of their own token.
// Errors: none of its own.
// Depends on: generator/workload.hpp, cases/gated_model.hpp, cases/case_model.hpp.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string>

#include "conformance/cases/case_model.hpp"
#include "conformance/cases/gated_model.hpp"
#include "conformance/cases/twin.hpp"
#include "conformance/generator/workload.hpp"

namespace equigrad::conformance {

inline constexpr const char* kCore = "core";  // its name in the model

GatedSizes sizes_of(const WorkloadCore& core);
// What this rank of all has of the workload's parameters.
TensorPlace tensor_place_of(const Workload& workload, int rank);
reference::Batch core_batch(const WorkloadCore& core, const at::Generator& generator);
// Which of the ranks with batches of their own a pass is of, and which part of the sequence.
int data_rank_of(const Workload& workload, const Pass& pass);
int sequence_part_of(const Workload& workload, const Pass& pass);

}  // namespace equigrad::conformance
