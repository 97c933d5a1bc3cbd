// Faults of tensor groups: how a model is cut, what its ranks add up, and what is repeated on them.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <functional>
#include <utility>

#include "conformance/faults/fault_groups.hpp"

namespace equigrad::conformance::faults {
namespace {

using parallel::Group;

// What `rank` of the group has there.
at::Tensor part_of_rank(const at::Tensor& own, const Group& group, int rank) {
  const auto nothing = at::full_like(own, -0.0);  // added to any number, changes no bit of it
  return through::sum_over(group->rank() == rank ? own : nothing, group);
}

// As if a weight were one matrix.
parallel::Split as_one(const parallel::Split& split) {
  return parallel::unpacked(split.shape, split.dimension);
}

void cut_across_the_packing(FaultContext& context) {
  seams().part_of = [&context](const at::Tensor& whole, const parallel::Split& split, int64_t rank,
                               int64_t size) {
    auto part = through::part_of(whole, as_one(split), rank, size);
    if (!same_bits(part, through::part_of(whole, split, rank, size))) context.acted();
    return part;
  };
}

void put_together_across_the_packing(FaultContext& context) {
  seams().whole_over = [&context](const at::Tensor& part, const parallel::Split& split,
                                  comm::Communicator& group) {
    auto whole = through::whole_over(part, as_one(split), group);
    if (!same_bits(whole, through::whole_over(part, split, group))) context.acted();
    return whole;
  };
}

// Each rank's bias is added to its part of the sum.
void add_bias_on_every_rank(FaultContext& context) {
  const auto bias = std::make_shared<at::Tensor>();
  seams().row_forward = [bias](parallel::RowLinearImpl& self, const at::Tensor& part) {
    *bias = std::exchange(self.bias, at::Tensor());
    auto output = through::row_forward(self, part);
    self.bias = std::exchange(*bias, at::Tensor());
    return output;
  };
  seams().reduce_from = [&context, bias](const at::Tensor& part, const Group& group) {
    if (!bias->defined()) return through::reduce_from(part, group);
    context.acted();
    return through::reduce_from(part + bias->to(part.scalar_type()), group);
  };
}

at::Generator generator() { return at::globalContext().defaultGenerator(at::kCPU); }

void drop_out_the_same_of_every_part(FaultContext& context) {
  seams().enter_random = [&context](const Group& group, c10::Device device,
                                    parallel::RandomParts of) {
    const auto before = generator().get_state();
    const uint64_t drawn = generator().get<at::CPUGeneratorImpl>()->random64();
    generator().set_state(before);
    const bool has_entered = through::enter_random(group, device, of);
    if (!has_entered || group->rank() == 0) return has_entered;
    generator().set_current_seed(parallel::split_seed(drawn, 0, of));
    context.acted();
    return has_entered;
  };
}

void draw_on_in_a_region(FaultContext& context) {
  seams().leave_random = [&context](parallel::RandomParts of) {
    const auto within = generator().get_state();
    const bool has_left = through::leave_random(of);
    if (!has_left) return has_left;
    generator().set_state(within);
    context.acted();
    return has_left;
  };
}

void leave_partial_sums(FaultContext& context) {
  seams().reduce_from = [&context](const at::Tensor& part, const Group& group) {
    if (!context.has_begun()) return through::reduce_from(part, group);
    context.acted();
    return part.view_as(part);
  };
}

// One rounding after each summand, from the first rank to the last.
void add_in_order_of_ranks(FaultContext& context) {
  seams().reduce_from = [&context](const at::Tensor& part, const Group& group) {
    auto sum = through::reduce_from(part, group);
    const at::NoGradGuard no_grad;
    auto by_rank = part_of_rank(part, group, 0);
    for (int rank = 1; rank < group->world_size(); ++rank)
      by_rank = by_rank + part_of_rank(part, group, rank);
    if (!same_bits(by_rank, sum)) context.acted();
    sum.detach().copy_(by_rank);
    return sum;
  };
}

using ChangeSum = std::function<at::Tensor(const at::Tensor& own, const Group& group)>;

// The input gradient of what every rank has is not the sum of theirs.
void change_input_gradient(FaultContext& context, const ChangeSum& instead) {
  seams().copy_to = [&context, instead](const at::Tensor& whole, const Group& group) {
    if (!whole.requires_grad()) return through::copy_to(whole, group);
    const auto copy = whole.view_as(whole);
    copy.register_hook([&context, instead, group](const at::Tensor& own) {
      const at::NoGradGuard no_grad;
      const auto wrong = instead(own, group);
      if (!same_bits(wrong, through::sum_over(own, group))) context.acted();
      return wrong;
    });
    return copy;
  };
}

// The denominators of the softmax are those of this rank's entries alone.
void sum_own_entries(FaultContext& context) {
  seams().sum_over = [&context](const at::Tensor& part, const Group& group) {
    auto sum = through::sum_over(part, group);
    const bool is_positive = part.gt(0).all().item<bool>();  // what it picks is nothing elsewhere
    if (!is_positive || !context.has_begun()) return sum;
    if (!same_bits(part, sum)) context.acted();
    return part.clone();
  };
}

// Of inputs that stand one place further on.
void take_misplaced_inputs(FaultContext& context) {
  seams().column_forward = [&context](parallel::ColumnLinearImpl& self, const at::Tensor& whole) {
    if (!whole.requires_grad()) return through::column_forward(self, whole);
    const auto weight = std::exchange(self.weight, self.weight.detach());
    const auto output = through::column_forward(self, whole);
    self.weight = weight;
    const auto misplaced = at::linear(whole.detach().roll(1, 1), weight);
    context.acted();
    return output + (misplaced - misplaced.detach());
  };
}

// So many ranks share a model.
std::shared_ptr<const int> watch_tensor_ranks() {
  auto ranks = std::make_shared<int>(1);
  seams().reduce_from = [ranks](const at::Tensor& part, const Group& group) {
    *ranks = group->world_size();
    return through::reduce_from(part, group);
  };
  return ranks;
}

void divide_by_tensor_ranks(FaultContext& context) {
  const auto ranks = watch_tensor_ranks();
  change_factor(context, [ranks](double factor) { return factor / *ranks; });
}

using ChangeRepeated =
    std::function<std::vector<shard::Span>(const std::vector<shard::Span>&, int64_t numel)>;

// The norm leaves out something else.
void change_repeated(FaultContext& context, const ChangeRepeated& change) {
  seams().measure = [&context, change](const at::Tensor& gradient, comm::Communicator* over,
                                       NormType type, const std::vector<shard::Span>& repeated) {
    if (repeated.empty()) return through::measure(gradient, over, type, repeated);
    context.acted();
    return through::measure(gradient, over, type, change(repeated, gradient.numel()));
  };
}

// What the norm left out stays as it was.
void clip_what_was_measured(FaultContext& context) {
  const auto left_out = std::make_shared<std::vector<shard::Span>>();
  seams().measure = [left_out](const at::Tensor& gradient, comm::Communicator* over, NormType type,
                               const std::vector<shard::Span>& repeated) {
    *left_out = repeated;
    return through::measure(gradient, over, type, repeated);
  };
  seams().clip = [&context, left_out](const at::Tensor& gradient, double norm, double threshold) {
    const auto before = gradient.clone();
    const double factor = through::clip(gradient, norm, threshold);
    for (const auto& [begin, end] : *left_out) {
      const auto clipped = gradient.slice(0, begin, end), kept = before.slice(0, begin, end);
      if (!same_bits(clipped, kept)) context.acted();
      clipped.copy_(kept);
    }
    return factor;
  };
}

std::vector<Fault> norm_faults_of_tensor_groups() {
  return {
      at_seams("clip.replicated_counted_on_every_rank",
               "the norm has what every rank of a tensor group has as often as there are ranks",
               {"MG-12"}, "norm",
               [](FaultContext& s) {
                 change_repeated(s,
                                 [](const auto&, int64_t) { return std::vector<shard::Span>(); });
               }),
      at_seams("clip.first_tensor_rank_counted_alone",
               "the norm has the parts of the first rank of a tensor group, and no others",
               {"DS-61"}, "norm",
               [](FaultContext& s) {
                 change_repeated(s, [](const auto&, int64_t numel) {
                   return std::vector<shard::Span>{{0, numel}};
                 });
               }),
      at_seams("clip.replicated_not_clipped",
               "what the norm leaves out on a rank of a tensor group is not clipped there",
               {"DS-66"}, "clip", clip_what_was_measured),
  };
}

}  // namespace

std::vector<Fault> parallel_faults() {
  auto faults = norm_faults_of_tensor_groups();
  std::vector<Fault> others = {
      at_seams("parallel.cut_across_the_packing",
               "a packed weight is cut as if it were one matrix, when the model is made", {},
               "forward", cut_across_the_packing),
      at_seams("parallel.put_together_across_the_packing",
               "a packed weight is put together as if it were one matrix", {}, "parameter",
               put_together_across_the_packing),
      at_seams("parallel.parts_drop_out_the_same",
               "a dropout of parts has one seed on all ranks of a tensor group", {}, "forward",
               drop_out_the_same_of_every_part),
      at_seams("parallel.whole_dropped_out_by_part",
               "behind a dropout of parts the numbers of each rank go on, for what all have whole",
               {}, "forward", draw_on_in_a_region),
      at_seams("parallel.bias_on_every_rank",
               "the bias of a row-parallel layer is added on every rank", {}, "forward",
               add_bias_on_every_rank),
      at_seams("parallel.partial_sums_not_reduced",
               "the output of a row-parallel layer is this rank's part of the sum", {"MG-14"},
               "forward", leave_partial_sums),
      at_seams("parallel.summed_in_order_of_ranks",
               "the parts of a sum are added from rank to rank, each sum rounded", {}, "forward",
               add_in_order_of_ranks),
      at_seams("parallel.loss_of_own_entries",
               "the loss divides by the sum over this rank's part of the vocabulary", {}, "forward",
               sum_own_entries),
      at_seams("parallel.input_gradient_not_summed",
               "the gradient of what every rank has, norms among it, is this rank's part of it",
               {"MG-06"}, "gradient",
               [](FaultContext& s) {
                 change_input_gradient(s, [](const auto& own, const Group&) { return own; });
               }),
      at_seams("parallel.input_gradient_of_another_rank",
               "the gradient of what every rank has is the next rank's part of it", {}, "gradient",
               [](FaultContext& s) {
                 change_input_gradient(s, [](const auto& own, const Group& group) {
                   at::Tensor next;
                   for (int rank = 0; rank < group->world_size(); ++rank) {
                     const auto part = part_of_rank(own, group, rank);
                     if (rank == (group->rank() + 1) % group->world_size()) next = part;
                   }
                   return next;
                 });
               }),
      at_seams("parallel.weight_gradient_of_misplaced_inputs",
               "the weight gradient of a column-parallel layer is of inputs in another order",
               {"TE-03"}, "gradient", take_misplaced_inputs),
      at_seams("parallel.divided_by_tensor_ranks",
               "gradients are divided by the number of ranks that share a model", {}, "gradient",
               divide_by_tensor_ranks),
  };
  std::move(others.begin(), others.end(), std::back_inserter(faults));
  return faults;
}

}  // namespace equigrad::conformance::faults
