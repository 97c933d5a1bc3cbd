#include "engine/parameter/page_table.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "engine/layout/partition.hpp"
#include "engine/parameter/early_shards.hpp"

namespace equigrad::parameter {

namespace {

// This rank's slice of a whole.
void copy_slice(const Context& context, const at::Tensor& whole, const at::Tensor& shard) {
  const layout::Partition partition(whole.numel(), context.communicator.world_size());
  const auto mine = partition.range(context.communicator.rank());
  shard.narrow(0, 0, mine.numel())
      .copy_(whole.detach().reshape({-1}).narrow(0, mine.begin, mine.numel()));
}

// Where shards are, which may be another place than where operators run.
at::TensorOptions home_of(const Context& context, at::ScalarType dtype) {
  const auto device = context.communicator.device();
  const auto& offload = context.zero.offload_param;
  const bool moves = offload.to_cpu && !device.is_cpu();
  return at::TensorOptions()
      .dtype(dtype)
      .device(moves ? at::Device(at::kCPU) : device)
      .pinned_memory(moves && offload.pin_memory);
}

// The masters themselves, if they have the parameters' type and place.
at::Tensor shards_of(const Context& context) {
  const auto home = home_of(context, context.dtype);
  const auto& masters = context.masters;
  if (masters.scalar_type() == context.dtype && masters.device() == home.device()) return masters;
  return at::empty(masters.sizes(), home).copy_(masters);
}

}  // namespace

PageTable::PageTable(const Context& context)
    : masters_(context.masters), shards_(shards_of(context)), page_of_(context.tensors.size()) {
  if (!shards_.is_same(masters_)) {
    context.ledger.charge(memory::Category::Parameters, static_cast<int64_t>(shards_.nbytes()));
  }
  for (std::size_t i = 0; i < context.tensors.size(); ++i) adopt(context, i);
}

// Takes the tensor's data away, but a resident's memory; what remains is its shard.
void PageTable::adopt(const Context& context, std::size_t parameter) {
  auto tensor = context.tensors[parameter];
  if (tensor.numel() == 0) {
    if (tensor.is_floating_point()) tensor.set_data(tensor.detach().to(context.dtype));
    return;
  }
  const auto dtype = tensor.is_floating_point() ? context.dtype : tensor.scalar_type();
  const auto options = tensor.options().dtype(dtype).device(context.communicator.device());
  const int world = context.communicator.world_size();
  const layout::Partition partition(tensor.numel(), world);
  Page page;
  page.tensor = tensor;
  if (const auto where = context.plan.slot_of(parameter)) {
    const auto& bucket = context.plan.buckets()[where->bucket];
    const int64_t begin = bucket.offset + bucket.slots[where->slot].offset;
    page.shard = shards_.narrow(0, begin, partition.shard_numel());
    const auto communication = context.communication_dtype(bucket.lower_precision);
    if (communication != context.dtype) {
      page.shard = page.shard.to(communication);
      rounded_.push_back({begin, page.shard});
      context.ledger.charge(memory::Category::Parameters,
                            static_cast<int64_t>(page.shard.nbytes()));
    }
  } else {
    page.shard = at::zeros({partition.shard_numel()}, home_of(context, dtype));
    if (const auto early = early_shard(tensor))
      page.shard.copy_(early->shard);
    else
      copy_slice(context, tensor, page.shard);
    context.ledger.charge(memory::Category::Parameters, static_cast<int64_t>(page.shard.nbytes()));
  }
  forget_early_shard(tensor);
  tensor.set_data(at::empty_strided(tensor.sizes(), kept_strides(tensor), options));
  page.persistent = tensor.numel() <= context.zero.stage3_param_persistence_threshold;
  page.resident = page.persistent && page.is_small() && tensor.is_cpu() && tensor.is_contiguous() &&
                  page.shard.scalar_type() == tensor.scalar_type();
  if (page.resident) {
    page.bytes = static_cast<int64_t>(tensor.nbytes());
    context.ledger.charge(memory::Category::Gathered, page.bytes);
  } else {
    page.bytes = (tensor.is_contiguous() ? partition.padded_numel() : tensor.numel()) *
                 static_cast<int64_t>(tensor.element_size());
    page.disown();
  }
  page_of_[parameter] = pages_.size();
  pages_.push_back(std::move(page));
}

void PageTable::keep(const Context& context, std::size_t parameter) {
  copy_slice(context, context.tensors[parameter], pages_[*page_of_[parameter]].shard);
}

void PageTable::refresh() { refresh(0, masters_.numel()); }

void PageTable::refresh(int64_t begin, int64_t numel) {
  for (const auto& rounded : rounded_) {
    if (rounded.begin < begin || rounded.begin >= begin + numel) continue;
    rounded.shard.copy_(masters_.narrow(0, rounded.begin, rounded.shard.numel()));
  }
  if (shards_.is_same(masters_)) return;
  shards_.narrow(0, begin, numel).copy_(masters_.narrow(0, begin, numel));
}

}  // namespace equigrad::parameter
