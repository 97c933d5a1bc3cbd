// Faults of the partition: which elements are a rank's, and in what order ranks follow.
#include <ATen/ATen.h>

#include "conformance/faults/fault_groups.hpp"
#include "conformance/faults/forwarding_communicator.hpp"

namespace equigrad::conformance::faults {
namespace {

// What rank 0 should get goes to rank 1, and the other way round.
class SwappedShards : public ForwardingCommunicator {
 public:
  SwappedShards(std::shared_ptr<comm::Communicator> communicator, FaultContext& context)
      : ForwardingCommunicator(std::move(communicator)), context_(context) {}
  bool trades() const override { return false; }  // a rank's own row is one of the two

 private:
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    if (world_size() < 2 || !context_.has_begun()) return send(by, output, input);
    auto rows = input.clone().view({world_size(), -1});
    const auto first = rows[0].clone();
    rows[0].copy_(rows[1]);
    rows[1].copy_(first);
    if (!same_bits(rows, input)) context_.acted();
    return send(by, output, rows.view(-1));
  }

  FaultContext& context_;
};

Fault intervals_in_wrong_order() {
  Fault fault = at_seams("partition.intervals_in_wrong_order",
                         "shards of two ranks are stitched together in the wrong order", {"DS-31"},
                         "gradient", nullptr);
  fault.wrap = [](std::shared_ptr<comm::Communicator> communicator, FaultContext& context) {
    return std::make_shared<SwappedShards>(std::move(communicator), context);
  };
  return fault;
}

// Gradients of parameters outside of this rank's partition move the others along.
void copy_foreign_gradients(FaultContext& context) {
  seams().update_all = [&context](optimizer::ShardedState& self, const at::Tensor& gradient,
                                  const std::vector<bool>& used) {
    const auto moved = at::roll(gradient, 3);
    if (context.world_size() < 2 || same_bits(moved, gradient))
      return through::update_all(self, gradient, used);
    context.acted();
    through::update_all(self, moved, used);
  };
}

// The last rank takes itself for rank 0 where it looks up its range.
void take_rank_0s_range(FaultContext& context) {
  seams().partition_range = [&context](const layout::Partition& self, int rank) {
    const bool wrong = context.is_last_rank() && rank == context.rank() && self.shards() > 1;
    const auto range = through::partition_range(self, wrong ? 0 : rank);
    if (!(range == through::partition_range(self, rank))) context.acted();
    return range;
  };
}

// ceil for the elements that a rank has, floor for where they begin.
void round_borders_down(FaultContext& context) {
  seams().partition_range = [&context](const layout::Partition& self, int rank) {
    auto range = through::partition_range(self, rank);
    const int64_t begin = rank * (self.numel() / self.shards());
    if (begin != range.begin && range.numel() > 0 && begin + range.numel() <= self.numel()) {
      context.acted();
      range = {begin, begin + range.numel()};
    }
    return range;
  };
}

// The padding is cut off at the front of the gathered whole.
void strip_padding_in_front(FaultContext& context) {
  seams().copy_out = [&context](const at::Tensor& columns, const at::Tensor& flat) {
    const int64_t padding = columns.numel() - flat.numel();
    if (padding == 0 || !context.has_begun()) return through::copy_out(columns, flat);
    const auto moved = at::roll(columns.reshape(-1), -padding).view(columns.sizes());
    if (!same_bits(moved, columns.contiguous())) context.acted();
    through::copy_out(moved, flat);
  };
}

// A parameter that crosses the border between two ranks: the second one's part stays as it is.
void own_border_once(FaultContext& context) {
  const auto layout = watch_layout();
  seams().update_all = [&context, layout](optimizer::ShardedState& self, const at::Tensor& gradient,
                                          const std::vector<bool>& used) {
    auto less = used;
    for (std::size_t i = 0; i < used.size(); ++i) {
      const auto at = layout->plan->slot_of(i);
      if (context.rank() != 1 || !used[i] || !at || layout->plan->shards() == 1) continue;
      less[i] = false;
      context.acted_on(i);
    }
    through::update_all(self, gradient, less);
  };
}

}  // namespace

std::vector<Fault> layout_faults() {
  return {
      intervals_in_wrong_order(),
      at_seams("partition.foreign_gradients_copied",
               "gradients of another rank's parameters move the others along", {"DS-22"}, "update",
               copy_foreign_gradients),
      at_seams("partition.wrong_rank", "the last rank looks up rank 0's range", {}, "forward",
               take_rank_0s_range),
      at_seams("partition.borders_rounded_down", "a shard begins where floor says, not ceil", {},
               "forward", round_borders_down),
      at_seams("partition.padding_cut_in_front",
               "the padding of a gathered parameter is cut off at the wrong end", {"DS-83"},
               "parameter", strip_padding_in_front),
      at_seams("partition.border_owned_once", "rank 1's part of every parameter is never updated",
               {}, "update", own_border_once),
  };
}

}  // namespace equigrad::conformance::faults
