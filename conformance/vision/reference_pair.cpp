#include "conformance/vision/reference_pair.hpp"

#include <ATen/ATen.h>

namespace equigrad::conformance::vision {
namespace {

reference::Recipe recipe_of(const Setting& setting, int stage, double clipping) {
  reference::Recipe recipe;
  recipe.world = setting.ranks;
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
    : setting_(setting),
      album_(album),
      encoder_(make_encoder(setting.seed)),
      captioner_(make_captioner(setting.seed)),
      encoder_stepper_(recipe_of(setting, setting.encoder_stage, kEncoderClipping), encoder_),
      language_stepper_(recipe_of(setting, setting.language_stage, kLanguageClipping), captioner_) {
}

PairRecord ReferencePair::step() {
  PairRecord record;
  for (int64_t index = 0; index < setting_.accumulation; ++index)
    for (int64_t rank = 0; rank < setting_.ranks; ++rank)
      record.losses.push_back(micro_batch(rank, index));
  record.encoder = encoder_stepper_.step();
  record.language = language_stepper_.step();
  ++step_;
  return record;
}

at::Tensor ReferencePair::micro_batch(int64_t rank, int64_t index) {
  const auto dtype = setting_.bf16 ? at::kBFloat16 : at::kFloat;
  const auto batch =
      reference::to_dtype(album_.draw({setting_.seed, step_, rank, index}, setting_.images), dtype);
  const auto features = encoder_->output(batch);
  const auto leaf = features.detach().clone().requires_grad_();
  const auto loss = captioner_->loss({leaf, batch.target});
  language_stepper_.pass(rank, [&] { loss.backward(); });
  const auto handed = encoder_->criterion(features, {batch.input, leaf.grad()});
  encoder_stepper_.pass(rank, [&] { handed.backward(); });
  return loss.detach();
}

}  // namespace equigrad::conformance::vision
