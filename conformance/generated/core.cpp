#include "conformance/generated/core.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "conformance/cases/model_parts.hpp"

namespace equigrad::conformance {

GatedSizes sizes_of(const WorkloadCore& core) {
  return {.tensor = core.tensor,
          .sequence = core.sequence,
          .vocabulary = core.vocabulary,
          .context = core.context,
          .features = core.features,
          .hidden = core.hidden,
          .heads = core.heads,
          .key_heads = core.key_heads,
          .width = core.width,
          .layers = core.layers,
          .is_tied = core.is_tied,
          .has_qkv_bias = core.has_qkv_bias,
          .splits_loss = core.loss == "split",
          .shifts_labels = true,
          .has_padding = core.has_padding,
          .has_spare = core.has_spare,
          .frozen = core.frozen == "none" ? "" : core.frozen};
}

TensorPlace tensor_place_of(const Workload& workload, int rank) {
  TensorPlace place{.part = rank % workload.tensor_ranks(), .parts = workload.tensor_ranks()};
  if (!workload.core) return place;
  for (const auto& [name, cut] : cuts_of(sizes_of(*workload.core)))
    place.cuts[std::string(kCore) + "." + name] = cut;
  return place;
}

reference::Batch core_batch(const WorkloadCore& core, const at::Generator& generator) {
  const auto tokens =
      at::empty({core.batch, core.context}, at::kLong).random_(0, core.vocabulary, generator);
  auto labels = tokens.clone();
  if (core.labels == "some") labels.masked_fill_(tokens.remainder(3).eq(0), kUncounted);
  if (core.labels == "late") {
    const int64_t part = core.context / core.sequence;
    labels.slice(1, 0, std::min(part + 1, core.context - 1)).fill_(kUncounted);
  }
  const auto last = core.context - 1;
  labels.select(1, last).copy_(tokens.select(1, last));
  return {tokens, labels};
}

int data_rank_of(const Workload& workload, const Pass& pass) {
  return pass.rank / workload.sequence_ranks();
}

int sequence_part_of(const Workload& workload, const Pass& pass) {
  return pass.rank % workload.sequence_ranks();
}

}  // namespace equigrad::conformance
