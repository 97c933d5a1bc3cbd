// Layers: those of torch::nn that a tensor group splits, and their forms without a module.
//
//   auto up = parallel::ColumnLinear(512, 2048, mesh.tensor());     // each rank some outputs
//   auto down = parallel::RowLinear(2048, 512, mesh.tensor());      // each rank some inputs
//
// A column takes an input that every rank has and gives this rank's part of the output; a row takes
// such a part and gives the whole output, its bias added once. An embedding has some entries of the
// vocabulary on each rank and gives the whole rows; the cross entropy takes each rank's logits of
// those entries. (Shoeybi et al., Megatron-LM, 2019, arXiv:1909.08053.)
//
// Invariants: a layer begins as the unsplit one of torch::nn begins from the same random numbers,
// those of the group's first rank; with a null group it is that one. Parameters are this rank's
// parts, and marked as such (split_marks.hpp); a row's bias is whole. Sums over ranks are those of
// regions.hpp: an embedding's have one summand that is not zero, so it changes no bit.
// Shapes: weight [out, in], of a column [out / T, in], of a row [out, in / T]; an embedding
// [entries / T, width]; logits [rows, entries / T] and targets [rows] int64, the loss a scalar.
// Errors: equigrad::Error for sizes that the group does not divide, for a target that is no entry
// of the vocabulary (on a CPU; elsewhere the device's assertion, as torch's).
// Depends on: regions, split_marks; torch::nn.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <optional>

#include "engine/parallel/regions.hpp"

namespace equigrad::parallel {

at::Tensor column_linear(const at::Tensor& whole, const at::Tensor& weight, const at::Tensor& bias,
                         const Group& group);
at::Tensor row_linear(const at::Tensor& part, const at::Tensor& weight, const at::Tensor& bias,
                      const Group& group);
// `padding`: an entry of the whole whose rows give no gradient, as torch's padding_idx.
at::Tensor embedding(const at::Tensor& indices, const at::Tensor& weight, const Group& group,
                     std::optional<int64_t> padding = std::nullopt);

constexpr int64_t kIgnoredTarget = -100;  // as torch

// -log softmax of each row's target, in fp32 [rows]: log(sum of exp(x - largest)) less (the
// target's x - largest), as torch rounds it; 0 where the target is ignored.
at::Tensor cross_entropy_by_row(const at::Tensor& logits, const at::Tensor& targets,
                                const Group& group, int64_t ignored = kIgnoredTarget);
// Their mean over the targets that are not ignored.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const Group& group,
                         int64_t ignored = kIgnoredTarget);

class ColumnLinearImpl : public torch::nn::Module {
 public:
  // `segments`: of a packed weight, the outputs of each matrix in it.
  ColumnLinearImpl(int64_t in, int64_t out, Group group, bool with_bias = true,
                   const Segments& segments = {});
  at::Tensor forward(const at::Tensor& whole);
  at::Tensor weight, bias;

 private:
  Group group_;
};
TORCH_MODULE(ColumnLinear);

class RowLinearImpl : public torch::nn::Module {
 public:
  RowLinearImpl(int64_t in, int64_t out, Group group, bool with_bias = true);
  at::Tensor forward(const at::Tensor& part);
  at::Tensor weight, bias;

 private:
  Group group_;
};
TORCH_MODULE(RowLinear);

class EmbeddingImpl : public torch::nn::Module {
 public:
  EmbeddingImpl(int64_t entries, int64_t width, Group group);
  at::Tensor forward(const at::Tensor& indices);
  at::Tensor weight;

 private:
  Group group_;
};
TORCH_MODULE(Embedding);

class CrossEntropyImpl : public torch::nn::Module {
 public:
  explicit CrossEntropyImpl(Group group) : group_(std::move(group)) {}
  at::Tensor forward(const at::Tensor& logits, const at::Tensor& targets) {
    return cross_entropy(logits, targets, group_);
  }

 private:
  Group group_;
};
TORCH_MODULE(CrossEntropy);

}  // namespace equigrad::parallel
