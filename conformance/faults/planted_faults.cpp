#include "conformance/faults/planted_faults.hpp"

namespace equigrad::conformance::faults {
namespace {

// Two ranks, three micro-batches, odd sizes: nearly every fault can act.
const char* const kPlain =
    "Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.engine_backward";
// The loss scale doubles after the second step, and what is sent is fp32.
const char* const kScaled =
    "Required.grad.zero1.fp16.w2.accumulation3.clip-off.sgd.irregular.engine_backward";
// Rank 1 overflows in the third step.
const char* const kOverflowing =
    "Required.grad.zero0.fp16.w2.accumulation1.clip-off.sgd.irregular.engine_backward";

}  // namespace

const std::vector<PlantedFault>& planted_faults() {
  static const std::vector<PlantedFault> faults = {
      {"micro_batch_dropped", kPlain}, {"averaged_twice", kPlain},
      {"shard_off_by_one", kPlain},    {"word_lost", kPlain},
      {"gather_stale", kPlain},        {"scale_not_divided", kScaled},
      {"updated_scale", kScaled},      {"overflow_unseen", kOverflowing},
  };
  return faults;
}

}  // namespace equigrad::conformance::faults
