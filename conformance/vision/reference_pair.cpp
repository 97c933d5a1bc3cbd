#include "conformance/vision/reference_pair.hpp"

#include <ATen/ATen.h>

#include <utility>

namespace equigrad::conformance::vision {
namespace {

reference::Recipe recipe_of(const Setting& setting, int ranks, int stage, double clipping) {
  reference::Recipe recipe;
  recipe.world = ranks;
  recipe.accumulation_steps = setting.accumulation;
  recipe.optimizer = {.rule = reference::Rule::AdamW, .lr = 3e-3, .weight_decay = 0.01};
  recipe.gradient_clipping = clipping;
  recipe.compute_dtype = setting.bf16 ? at::kBFloat16 : at::kFloat;
  recipe.accumulate_dtype = recipe.compute_dtype;
  recipe.order =
      stage <= 1 ? reference::SumOrder::AddThenReduce : reference::SumOrder::ReduceThenAdd;
  recipe.absolute_sums = false;
  return recipe;
}

}  // namespace

ReferencePair::ReferencePair(const Setting& setting, const Album& album)
    : ReferencePair(setting, [setting, &album](int64_t step, int64_t index) {
        return album.rows({setting.seed, step, 0, index}, setting.images, 0, setting.whole_batch());
      }) {}

ReferencePair::ReferencePair(const Setting& setting, Batches batches)
    : setting_(setting),
      batches_(std::move(batches)),
      encoder_(make_encoder(setting.seed)),
      captioner_(make_captioner(setting.seed)),
      encoder_stepper_(recipe_of(setting, setting.ranks, setting.encoder_stage, kEncoderClipping),
                       encoder_),
      language_stepper_(
          recipe_of(setting, setting.language_ranks(), setting.language_stage, kLanguageClipping),
          captioner_) {}

PairRecord ReferencePair::step() {
  PairRecord record;
  for (int64_t index = 0; index < setting_.accumulation; ++index)
    for (auto& loss : micro_batch(index)) record.losses.push_back(std::move(loss));
  record.encoder = encoder_stepper_.step();
  record.language = language_stepper_.step();
  ++step_;
  return record;
}

std::vector<at::Tensor> ReferencePair::micro_batch(int64_t index) {
  const auto dtype = setting_.bf16 ? at::kBFloat16 : at::kFloat;
  const int64_t rows = setting_.whole_batch(), readers = setting_.language_ranks();
  const auto all = reference::to_dtype(batches_(step_, index), dtype);
  // Part `rank` of `ranks`, as a tensor of its own.
  const auto part = [rows](const at::Tensor& of, int64_t rank, int64_t ranks) {
    return of.narrow(0, rows * rank / ranks, rows * (rank + 1) / ranks - rows * rank / ranks)
        .detach()
        .clone();
  };
  std::vector<at::Tensor> features, gradients, losses;
  for (int64_t rank = 0; rank < setting_.ranks; ++rank)
    features.push_back(encoder_->forward(part(all.input, rank, setting_.ranks)));
  const auto seen = at::cat(features);
  for (int64_t rank = 0; rank < readers; ++rank) {
    const auto leaf = part(seen, rank, readers).requires_grad_();
    const auto loss = captioner_->loss({leaf, part(all.target, rank, readers)});
    language_stepper_.pass(rank, [&] { loss.backward(); });
    gradients.push_back(leaf.grad());
    losses.push_back(loss.detach());
  }
  // The language model's loss is the mean over its ranks, the encoder's gradient that over its own.
  auto handed = at::cat(gradients);
  if (readers != setting_.ranks)
    handed = handed * (static_cast<double>(setting_.ranks) / static_cast<double>(readers));
  for (int64_t rank = 0; rank < setting_.ranks; ++rank) {
    const auto& mine = features[static_cast<std::size_t>(rank)];
    const auto scalar = encoder_->criterion(mine, {{}, part(handed, rank, setting_.ranks)});
    encoder_stepper_.pass(rank, [&] { scalar.backward(); });
  }
  return losses;
}

}  // namespace equigrad::conformance::vision
