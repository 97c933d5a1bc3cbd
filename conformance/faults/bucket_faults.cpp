// Faults of buckets: what lies in a buffer, and where.
#include <ATen/ATen.h>

#include "conformance/faults/fault_groups.hpp"

namespace equigrad::conformance::faults {
namespace {

// What the last pass left is still there when the next step begins.
void keep_entries(FaultContext& context) {
  auto last = std::make_shared<std::map<std::size_t, at::Tensor>>();
  change_gradient(context, [&context, last](std::size_t parameter, const at::Tensor& gradient) {
    auto& before = (*last)[parameter];
    const auto stale = before;
    before = gradient.clone();
    const bool now = context.step() > 0 && context.micro_batch() == 0 && stale.defined();
    return now ? gradient + stale : at::Tensor();
  });
}

void shift_later_slots(FaultContext& context) {
  seams().bucket_copy_in = [&context](bucket::Bucket& self, std::size_t slot,
                                      const at::Tensor& gradient, double weight) {
    const auto columns = self.columns_of(slot);
    if (slot == 0 || columns.size(1) < 2)
      return through::bucket_copy_in(self, slot, gradient, weight);
    const auto held = columns.clone();
    columns.zero_();
    through::bucket_copy_in(self, slot, gradient, weight);
    const auto added = at::roll(columns, 1, 1);
    if (!same_bits(added, columns)) context.acted();
    columns.copy_(held + added);
  };
}

// A parameter larger than the bucket is reduced from a buffer that it was not written to.
void reduce_largest_from_elsewhere(FaultContext& context) {
  const auto layout = watch_layout();
  auto last = std::make_shared<at::Tensor>();
  change_gradient(context, [layout, last](std::size_t, const at::Tensor& gradient) {
    int64_t largest = 0;
    for (const auto& bucket : layout->plan->buckets())
      for (const auto& slot : bucket.slots) largest = std::max(largest, slot.numel);
    if (gradient.numel() != largest) return at::Tensor();
    const auto stale = *last;
    *last = gradient.clone();
    return stale.defined() && stale.sizes() == gradient.sizes() ? stale : at::zeros_like(gradient);
  });
}

void dirty_padding(FaultContext& context) {
  seams().bucket_copy_in = [&context](bucket::Bucket& self, std::size_t slot,
                                      const at::Tensor& gradient, double weight) {
    through::bucket_copy_in(self, slot, gradient, weight);
    const auto columns = self.columns_of(slot);
    for (int64_t at = gradient.numel(); at < columns.numel(); ++at) {
      columns[at / columns.size(1)][at % columns.size(1)].fill_(0.5);
      context.acted();
    }
  };
}

void launch_before_the_last_add(FaultContext& context) {
  change_gradient(context, [](std::size_t parameter, const at::Tensor& gradient) {
    return parameter == 0 ? at::zeros_like(gradient) : at::Tensor();
  });
}

void swap_equal_sizes(FaultContext& context) {
  auto held = std::make_shared<std::map<int64_t, at::Tensor>>();
  change_gradient(context, [held](std::size_t, const at::Tensor& gradient) {
    auto& other = (*held)[gradient.numel()];
    const auto swapped = other;
    other = gradient.clone();
    return swapped.defined() ? swapped.view(gradient.sizes()) : at::Tensor();
  });
}

}  // namespace

std::vector<Fault> bucket_faults() {
  return {
      at_seams("bucket.stale_entries", "a step begins with what the last pass left in the buckets",
               {"DS-14"}, "gradient", keep_entries),
      at_seams("bucket.offset_without_append",
               "all but the first parameter of a bucket lie one element too far", {"DS-23"},
               "gradient", shift_later_slots),
      at_seams("bucket.oversized_from_elsewhere",
               "the largest parameter is reduced from a buffer that it was not written to",
               {"DS-29"}, "gradient", reduce_largest_from_elsewhere),
      at_seams("bucket.padding_dirty", "the padding of a bucket holds what was there before",
               {"DS-29", "DS-45"}, "norm", dirty_padding),
      at_seams("bucket.launched_before_the_last_add",
               "a bucket leaves before its last gradient is in it", {}, "gradient",
               launch_before_the_last_add),
      at_seams("bucket.mixed_up", "parameters of one size get each other's gradients", {},
               "gradient", swap_equal_sizes),
  };
}

}  // namespace equigrad::conformance::faults
