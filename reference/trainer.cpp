#include "reference/trainer.hpp"

#include <ATen/ATen.h>

#include <utility>

namespace equigrad::reference {

Trainer::Trainer(const Recipe& recipe, const Data& data)
    : Trainer(recipe, make_model(recipe.model, recipe.seed),
              [&data, recipe](int64_t step, int64_t rank, int64_t micro_batch) {
                return data.make_batch(recipe.model, {recipe.seed, step, rank, micro_batch});
              }) {}

Trainer::Trainer(const Recipe& recipe, std::shared_ptr<Model> model, BatchSource batches)
    : recipe_(recipe), stepper_(recipe, std::move(model)), batches_(std::move(batches)) {}

StepRecord Trainer::train_step() {
  std::vector<at::Tensor> losses;
  for (int64_t micro_batch = 0; micro_batch < recipe_.accumulation_steps; ++micro_batch) {
    for (int64_t rank = 0; rank < recipe_.world; ++rank) {
      const Batch batch = to_dtype(batches_(step_, rank, micro_batch), recipe_.compute_dtype);
      const at::Tensor loss = forward(batch);
      const at::Tensor scaled = widen(loss) * stepper_.loss_scale();
      stepper_.pass(rank, [&scaled] { scaled.backward(); });
      losses.push_back(loss.detach().clone());
    }
  }
  StepRecord record = stepper_.step();
  record.losses = std::move(losses);
  ++step_;
  return record;
}

at::Tensor Trainer::forward(const Batch& batch) {
  const AutocastGuard guard = stepper_.autocast();
  return model().loss(batch);
}

}  // namespace equigrad::reference
