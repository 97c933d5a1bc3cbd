// Trainer: a model on its own data, `world` ranks in one process, one optimizer step at a time.
//
// Invariants: every micro-batch of every rank is one backward pass of its loss times the loss
//   scale, after a forward under the recipe's autocast; the rest is the Stepper's. The losses that
//   are recorded are not scaled. The batches of a step differ from rank to rank and from
//   micro-batch to micro-batch.
// Shapes: losses are scalars, [micro_batch * world + rank].
// Errors: those of the stepper.
// Depends on: stepper.hpp, data.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "reference/models/data.hpp"
#include "reference/stepper.hpp"

namespace equigrad::reference {

class Trainer {
 public:
  // The batch of (step, rank, micro_batch), floats in any dtype; steps count from 0.
  using BatchSource = std::function<Batch(int64_t step, int64_t rank, int64_t micro_batch)>;

  // The recipe's model on its own data. `data` must outlive the trainer.
  Trainer(const Recipe& recipe, const Data& data);
  // A given fp32 model, which the trainer converts and trains in place.
  Trainer(const Recipe& recipe, std::shared_ptr<Model> model, BatchSource batches);

  // Runs the next optimizer step.
  StepRecord train_step();

  Model& model() { return stepper_.model(); }
  double loss_scale() const { return stepper_.loss_scale(); }

 private:
  at::Tensor forward(const Batch& batch);

  Recipe recipe_;
  Stepper stepper_;
  BatchSource batches_;
  int64_t step_ = 0;
};

}  // namespace equigrad::reference
