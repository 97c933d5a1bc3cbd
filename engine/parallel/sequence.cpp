#include "engine/parallel/sequence.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "engine/checkpoint/digest.hpp"
#include "engine/error.hpp"

namespace equigrad::parallel {
namespace {

// Two words of a digest, and the number of elements.
at::Tensor words_of(const at::Tensor& tensor) {
  const auto held = tensor.detach().to(at::kCPU).contiguous();
  const auto digest = checkpoint::digest_of(held.const_data_ptr(), held.nbytes());
  return at::tensor(
      {static_cast<int64_t>(digest.high), static_cast<int64_t>(digest.low), tensor.numel()},
      at::kLong);
}

}  // namespace

void check_same(const at::Tensor& tensor, const Group& group, const std::string& name) {
  if (size_of(group) == 1) return;
  const auto said = comm::exchange(*group, words_of(tensor));
  std::vector<int64_t> other;
  for (int64_t rank = 1; rank < said.size(0); ++rank)
    if (!said[rank].equal(said[0])) other.push_back(group->name_of(rank));
  if (other.empty()) return;
  throw Error(
      "parallel.split_batch",
      fmt::format("expected the same {} on all {} ranks of a sequence, got others on rank{} "
                  "{} than on rank {}. Draw samples by the place among the data "
                  "ranks, such as a sampler's rank / sequence_parallel_size.",
                  name, said.size(0), other.size() == 1 ? "" : "s", fmt::join(other, ", "),
                  group->name_of(0)));
}

at::Tensor sequence_part(const at::Tensor& whole, int64_t dimension, const Group& group) {
  const int64_t ranks = size_of(group);
  if (ranks == 1) return whole;
  const int64_t length = whole.size(dimension);
  if (length % ranks != 0)
    throw Error(
        "parallel.split_batch",
        fmt::format("expected a sequence that its {} ranks divide, got {} positions. Pad it "
                    "to {}, with labels that are ignored.",
                    ranks, length, (length / ranks + 1) * ranks));
  const int64_t part = length / ranks;
  return whole.narrow(dimension, group->rank() * part, part).contiguous();
}

at::Tensor next_tokens(const at::Tensor& labels, int64_t ignored) {
  return at::constant_pad_nd(labels.narrow(-1, 1, labels.size(-1) - 1), {0, 1}, ignored);
}

BatchPart split_batch(const WholeBatch& whole, const Group& group) {
  check_same(whole.tokens, group, "tokens");
  const auto cut = [&](const at::Tensor& tensor) { return sequence_part(tensor, -1, group); };
  const auto positions =
      whole.positions.defined()
          ? whole.positions
          : at::arange(whole.tokens.size(-1), whole.tokens.device()).unsqueeze(0);
  return {.tokens = cut(whole.tokens),
          .targets = whole.labels.defined() ? cut(next_tokens(whole.labels)) : at::Tensor(),
          .positions = cut(positions)};
}

at::Tensor sequence_mean(const at::Tensor& sum_of_losses, const at::Tensor& valid_tokens,
                         const Group& group) {
  if (sum_of_losses.numel() != 1 || valid_tokens.numel() != 1)
    throw Error("parallel.sequence_mean",
                fmt::format("expected one sum of losses and one number of tokens, got {} and {}. "
                            "Sum them over this rank's part.",
                            sum_of_losses.numel(), valid_tokens.numel()));
  auto count = valid_tokens.detach().to(at::kLong).reshape({1});
  if (size_of(group) > 1) count = comm::exchange(*group, count.to(at::kCPU));
  const auto total = static_cast<double>(count.sum().item<int64_t>());
  return reduce_from(sum_of_losses.to(at::kFloat), group) / total;
}

at::Tensor sequence_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                  const Group& group, int64_t ignored) {
  if (logits.dim() != targets.dim() + 1 ||
      logits.sizes().slice(0, targets.sizes().size()) != targets.sizes())
    throw Error("parallel.sequence_cross_entropy",
                fmt::format("expected logits [.., entries] and targets [..], got [{}] and [{}]. "
                            "Targets are labels that were shifted before the sequence was cut "
                            "(split_batch).",
                            fmt::join(logits.sizes(), ", "), fmt::join(targets.sizes(), ", ")));
  const auto sum = at::cross_entropy_loss(logits.to(at::kFloat).reshape({-1, logits.size(-1)}),
                                          targets.reshape({-1}), {}, at::Reduction::Sum, ignored);
  return sequence_mean(sum, targets.ne(ignored).sum(), group);
}

}  // namespace equigrad::parallel
