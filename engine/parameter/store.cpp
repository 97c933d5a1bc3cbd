#include "engine/parameter/store.hpp"

#include <ATen/ExpandUtils.h>

#include "engine/kernels/copy_rows.hpp"
#include "engine/layout/partition.hpp"
#include "engine/parameter/early_shards.hpp"

namespace equigrad::parameter {

void fill_masters(const Context& context) {
  for (const auto& bucket : context.plan.buckets()) {
    for (const auto& slot : bucket.slots) {
      const layout::Partition partition(slot.numel, context.plan.shards());
      const int rank = context.plan.shards() == 1 ? 0 : context.communicator.rank();
      const auto mine = partition.range(rank);
      const auto master = context.masters.narrow(0, bucket.offset + slot.offset, mine.numel());
      const auto& tensor = context.tensors[slot.parameter];
      if (const auto early = early_shard(tensor))
        master.copy_(early->shard.narrow(0, 0, mine.numel()));
      else
        master.copy_(tensor.detach().reshape({-1}).narrow(0, mine.begin, mine.numel()));
    }
  }
}

namespace {

bool copy_few(const at::Tensor& columns, const at::Tensor& flat) {
  if (flat.numel() > kernels::kFewNumel || !flat.is_cpu() || !columns.is_cpu() ||
      columns.scalar_type() != flat.scalar_type() || columns.stride(1) != 1 ||
      !flat.is_contiguous())
    return false;
  const int64_t size = flat.element_size(), row_bytes = columns.size(1) * size;
  kernels::copy_rows(flat.mutable_data_ptr(), row_bytes, columns.const_data_ptr(),
                     columns.stride(0) * size, row_bytes, flat.numel() * size);
  flat.unsafeGetTensorImpl()->bump_version();
  return true;
}

}  // namespace

void copy_out(const at::Tensor& columns, const at::Tensor& flat) {
  if (copy_few(columns, flat)) return;
  const int64_t shard_numel = columns.size(1);
  const int64_t rows = flat.numel() / shard_numel;
  const int64_t rest = flat.numel() - rows * shard_numel;
  if (rows != 0) {
    flat.narrow(0, 0, rows * shard_numel)
        .view({rows, shard_numel})
        .copy_(columns.narrow(0, 0, rows));
  }
  if (rest != 0) {
    flat.narrow(0, rows * shard_numel, rest).copy_(columns.select(0, rows).narrow(0, 0, rest));
  }
}

std::vector<int64_t> kept_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::infer_dense_strides(parameter.sizes(), parameter.strides());
}

std::unique_ptr<Parameters> make_keeper(const Context& context, bool sharded) {
  fill_masters(context);
  return sharded ? make_pages(context) : make_replicas(context);
}

}  // namespace equigrad::parameter
