// Faults of the reduction: which ranks are in a sum.
#include <ATen/ATen.h>

#include <cstring>

#include "conformance/faults/fault_groups.hpp"

namespace equigrad::conformance::faults {
namespace {

// Every row of a sum becomes this rank's own: a reduction that this rank is not in.
void keep_local(FaultContext& context, std::function<bool(const FaultContext&)> now) {
  seams().tree_sum = [&context, now](const void* const* inputs, kernels::Element input_type,
                                     int rows, int64_t n, void* output,
                                     kernels::Element output_type) {
    if (!context.has_begun() || !now(context) || rows != context.world_size())
      return through::tree_sum(inputs, input_type, rows, n, output, output_type);
    const auto row_bytes =
        static_cast<std::size_t>(n * (input_type == kernels::Element::Fp32 ? 4 : 2));
    const std::vector<const void*> local(static_cast<std::size_t>(rows), inputs[context.rank()]);
    for (int row = 0; row < rows; ++row)
      if (std::memcmp(inputs[row], inputs[context.rank()], row_bytes) != 0) context.acted();
    through::tree_sum(local.data(), input_type, rows, n, output, output_type);
  };
}

// reduce for all-reduce: the other ranks keep what they gave.
void only_rank_0(FaultContext& context) {
  auto given = std::make_shared<std::map<comm::Reduction*, at::Tensor>>();
  auto last = std::make_shared<std::deque<at::Tensor>>();
  seams().all_reduce = [last](comm::Communicator& communicator, ReductionOrder order,
                              at::Tensor buffer, at::ScalarType result_dtype) {
    last->push_back(buffer.to(result_dtype, false, /*copy=*/true));
    return through::all_reduce(communicator, order, std::move(buffer), result_dtype);
  };
  seams().reduction_finish = [&context, last](comm::Reduction& self, const at::Tensor& into) {
    auto sum = through::reduction_finish(self, into);
    if (last->empty()) return sum;
    const auto own = last->front();
    last->pop_front();
    if (context.rank() == 0 || !context.has_begun() || own.sizes() != sum.sizes()) return sum;
    if (!same_bits(own, sum)) context.acted();
    return own;
  };
}

// A gradient that comes in several parts: only the first counts.
void first_part_only(FaultContext& context) {
  auto seen = std::make_shared<std::set<std::size_t>>();
  seams().window_begin = [seen](gradient::Window& self, double weight, bool expects_step) {
    seen->clear();
    through::window_begin(self, weight, expects_step);
  };
  change_gradient(context, [seen](std::size_t parameter, const at::Tensor& gradient) {
    return seen->insert(parameter).second ? at::Tensor() : at::zeros_like(gradient);
  });
}

void fire_twice(FaultContext& context) {
  seams().window_ready = [&context](gradient::Window& self, std::size_t parameter,
                                    const at::Tensor& gradient) {
    through::window_ready(self, parameter, gradient);
    if (parameter != 0) return;
    context.acted_on(parameter);
    through::window_ready(self, parameter, gradient);
  };
}

// The first bucket's factor goes to the memory of another one.
void scale_another_bucket(FaultContext& context) {
  const auto layout = watch_layout();
  seams().window_average = [&context, layout](gradient::Window& self, double factor) {
    auto average = through::window_average(self, factor);
    const auto& buckets = layout->plan->buckets();
    if (factor == 1.0 || buckets.empty()) return average;
    context.acted();
    average.narrow(0, buckets.front().offset, buckets.front().shard_numel).div_(factor);
    if (buckets.size() > 1)
      average.narrow(0, buckets.back().offset, buckets.back().shard_numel).mul_(factor);
    return average;
  };
}

}  // namespace

std::vector<Fault> reduction_faults() {
  return {
      at_seams("reduction.of_a_copy",
               "every rank keeps its own gradient, as if another tensor were reduced",
               {"DS-06", "PT-03", "PT-06"}, "gradient",
               [](FaultContext& s) { keep_local(s, [](const FaultContext&) { return true; }); }),
      at_seams("reduction.last_micro_batch_local",
               "the last micro-batch is added after the reduction and stays local", {"DS-05"},
               "gradient",
               [](FaultContext& s) {
                 keep_local(s, [](const FaultContext& context) {
                   return context.micro_batch() + 1 == context.micro_batches();
                 });
               }),
      at_seams("reduction.stops_after_the_first_step", "from the second step on nothing is reduced",
               {"PT-02"}, "gradient",
               [](FaultContext& s) {
                 keep_local(s, [](const FaultContext& context) { return context.step() > 0; });
               }),
      at_seams("reduction.only_on_rank_0", "of an all-reduce only rank 0 gets the sum", {"HF-06"},
               "gradient", only_rank_0),
      at_seams("reduction.first_part_only",
               "of a gradient that comes in several parts the first is reduced, the rest is lost",
               {"DS-13"}, "gradient", first_part_only),
      at_seams("reduction.fires_twice", "the hook of the first parameter fires twice in a pass",
               {"DS-56"}, "gradient", fire_twice),
      at_seams("reduction.small_lost_on_one_rank",
               "with one rank parameters of up to 8 elements get no gradient", {"PT-05"},
               "gradient",
               [](FaultContext& s) {
                 change_gradient(s, [&s](std::size_t, const at::Tensor& gradient) {
                   return s.world_size() == 1 && gradient.numel() <= 8 ? at::zeros_like(gradient)
                                                                       : at::Tensor();
                 });
               }),
      at_seams("reduction.sixteen_bits_dropped",
               "16-bit gradients of every other parameter are dropped where sums are fp32",
               {"AP-04"}, "gradient",
               [](FaultContext& s) {
                 change_gradient(s, [](std::size_t parameter, const at::Tensor& gradient) {
                   return gradient.scalar_type() != at::kFloat && parameter % 2 == 1
                              ? at::zeros_like(gradient)
                              : at::Tensor();
                 });
               }),
      at_seams("reduction.scales_another_bucket",
               "the factor of the first bucket goes to the last one", {"MG-09"}, "gradient",
               scale_another_bucket),
  };
}

}  // namespace equigrad::conformance::faults
