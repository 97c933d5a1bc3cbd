#include "engine/core/whole_tensor.hpp"

#include <algorithm>

#include "engine/core/training_engine.hpp"

namespace equigrad::core {
namespace {

int64_t begin_of(const Parts& parts, std::size_t parameter) {
  const auto at = parts.model.plan.slot_of(parameter);
  if (!at) return 0;  // an empty parameter
  return parts.model.plan.buckets()[at->bucket].offset + parts.model.plan.slot(*at).offset;
}

bool is_split(const Parts& parts, std::size_t parameter) {
  return parts.group.mesh.tensor() && parts.model.splits[parameter];
}

}  // namespace

WholeTensor whole_tensor(const Parts& parts, std::size_t parameter) {
  if (!is_split(parts, parameter)) return {parts.model.table[parameter].shape, {}, 0};
  const auto& split = *parts.model.splits[parameter];
  const auto& tensor = *parts.group.mesh.tensor();
  return {
      split.shape,
      checkpoint::Cut{
          .dimension = split.dimension, .segments = split.segments, .parts = tensor.world_size()},
      tensor.rank()};
}

std::vector<checkpoint::Stretch> stretches(const WholeTensor& whole, const layout::Range& range) {
  if (!whole.cut)
    return {{.part = 0, .whole = range.begin, .local = range.begin, .numel = range.numel()}};
  std::vector<checkpoint::Stretch> all;
  for (auto begin = range.begin; begin < range.end; begin += all.back().numel) {
    all.push_back(checkpoint::stretch_of_part(*whole.cut, whole.shape, whole.part, begin));
    all.back().numel = std::min(all.back().numel, range.end - begin);
  }
  return all;
}

OwnedPart kept_part(const Parts& parts, std::size_t parameter) {
  const int shards = parts.model.plan.shards();
  const int rank = shards == 1 ? 0 : parts.group.communicator->rank();
  return {layout::Partition(parts.model.table[parameter].numel, shards).range(rank),
          begin_of(parts, parameter)};
}

OwnedPart written_part(const Parts& parts, std::size_t parameter) {
  const auto& communicator = *parts.group.communicator;
  auto range = layout::Partition(parts.model.table[parameter].numel, communicator.world_size())
                   .range(communicator.rank());
  const auto kept = kept_part(parts, parameter);
  if (const auto& tensor = parts.group.mesh.tensor(); tensor && !is_split(parts, parameter)) {
    // All ranks of a tensor group have it: they share the work.
    const auto own = layout::Partition(range.numel(), tensor->world_size()).range(tensor->rank());
    range = {range.begin + own.begin, range.begin + own.end};
  }
  return {range, kept.begin + range.begin - kept.range.begin};
}

}  // namespace equigrad::core
