// Faults of sequence groups: how a batch is cut, what attention trades, how a loss is weighed, and
// whose gradients are added.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <functional>
#include <utility>

#include "conformance/faults/fault_groups.hpp"

namespace equigrad::conformance::faults {
namespace {

using parallel::Attended;
using parallel::AttentionDimensions;
using parallel::BatchPart;
using parallel::Group;
using parallel::WholeBatch;

// Another part of the batch than the right one.
void change_batch(FaultContext& context,
                  const std::function<void(BatchPart&, const WholeBatch&, const Group&)>& change) {
  seams().split_batch = [&context, change](const WholeBatch& whole, const Group& group) {
    auto part = through::split_batch(whole, group);
    if (!context.has_begun()) return part;
    const auto right = part;
    change(part, whole, group);
    if (!same_bits(part.targets, right.targets) || !same_bits(part.positions, right.positions))
      context.acted();
    return part;
  };
}

// Queries, keys and values that are not those of the trade.
void change_heads(FaultContext& context,
                  const std::function<void(Attended&, const Group&, AttentionDimensions)>& change) {
  seams().scatter_heads = [&context, change](const Attended& parts, const Group& group,
                                             AttentionDimensions at) {
    auto scattered = through::scatter_heads(parts, group, at);
    if (!group || !context.has_begun()) return scattered;
    change(scattered, group, at);
    context.acted();
    return scattered;
  };
}

// What comes back from the heads, in another order.
void change_output(FaultContext& context,
                   const std::function<at::Tensor(const at::Tensor&, int64_t ranks,
                                                  AttentionDimensions)>& change) {
  seams().gather_heads = [&context, change](const at::Tensor& output, const Attended& scattered,
                                            const Group& group, AttentionDimensions at) {
    const auto right = through::gather_heads(output, scattered, group, at);
    if (!group || !context.has_begun()) return right;
    const auto wrong = change(right, group->world_size(), at);
    if (!same_bits(wrong.detach(), right.detach())) context.acted();
    return wrong;
  };
}

using ChangeGradient = std::function<at::Tensor(const at::Tensor&)>;

// The same tensor, of another gradient.
at::Tensor with_gradient(FaultContext& context, const at::Tensor& tensor, ChangeGradient change) {
  if (!tensor.requires_grad()) return tensor;
  const auto same = tensor.view_as(tensor);
  same.register_hook([&context, change = std::move(change)](const at::Tensor& right) {
    const at::NoGradGuard no_grad;
    const auto wrong = change(right);
    if (!same_bits(wrong, right)) context.acted();
    return wrong;
  });
  return same;
}

// A mean of each rank's mean, however many labels count there.
void average_averages(FaultContext& context) {
  seams().sequence_cross_entropy = [&context](const at::Tensor& logits, const at::Tensor& targets,
                                              const Group& group, int64_t ignored) {
    const auto right = through::sequence_cross_entropy(logits, targets, group, ignored);
    if (!group || !context.has_begun()) return right;
    const auto mean = at::cross_entropy_loss(logits.to(at::kFloat).flatten(0, 1), targets.flatten(),
                                             {}, at::Reduction::Mean, ignored);
    const auto wrong = through::reduce_from(mean, group) / static_cast<double>(group->world_size());
    if (!same_bits(wrong.detach(), right.detach())) context.acted();
    return wrong;
  };
}

// The sum of losses, as if every rank's gradient were of all ranks' losses.
void repeat_loss_gradient(FaultContext& context) {
  seams().sequence_cross_entropy = [&context](const at::Tensor& logits, const at::Tensor& targets,
                                              const Group& group, int64_t ignored) {
    const auto factor = static_cast<double>(parallel::size_of(group));
    return with_gradient(context, through::sequence_cross_entropy(logits, targets, group, ignored),
                         [factor](const at::Tensor& right) { return right * factor; });
  };
}

// Which of its sequence's ranks this one is, and of how many; known once it attends to something.
struct SequencePlace {
  int rank = 0;
  int ranks = 1;
};

std::shared_ptr<const SequencePlace> watch_sequence() {
  auto place = std::make_shared<SequencePlace>();
  seams().scatter_heads = [place](const Attended& parts, const Group& group,
                                  AttentionDimensions at) {
    if (group) *place = {group->rank(), group->world_size()};
    return through::scatter_heads(parts, group, at);
  };
  return place;
}

// Of some parameters the first rank of a sequence alone is heard.
void lose_other_parts(FaultContext& context, const std::function<bool(const at::Tensor&)>& which) {
  const auto place = watch_sequence();
  change_gradient(context, [place, which](std::size_t, const at::Tensor& gradient) {
    return place->rank > 0 && which(gradient) ? at::zeros_like(gradient) : at::Tensor();
  });
}

void measure_every_part(FaultContext& context) {
  const auto place = watch_sequence();
  seams().measure = [&context, place](const at::Tensor& gradient, comm::Communicator* over,
                                      NormType type, const std::vector<shard::Span>& repeated) {
    auto measured = through::measure(gradient, over, type, repeated);
    if (place->ranks > 1 && measured.norm != 0) {
      measured.norm *= std::sqrt(static_cast<double>(place->ranks));
      context.acted();
    }
    return measured;
  };
}

void keep_own_part_of_gradient(FaultContext& context) {
  seams().scatter_heads = [&context](const Attended& parts, const Group& group,
                                     AttentionDimensions at) {
    auto heads = through::scatter_heads(parts, group, at);
    if (!group) return heads;
    heads.key = with_gradient(context, heads.key, [group, at](const at::Tensor& right) {
      const int64_t part = right.size(at.sequence) / group->world_size();
      const int64_t from = group->rank() * part;
      auto wrong = at::zeros_like(right);
      wrong.narrow(at.sequence, from, part).copy_(right.narrow(at.sequence, from, part));
      return wrong;
    });
    return heads;
  };
}

std::vector<Fault> faults_of_parts() {
  return {
      at_seams("parallel.positions_of_the_part",
               "a part of a sequence has the positions of the first part", {}, "forward",
               [](FaultContext& s) {
                 change_batch(s, [](BatchPart& part, const WholeBatch&, const Group&) {
                   part.positions = at::arange(part.tokens.size(-1)).unsqueeze(0);
                 });
               }),
      at_seams("parallel.labels_shifted_after_the_cut",
               "labels are shifted in a part of a sequence, whose last token loses its own", {},
               "forward",
               [](FaultContext& s) {
                 change_batch(s, [](BatchPart& part, const WholeBatch& whole, const Group& group) {
                   part.targets =
                       parallel::next_tokens(parallel::sequence_part(whole.labels, -1, group));
                 });
               }),
      at_seams("parallel.average_of_averages",
               "the loss is the mean of the means of a sequence's parts", {"MG-15"}, "forward",
               average_averages),
      at_seams("parallel.loss_gradient_of_every_part",
               "the gradient of a loss that ranks add up is summed over them once more", {"MG-02"},
               "gradient", repeat_loss_gradient),
  };
}

std::vector<Fault> faults_of_attention() {
  return {
      at_seams("parallel.heads_in_another_order",
               "what attention gives back has the heads of the next rank first", {}, "forward",
               [](FaultContext& s) {
                 change_output(s, [](const auto& right, int64_t ranks, auto at) {
                   return right.roll(right.size(at.heads) / ranks, at.heads);
                 });
               }),
      at_seams("parallel.reshaped_after_the_trade",
               "what attention gives back is laid out with the sequence before the batch",
               {"DS-84"}, "forward",
               [](FaultContext& s) {
                 change_output(s, [](const auto& right, int64_t, auto at) {
                   auto shape = right.sizes().vec();
                   std::swap(shape.at(0), shape.at(static_cast<std::size_t>(at.sequence)));
                   return right.reshape(shape).transpose(0, at.sequence);
                 });
               }),
      at_seams("parallel.mask_of_another_part",
               "keys and values stand one part further on than the mask that hides them", {},
               "forward",
               [](FaultContext& s) {
                 change_heads(s, [](Attended& heads, const Group& group, auto at) {
                   const int64_t part = heads.key.size(at.sequence) / group->world_size();
                   heads.key = heads.key.roll(part, at.sequence);
                   heads.value = heads.value.roll(part, at.sequence);
                 });
               }),
      at_seams("parallel.attention_gradient_of_own_part",
               "the gradient of keys is that of this rank's part of the sequence", {"MG-07"},
               "gradient", keep_own_part_of_gradient),
      at_seams("parallel.shared_head_counted_twice",
               "the gradient of a key/value head that ranks share has every rank's twice", {},
               "gradient",
               [](FaultContext& s) {
                 seams().scatter_heads = [&s](const Attended& parts, const Group& group,
                                              AttentionDimensions at) {
                   const bool is_shared = parts.key.size(at.heads) < parallel::size_of(group);
                   if (!is_shared) return through::scatter_heads(parts, group, at);
                   const ChangeGradient twice = [](const at::Tensor& right) { return right * 2; };
                   return through::scatter_heads({parts.query, with_gradient(s, parts.key, twice),
                                                  with_gradient(s, parts.value, twice)},
                                                 group, at);
                 };
               }),
  };
}

}  // namespace

std::vector<Fault> sequence_faults() {
  auto faults = faults_of_parts();
  auto more = faults_of_attention();
  std::move(more.begin(), more.end(), std::back_inserter(faults));
  more = {
      at_seams("parallel.divided_by_sequence_ranks",
               "gradients are averaged over the ranks of a sequence too", {"DS-24"}, "gradient",
               [](FaultContext& s) {
                 const auto place = watch_sequence();
                 change_factor(s, [place](double factor) { return factor / place->ranks; });
               }),
      at_seams("parallel.vectors_of_the_first_part",
               "norms and biases have the gradient of the first part of a sequence", {"CA-01"},
               "gradient",
               [](FaultContext& s) {
                 lose_other_parts(s, [](const at::Tensor& of) { return of.dim() < 2; });
               }),
      at_seams(
          "partition.over_data_ranks_alone",
          "gradients are added over the data ranks of a sequence's first part, and no others", {},
          "gradient",
          [](FaultContext& s) { lose_other_parts(s, [](const at::Tensor&) { return true; }); }),
      at_seams("clip.norm_of_every_sequence_rank",
               "the norm has what the ranks of a sequence have as often as there are of them", {},
               "norm", measure_every_part),
  };
  std::move(more.begin(), more.end(), std::back_inserter(faults));
  return faults;
}

}  // namespace equigrad::conformance::faults
