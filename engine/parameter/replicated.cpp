// Replicas: every parameter whole on every rank, filled after each update by bucketed all-gathers
// (stages 1, 2) or straight from the rank's own masters (stage 0).
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <utility>

#include "engine/parameter/store.hpp"

namespace equigrad::parameter {
namespace {

// Slots that are gathered together. A large one goes alone, into the parameter's own memory, if its
// shards fill it as they are sent.
struct Gather {
  struct Part {
    std::size_t parameter;
    int64_t begin;  // of its columns in the flat shard space
    int64_t shard_numel;
  };
  bool in_place = false;
  bool lower_precision = false;
  std::vector<Part> parts;
  int64_t shard_numel = 0;  // of its parts

  void add(const Part& part) {
    parts.push_back(part);
    shard_numel += part.shard_numel;
  }
};

Gather::Part part_of(const layout::Bucket& bucket, const layout::Slot& slot) {
  return {slot.parameter, bucket.offset + slot.offset, slot.shard_numel};
}

bool goes_in_place(const Context& context, const layout::Bucket& bucket, const layout::Slot& slot) {
  return context.plan.shards() > 1 && slot.numel >= layout::kAloneNumel &&
         slot.numel % context.plan.shards() == 0 &&
         context.communication_dtype(bucket.lower_precision) == context.dtype;
}

std::vector<Gather> plan_gathers(const Context& context) {
  std::vector<Gather> alone, together;
  for (const auto& bucket : context.plan.buckets()) {
    for (const auto& slot : bucket.slots) {
      const bool in_place = goes_in_place(context, bucket, slot);
      auto& gathers = in_place ? alone : together;
      if (in_place || gathers.empty() || gathers.back().lower_precision != bucket.lower_precision ||
          (gathers.back().shard_numel + slot.shard_numel) * context.plan.shards() >
              context.zero.allgather_bucket_size) {
        gathers.push_back({in_place, bucket.lower_precision, {}, 0});
      }
      gathers.back().add(part_of(bucket, slot));
    }
  }
  alone.insert(alone.end(), together.begin(), together.end());
  return alone;
}

// A parameter's elements in the order of its shape: its own memory, or a block beside it where its
// strides are others, from which put_back() copies them.
class Flat {
 public:
  Flat(at::Tensor parameter, memory::Ledger& ledger)
      : parameter_(std::move(parameter)),
        is_beside_(!parameter_.is_contiguous()),
        values_(is_beside_ ? at::empty({parameter_.numel()}, parameter_.options())
                           : parameter_.view({-1})),
        charge_(ledger, memory::Category::Gathered,
                is_beside_ ? static_cast<int64_t>(values_.nbytes()) : 0) {}

  const at::Tensor& values() const { return values_; }
  void put_back() const {
    if (is_beside_) parameter_.copy_(values_.view(parameter_.sizes()));
  }

 private:
  at::Tensor parameter_;
  bool is_beside_;
  at::Tensor values_;
  memory::Charge charge_;
};

class Replicas final : public Parameters {
 public:
  explicit Replicas(const Context& context) : context_(context), gathers_(plan_gathers(context)) {
    for (std::size_t i = 0; i < context_.tensors.size(); ++i) adopt(i);
    publish();
  }

  void publish() override { publish(gathers_); }
  void publish(std::size_t parameter, const at::Tensor& slice) override {
    const auto at = context_.plan.slot_of(parameter);
    if (!at) return;
    const auto& bucket = context_.plan.buckets()[at->bucket];
    const auto& slot = context_.plan.slot(*at);
    if (slice.defined())
      context_.masters.narrow(0, bucket.offset + slot.offset, slot.shard_numel).copy_(slice);
    Gather gather{goes_in_place(context_, bucket, slot), bucket.lower_precision, {}, 0};
    gather.add(part_of(bucket, slot));
    publish({gather});
  }

