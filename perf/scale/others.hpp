// Others: what a rank of others sends in a step, by what their documents and sources say, all of it
// in rings (network.hpp), in fp32.
//
//   DDP          gradients all-reduced once a window, in buckets of 1 MiB and then 25 MiB, last
//                parameter first, each closed when it is full (Li et al., PyTorch Distributed,
//                VLDB 2020, arXiv 2006.15704; bucket_cap_mb)
//   DeepSpeed 1  gradients all-reduced once a window in buckets of reduce_bucket_size elements,
//                then all parameters gathered in one all-gather (0.19.8, stage_1_and_2.py)
//   DeepSpeed 2  the same after every pass
//   DeepSpeed 3  after every pass gradients reduce-scattered, bucket by bucket; before it
//                parameters gathered, those of at most stage3_param_persistence_threshold elements
//                after the step instead; forward and backward each where they exceed
//                stage3_max_live_parameters, else once a pass; in as few all-gathers as
//                stage3_prefetch_bucket_size lets be, which is the least that it can be (stage3.py)
//
// Sizes are DeepSpeed's defaults. Left out: norms and checks for overflow, a number each.
//
// Bytes that a rank holds between steps, N parameters: DDP 4 N, gradients 4 N, their buckets 4 N,
// AdamW 8 N. DeepSpeed's by the paper's formulas (Rajbhandari et al., arXiv 1910.02054, section 3)
// in fp32, K = 12: parameters 4 N and gradients 4 N, each over W where its stage shards them, and
// K N / W of masters and states; buckets and gathered parameters left out.
//
// Invariants: a stage 0 of DeepSpeed is DDP here.
// Units: elements, bytes.
// Errors: equigrad::Error of the network.
// Depends on: perf/scale/network. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "perf/scale/network.hpp"

namespace equigrad::perf {

struct OtherStep {
  std::int64_t collectives = 0;
  Traffic all;
  std::int64_t held_bytes = 0;
};

// `numels` by registration; `passes` of a window.
OtherStep ddp_step(const std::vector<std::int64_t>& numels, int world, const Network& network);
OtherStep deepspeed_step(int stage, const std::vector<std::int64_t>& numels, int passes, int world,
                         const Network& network);

}  // namespace equigrad::perf
