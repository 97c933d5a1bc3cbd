// Engine types: what goes into an engine and comes out of it.
//
// Shapes: a parameter keeps its own, and its strides, if they are dense and none of its elements
// overlap (a transposed weight, channels_last); others become what torch::empty_like makes of them.
// Shards are flat, in the order of the shape, whatever the strides; gradients and masters of one
// type, fp32 unless the configuration keeps them in 16 bits, optimizer state likewise.
// Errors: none.
// Depends on: ATen tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace equigrad {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;  // a leaf; its data moves into the engine's keeping, its shape and strides
                      // stay; what its .grad holds is dropped
  std::string module_type = {};  // of the module that owns it, as torch.nn.Linear; for autocast
};

// Parameters that share hyper-parameters; what is not set comes from the configuration.
struct ParameterGroup {
  std::vector<NamedParameter> parameters;
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::string settings = {};  // of an optimizer of the caller's, in words; ranks have the same
};

// What this rank owns of one trainable parameter: flat elements [begin, end) of the whole, padding
// excluded.
struct LocalShard {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor gradient;  // [end - begin], averaged and clipped; only inside on_step, undefined
                        // if no rank used it
  at::Tensor master;    // [end - begin]
  std::map<std::string, at::Tensor>
      state;  // [end - begin] each: exp_avg, exp_avg_sq, momentum_buffer
};

// Elements of parameters that stage 3 gathers for the operators of one cycle, a forward and a
// backward pass; what is whole all the time (stage3_param_persistence_threshold) is not in it.
struct GatherTraffic {
  int64_t gathered_numel = 0;  // in the last cycle
  int64_t planned_numel = 0;   // by Belady's rule, for the uses that were learnt
  int64_t least_numel = 0;     // no schedule under stage3_max_live_parameters gathers less
};

struct Counters {
  int64_t micro_steps = 0;    // calls of step()
  int64_t global_steps = 0;   // boundaries reached, skipped ones included
  int64_t skipped_steps = 0;  // boundaries skipped for a non-finite gradient
  GatherTraffic gathering;    // stage 3
};

}  // namespace equigrad
