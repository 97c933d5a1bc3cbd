// Faults of the accumulation window: which micro-batches are in it, and what they are divided by.
#include <ATen/ATen.h>

#include "conformance/faults/fault_groups.hpp"

namespace equigrad::conformance::faults {
namespace {

using Which = std::function<bool(const layout::Slot&)>;

// `=` for `+=`: a later micro-batch finds nothing where those slots were.
void forget_earlier(FaultContext& context, Which which) {
  const auto layout = watch_layout();
  seams().bucket_copy_in = [&context, which](bucket::Bucket& self, std::size_t slot,
                                             const at::Tensor& gradient, double weight) {
    const auto columns = self.columns_of(slot);
    const layout::Slot like{0, gradient.numel(), columns.size(1), 0};
    if (context.micro_batch() > 0 && columns.any().item<bool>() && which(like)) {
      columns.zero_();
      context.acted();
    }
    through::bucket_copy_in(self, slot, gradient, weight);
  };
  seams().accumulate = [&context, which, layout](gradient::Accumulator& self, std::size_t bucket,
                                                 at::Tensor sum, double weight) {
    const auto& place = layout->plan->buckets()[bucket];
    for (const auto& slot : place.slots) {
      const int64_t begin = place.offset + slot.offset;
      const bool holds =
          context.micro_batch() > 0 && self.slice(begin, slot.shard_numel).any().item<bool>();
      if (!holds || !which(slot)) continue;
      through::forget(self, begin, slot.shard_numel);
      context.acted_on(slot.parameter);
    }
    through::accumulate(self, bucket, std::move(sum), weight);
  };
}

void clear_in_every_pass(FaultContext& context) {
  seams().window_begin = [&context](gradient::Window& self, double weight, bool expects_step) {
    if (self.progress().passes > 0) {
      through::window_abandon(self, gradient::WindowPart::All);
      context.acted();
    }
    through::window_begin(self, weight, expects_step);
  };
}

void drop_micro_batches(FaultContext& context, std::function<bool(const FaultContext&)> dropped) {
  change_gradient(context, [&context, dropped](std::size_t, const at::Tensor& gradient) {
    return dropped(context) ? at::zeros_like(gradient) : at::Tensor();
  });
}

// The average of every step contains those of the steps before it.
void never_zero(FaultContext& context) {
  auto sum = std::make_shared<at::Tensor>();
  seams().window_average = [&context, sum](gradient::Window& self, double factor) {
    auto average = through::window_average(self, factor);
    if (sum->defined()) {
      context.acted();
      average.add_(*sum);
    }
    *sum = average.clone();
    return average;
  };
}

// Rows of other ranks keep the last pass's gradients until the next reduction.
void keep_foreign_rows(FaultContext& context) {
  auto last = std::make_shared<std::map<int64_t, at::Tensor>>();  // by numel of the parameter
  seams().bucket_copy_in = [&context, last](bucket::Bucket& self, std::size_t slot,
                                            const at::Tensor& gradient, double weight) {
    through::bucket_copy_in(self, slot, gradient, weight);
    const auto columns = self.columns_of(slot);
    const auto now = columns.clone();
    auto& before = (*last)[gradient.numel()];
    if (context.step() > 0 && before.defined() && before.sizes() == now.sizes() &&
        columns.size(0) > 1) {
      before.select(0, context.rank()).zero_();
      columns.add_(before);
      if (!same_bits(columns, now)) context.acted();
    }
    before = now;
  };
}

void start_from_received_bytes(FaultContext& context) {
  const auto layout = watch_layout();
  seams().window_average = [&context, layout](gradient::Window& self, double factor) {
    auto average = through::window_average(self, factor);
    if (context.step() > 0) {
      average.add_(layout->masters);
      context.acted();
    }
    return average;
  };
}

void step_always(FaultContext& context) {
  seams().end_step = [&context](gradient::MicroBatches& self) {
    if (context.micro_batches() > 1) context.acted();
    through::end_step(self);
    self.set_boundary(true);
  };
}

// The flag of the micro-batch before: the second step's boundary comes one micro-batch late.
void step_late(FaultContext& context) {
  seams().end_step = [&context](gradient::MicroBatches& self) {
    through::end_step(self);
    const int64_t done =
        int64_t{context.step()} * context.micro_batches() + context.micro_batch() + 1;
    const bool is_before = done + 1 == 2 * context.micro_batches();
    if (is_before) context.acted();
    self.set_boundary(is_before ? std::optional<bool>(false) : std::nullopt);
  };
}

double passes(const FaultContext& context) { return context.micro_batches(); }

std::vector<Fault> windows() {
  return {
      at_seams(
          "accumulation.overwrites", "a micro-batch's sum replaces that of the earlier ones",
          {"DS-01", "DS-03", "PT-04"}, "gradient",
          [](FaultContext& s) { forget_earlier(s, [](const layout::Slot&) { return true; }); }),
      at_seams("accumulation.large_overwritten",
               "the same, for parameters of more than 16 elements (fused weight gradients)",
               {"TE-02"}, "gradient",
               [](FaultContext& s) {
                 forget_earlier(s, [](const layout::Slot& slot) { return slot.numel > 16; });
               }),
      at_seams("accumulation.cleared_by_every_pass", "every backward pass begins an empty window",
               {"DS-04"}, "gradient", clear_in_every_pass),
      at_seams("accumulation.middle_dropped",
               "only the first and the last micro-batch of a step are stored", {"DS-02"},
               "gradient",
               [](FaultContext& s) {
                 drop_micro_batches(s, [](const FaultContext& context) {
                   return context.micro_batch() > 0 &&
                          context.micro_batch() + 1 < context.micro_batches();
                 });
               }),
      at_seams("accumulation.first_only", "only the first micro-batch of a step is stored", {},
               "gradient",
               [](FaultContext& s) {
                 drop_micro_batches(
                     s, [](const FaultContext& context) { return context.micro_batch() > 0; });
               }),
      at_seams("accumulation.not_zeroed", "a step's gradient contains those of the steps before",
               {"DS-08"}, "gradient", never_zero),
      at_seams("accumulation.foreign_shards_stale",
               "what was sent for other ranks' shards is sent again with the next step's",
               {"DS-19"}, "gradient", keep_foreign_rows),
      at_seams("accumulation.starts_from_received_bytes",
               "from the second step on the window begins with the bytes of parameters", {"MG-08"},
               "gradient", start_from_received_bytes),
      at_seams("accumulation.steps_at_every_micro_batch", "every step() is a boundary", {"HF-03"},
               "forward", step_always),
      at_seams("accumulation.boundary_stale",
               "the boundary of the second step is taken for that of the micro-batch before",
               {"DS-20"}, "scale", step_late),
  };
}

std::vector<Fault> divisors() {
  return {
      at_seams("accumulation.divided_twice", "the average is divided by the micro-batches twice",
               {"DS-12", "HF-02"}, "gradient",
               [](FaultContext& s) {
                 change_factor(s, [&s](double factor) { return factor / passes(s); });
               }),
      at_seams("accumulation.not_divided", "the sum of the micro-batches is not divided", {"DS-16"},
               "gradient",
               [](FaultContext& s) {
                 change_factor(s, [&s](double factor) { return factor * passes(s); });
               }),
      at_seams("accumulation.one_term_not_divided",
               "the gradient of the first parameter is a sum where others are an average",
               {"DS-15"}, "gradient",
               [](FaultContext& s) {
                 change_gradient(s, [&s](std::size_t parameter, const at::Tensor& gradient) {
                   return parameter == 0 ? gradient * passes(s) : at::Tensor();
                 });
               }),
      at_seams("accumulation.divisor_of_another_plan",
               "the divisor is of one micro-batch more than there are", {"HF-04"}, "gradient",
               [](FaultContext& s) {
                 change_factor(s, [&s](double factor) {
                   return static_cast<double>(
                       static_cast<float>(factor * passes(s) / (passes(s) + 1)));
                 });
               }),
  };
}

}  // namespace

std::vector<Fault> gradient_faults() {
  auto faults = windows();
  for (auto& fault : divisors()) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace equigrad::conformance::faults
