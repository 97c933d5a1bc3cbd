// Replicas: every parameter whole on every rank, filled after each update by bucketed all-gathers
// (stages 1, 2) or straight from the rank's own masters (stage 0).
#include <ATen/ops/empty.h>

#include <utility>

#include "engine/parameter/parameters.hpp"

namespace equigrad::parameter {
namespace {

// Neighbouring slots that are gathered together: columns [begin, end) of the flat shard space.
struct Gather {
  struct Part {
    std::size_t parameter;
    int64_t offset;  // inside the gather's columns
    int64_t shard_numel;
  };
  int64_t begin = 0;
  int64_t end = 0;
  bool lower_precision = false;
  std::vector<Part> parts;
};

std::vector<Gather> plan_gathers(const layout::BucketPlan& plan, int64_t bucket_size_numel) {
  std::vector<Gather> gathers;
  for (const auto& bucket : plan.buckets()) {
    for (const auto& slot : bucket.slots) {
      const int64_t begin = bucket.offset + slot.offset;
      const int64_t end = begin + slot.shard_numel;
      if (gathers.empty() || gathers.back().lower_precision != bucket.lower_precision ||
          (end - gathers.back().begin) * plan.shards() > bucket_size_numel) {
        gathers.push_back({begin, begin, bucket.lower_precision, {}});
      }
      auto& gather = gathers.back();
      gather.parts.push_back({slot.parameter, begin - gather.begin, slot.shard_numel});
      gather.end = end;
    }
  }
  return gathers;
}

class Replicas final : public Parameters {
 public:
  explicit Replicas(const Context& context)
      : context_(context),
        gathers_(plan_gathers(context.plan, context.zero.allgather_bucket_size)) {
    for (std::size_t i = 0; i < context_.tensors.size(); ++i) adopt(i);
    publish();
  }

  void publish() override {
    for (const auto& gather : gathers_) publish(gather);
  }
  void publish(std::size_t parameter) override {
    const auto at = context_.plan.slot_of(parameter);
    if (!at) return;
    const auto& slot = context_.plan.slot(*at);
    const auto& bucket = context_.plan.buckets()[at->bucket];
    const int64_t begin = bucket.offset + slot.offset;
    publish(Gather{begin,
                   begin + slot.shard_numel,
                   bucket.lower_precision,
                   {{parameter, 0, slot.shard_numel}}});
  }

  at::Tensor whole(std::size_t parameter) override {
    return context_.tensors[parameter].detach().clone();
  }
  void hold(std::size_t parameter) override {
    const auto& before = held_[parameter] = whole(parameter);
    context_.ledger.charge(trace::Category::Gathered, static_cast<int64_t>(before.nbytes()));
  }
  void let_go(std::size_t parameter, bool keep) override {
    const auto before = held_.extract(parameter).mapped();
    context_.ledger.credit(trace::Category::Gathered, static_cast<int64_t>(before.nbytes()));
    if (!keep) context_.tensors[parameter].detach().copy_(before);
  }
  at::Tensor as_seen(const at::Tensor& masters, bool lower_precision) const override {
    return context_.as_seen(masters, lower_precision);
  }
  void end_of_pass() override {}
  void rethrow_failure() override {}

 private:
  // The model's tensor in the compute dtype, contiguous, in memory of its own. At stage 0 it could
  // be a view of the masters; but a matrix product's bits depend on the alignment of its operands
  // (measured: MKL, matrices of 5 x 5), and a slot of the flat space may start anywhere.
  void adopt(std::size_t i) {
    auto tensor = context_.tensors[i];
    const auto dtype = tensor.is_floating_point() ? context_.dtype : tensor.scalar_type();
    const auto values = tensor.detach().to(context_.communicator.device(), dtype);
    tensor.set_data(values.clone(at::MemoryFormat::Contiguous));
    context_.ledger.charge(trace::Category::Parameters, static_cast<int64_t>(tensor.nbytes()));
  }

  void publish(const Gather& gather) {
    auto columns = context_.masters.narrow(0, gather.begin, gather.end - gather.begin);
    auto shard =
        columns.to(context_.communicator.device(), context_.wire_dtype(gather.lower_precision));
    at::Tensor rows = shard.view({1, shard.numel()});
    if (context_.plan.shards() > 1) {
      const int64_t world = context_.plan.shards();
      auto gathered = at::empty({world * shard.numel()}, shard.options());
      const auto bytes = static_cast<int64_t>(gathered.nbytes());
      context_.ledger.charge(trace::Category::Gathered, bytes);
      context_.communicator.all_gather(gathered, shard)->wait();
      context_.ledger.credit(trace::Category::Gathered, bytes);
      rows = gathered.view({world, shard.numel()});
    }
    for (const auto& part : gather.parts) {
      copy_out(rows.narrow(1, part.offset, part.shard_numel),
               context_.tensors[part.parameter].detach().view({-1}));
    }
  }

  Context context_;
  std::vector<Gather> gathers_;
};

}  // namespace

std::unique_ptr<Parameters> make_replicas(const Context& context) {
  return std::make_unique<Replicas>(context);
}

}  // namespace equigrad::parameter
