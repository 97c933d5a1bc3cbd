// Early shards: what is left of parameters that were partitioned before there is an engine
// (engine/zero_init.hpp). The one thing that zero::Init and initialize() share.
//
// Invariants: a parameter with an early shard has an empty storage, and who asks for its data gets
// an error that says so, instead of a null pointer; only what shares no storage may be taken. Its
// entry goes with the parameter, or when something else has filled it (set_data, an engine).
// Shapes: a shard is [shard_numel], padding zero, in the type of the parameter.
// Errors: none.
// Depends on: ATen tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace equigrad::parameter {

struct EarlyShard {
  at::Tensor shard;
  int64_t number = 0;  // of the parameter, in the order of partition
  int rank = 0;
  int world_size = 1;
};

// Takes the parameter's data away.
void keep_early_shard(const at::Tensor& parameter, EarlyShard shard);
std::optional<EarlyShard> early_shard(const at::Tensor& parameter);
// The parameter's storage is `whole`'s from now on.
void give_back(const at::Tensor& parameter, const at::Tensor& whole);
void forget_early_shard(const at::Tensor& parameter);

}  // namespace equigrad::parameter
