// Early shards: what is left of parameters that were partitioned before there is an engine
// (engine/zero_init.hpp). The one thing that zero::Init and initialize() share.
//
// Invariants: a parameter with an early shard has a storage without data; its entry goes with it,
// or when an engine has taken the shard over.
// Shapes: a shard is [shard_numel], padding zero, in the type of the parameter.
// Errors: none.
// Depends on: ATen tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace equigrad::parameter {

struct EarlyShard {
  at::Tensor shard;
  int rank = 0;
  int world_size = 1;
};

void keep_early_shard(const at::Tensor& parameter, EarlyShard shard);
std::optional<EarlyShard> early_shard(const at::Tensor& parameter);
void forget_early_shard(const at::Tensor& parameter);

}  // namespace equigrad::parameter
