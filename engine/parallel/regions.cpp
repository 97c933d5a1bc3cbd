#include "engine/parallel/regions.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <utility>

#include "engine/comm/reduction.hpp"
#include "engine/error.hpp"
#include "engine/kernels/exact_tensor.hpp"

namespace equigrad::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

int64_t wrapped(int64_t dimension, const at::Tensor& tensor) {
  return dimension < 0 ? dimension + tensor.dim() : dimension;
}

Split split_along(const at::Tensor& whole, int64_t dimension, const Segments& segments) {
  Split split = unpacked(whole.sizes().vec(), wrapped(dimension, whole));
  if (!segments.empty()) split.segments = segments;
  return split;
}

// [W, n] from [n]; what gloo has no type for goes as bits.
at::Tensor gathered_rows(const at::Tensor& part, comm::Communicator& group) {
  const auto flat = part.contiguous().view({-1});
  const auto rows = at::empty({group.world_size() * flat.numel()}, flat.options());
  group.all_gather(kernels::as_sent(rows), kernels::as_sent(flat))->wait();
  return rows.view({group.world_size(), -1});
}

std::vector<at::Tensor> gathered(const at::Tensor& part, comm::Communicator& group) {
  if (part.numel() == 0)
    return std::vector<at::Tensor>(static_cast<std::size_t>(group.world_size()), part);
  std::vector<at::Tensor> parts;
  for (const auto& row : gathered_rows(part, group).unbind(0))
    parts.push_back(row.view(part.sizes()));
  return parts;
}

at::Tensor exchanged(const at::Tensor& part, int64_t scatter, int64_t gather,
                     comm::Communicator& group) {
  const int64_t size = group.world_size(), length = part.size(scatter);
  if (length % size != 0)
    throw Error("parallel.all_to_all",
                fmt::format("expected dimension {} to be a multiple of the {} ranks, got {}. Of "
                            "attention it is the number of heads: choose fewer ranks.",
                            scatter, size, length));
  const auto rows = at::stack(part.chunk(size, scatter)).contiguous();
  const auto received = at::empty_like(rows);
  if (rows.numel() > 0)
    group.all_to_all(kernels::as_sent(received.view({-1})), kernels::as_sent(rows.view({-1})))
        ->wait();
  return at::cat(received.unbind(0), gather);
}

using Map = std::function<at::Tensor(const at::Tensor&)>;

struct Transposed final : torch::CustomClassHolder {
  explicit Transposed(Map map) : call(std::move(map)) {}
  Map call;
};

// A linear map of one tensor, and its transpose, neither of which autograd looks into.
struct Region final : Function<Region> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const Map& map,
                            const Map& transposed) {
    context->saved_data["transposed"] =
        c10::IValue::make_capsule(c10::make_intrusive<Transposed>(transposed));
    return map(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled() && gradients[0].requires_grad())
      throw Error("parallel.region",
                  "expected gradients of first order, got a backward pass with create_graph "
                  "through a region of a group. Take gradients of gradients of an unsplit model.");
    const auto held = context->saved_data["transposed"].toCapsule();
    return {static_cast<const Transposed&>(*held).call(gradients[0]), {}, {}};
  }
};

at::Tensor through(const at::Tensor& input, const Map& map, const Map& transposed) {
  return Region::apply(input, map, transposed);
}

at::Tensor same(const at::Tensor& tensor) { return tensor.view_as(tensor); }

}  // namespace

at::Tensor part_of(const at::Tensor& whole, const Split& split, int64_t rank, int64_t size) {
  std::vector<at::Tensor> pieces;
  for (const auto& run : runs(split, rank, size))
    pieces.push_back(whole.narrow(split.dimension, run.whole, run.length));
  return at::cat(pieces, split.dimension);
}

at::Tensor whole_of(const std::vector<at::Tensor>& parts, const Split& split) {
  const auto whole = at::empty(split.shape, parts.front().options());
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    for (const auto& run :
         runs(split, static_cast<int64_t>(rank), static_cast<int64_t>(parts.size()))) {
      whole.narrow(split.dimension, run.whole, run.length)
          .copy_(parts[rank].narrow(split.dimension, run.local, run.length));
    }
  }
  return whole;
}

at::Tensor whole_over(const at::Tensor& part, const Split& split, comm::Communicator& group) {
  return whole_of(gathered(part, group), split);
}

at::Tensor sum_over(const at::Tensor& part, const Group& group) {
  const int64_t size = size_of(group), numel = part.numel();
  if (size == 1 || numel == 0) return part;
  const int64_t padding = (size - numel % size) % size;
  auto flat = part.contiguous().view({-1});
  if (padding > 0) flat = at::constant_pad_nd(flat, {0, padding});
  const auto sum = at::empty_like(flat);
  comm::Reduction::all_reduce_sum(*group, ReductionOrder::Pinned, flat, flat.scalar_type())
      .finish(sum);
  return sum.narrow(0, 0, numel).view(part.sizes());
}

at::Tensor largest_over(const at::Tensor& part, const Group& group) {
  if (size_of(group) == 1 || part.numel() == 0) return part;
  return gathered_rows(part, *group).amax(0).view(part.sizes());
}

at::Tensor copy_to(const at::Tensor& whole, const Group& group) {
  if (size_of(group) == 1) return whole;
  return through(whole, same, [group](const at::Tensor& part) { return sum_over(part, group); });
}

at::Tensor reduce_from(const at::Tensor& part, const Group& group) {
  if (size_of(group) == 1) return part;
  // A tensor of its own, not a view of a buffer, so that a caller may write into it.
  return through(
      part, [group](const at::Tensor& each) { return sum_over(each, group).variable_data(); },
      same);
}

at::Tensor scatter_to(const at::Tensor& whole, int64_t dimension, const Group& group,
                      const Segments& segments) {
  if (size_of(group) == 1) return whole;
  const auto split = split_along(whole, dimension, segments);
  check_split(split, group->world_size(), "the tensor that is scattered");
  return through(
      whole,
      [group, split](const at::Tensor& all) {
        return part_of(all, split, group->rank(), group->world_size());
      },
      [group, split](const at::Tensor& part) { return whole_of(gathered(part, *group), split); });
}

at::Tensor gather_from(const at::Tensor& part, int64_t dimension, const Group& group,
                       const Segments& segments) {
  if (size_of(group) == 1) return part;
  auto shape = part.sizes().vec();
  dimension = wrapped(dimension, part);
  shape[static_cast<std::size_t>(dimension)] *= group->world_size();
  auto split = unpacked(shape, dimension);
  if (!segments.empty()) split.segments = segments;
  check_split(split, group->world_size(), "the tensor that is gathered");
  return through(
      part,
      [group, split](const at::Tensor& each) { return whole_of(gathered(each, *group), split); },
      [group, split](const at::Tensor& whole) {
        return part_of(whole, split, group->rank(), group->world_size());
      });
}

at::Tensor all_to_all(const at::Tensor& part, int64_t scatter, int64_t gather, const Group& group) {
  if (size_of(group) == 1) return part;
  scatter = wrapped(scatter, part);
  gather = wrapped(gather, part);
  return through(
      part, [=](const at::Tensor& each) { return exchanged(each, scatter, gather, *group); },
      [=](const at::Tensor& each) { return exchanged(each, gather, scatter, *group); });
}

}  // namespace equigrad::parallel