  at::Tensor whole(std::size_t parameter) override {
    return context_.tensors[parameter].detach().clone();
  }
  void pin(std::size_t parameter) override {
    const auto& before = pinned_[parameter] = whole(parameter);
    context_.ledger.charge(memory::Category::Gathered, static_cast<int64_t>(before.nbytes()));
  }
  void unpin(std::size_t parameter, bool keep) override {
    const auto before = pinned_.extract(parameter).mapped();
    context_.ledger.credit(memory::Category::Gathered, static_cast<int64_t>(before.nbytes()));
    if (!keep) context_.tensors[parameter].detach().copy_(before);
  }
  at::Tensor as_seen(const at::Tensor& masters, bool lower_precision) const override {
    return context_.as_seen(masters, lower_precision);
  }
  void settle() override {}
  Traffic end_of_pass() noexcept override { return {}; }
  void rethrow_failure() override {}

 private:
  // The model's tensor in the compute dtype, in memory of its own, with its strides. At stage 0 it
  // could be a view of the masters; but a matrix product's bits depend on the alignment of its
  // operands (measured: MKL, matrices of 5 x 5), and a slot of the flat space may start anywhere.
  void adopt(std::size_t i) {
    auto tensor = context_.tensors[i];
    const auto dtype = tensor.is_floating_point() ? context_.dtype : tensor.scalar_type();
    const auto values = tensor.detach().to(context_.communicator.device(), dtype);
    tensor.set_data(
        at::empty_strided(values.sizes(), kept_strides(tensor), values.options()).copy_(values));
    context_.ledger.charge(memory::Category::Parameters, static_cast<int64_t>(tensor.nbytes()));
  }

  // Those in place need no block, and are sent while the others are copied out.
  void publish(const std::vector<Gather>& gathers) {
    struct UnderWay {
      at::Tensor shard;
      std::unique_ptr<Flat> flat;
      comm::PendingPtr pending;
    };
    std::vector<UnderWay> under_way;
    for (const auto& gather : gathers) {
      auto shard = shard_of(gather);
      if (!gather.in_place) {
        publish(gather, shard);
        continue;
      }
      const auto& tensor = context_.tensors[gather.parts.front().parameter];
      tensor.unsafeGetTensorImpl()->bump_version();  // as any other update in place
      auto flat = std::make_unique<Flat>(tensor.detach(), context_.ledger);
      auto pending = context_.communicator.all_gather(flat->values(), shard);
      under_way.push_back({std::move(shard), std::move(flat), std::move(pending)});
    }
    for (const auto& one : under_way) {
      one.pending->wait();
      one.flat->put_back();
    }
  }

  // The columns of its parts side by side, as they are sent.
  at::Tensor shard_of(const Gather& gather) const {
    const auto& last = gather.parts.back();
    const int64_t begin = gather.parts.front().begin, numel = gather.shard_numel;
    at::Tensor columns;
    if (last.begin + last.shard_numel - begin == numel) {  // as they lie
      columns = context_.masters.narrow(0, begin, numel);
    } else {
      std::vector<at::Tensor> apart;
      for (const auto& part : gather.parts)
        apart.push_back(context_.masters.narrow(0, part.begin, part.shard_numel));
      columns = at::cat(apart);
    }
    return columns.to(context_.communicator.device(),
                      context_.communication_dtype(gather.lower_precision));
  }

  void publish(const Gather& gather, const at::Tensor& shard) {
    at::Tensor rows = shard.view({1, shard.numel()});
    if (context_.plan.shards() > 1) {
      const int64_t world = context_.plan.shards();
      auto gathered = at::empty({world * shard.numel()}, shard.options());
      const auto bytes = static_cast<int64_t>(gathered.nbytes());
      context_.ledger.charge(memory::Category::Gathered, bytes);
      context_.communicator.all_gather(gathered, shard)->wait();
      context_.ledger.credit(memory::Category::Gathered, bytes);
      rows = gathered.view({world, shard.numel()});
    }
    std::vector<int64_t> widths;
    for (const auto& part : gather.parts) widths.push_back(part.shard_numel);
    const auto columns = rows.split_with_sizes(widths, 1);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const auto tensor = context_.tensors[gather.parts[i].parameter].detach();
      if (tensor.is_contiguous() && tensor.dim() == 1) {
        copy_out(columns[i], tensor);
        continue;
      }
      const Flat flat(tensor, context_.ledger);
      copy_out(columns[i], flat.values());
      flat.put_back();
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
