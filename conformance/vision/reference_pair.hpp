// ReferencePair: encoder and language model without engines: plain torch and two steppers.
//
// Invariants: every rank's passes run in that rank's order: the language model's, whose input is a
//   leaf, then the encoder's, of the scalar whose gradient at the features is that leaf's. A rank
//   of either has neighbouring rows of the whole batch. What a setting says of the engines'
//   configuration, and of who has which rows, is said here on its own.
// Shapes: losses are scalars, [micro_batch * language ranks + rank].
// Errors: those of the steppers.
// Depends on: setting.hpp, album.hpp, reference/stepper.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "conformance/vision/album.hpp"
#include "conformance/vision/models.hpp"
#include "conformance/vision/setting.hpp"
#include "reference/stepper.hpp"

namespace equigrad::conformance::vision {

struct PairRecord {
  reference::StepRecord encoder, language;
  std::vector<at::Tensor> losses;
};

// The whole batch of a micro-batch, over all ranks.
using Batches = std::function<reference::Batch(int64_t step, int64_t micro_batch)>;

class ReferencePair {
 public:
  ReferencePair(const Setting& setting, const Album& album);  // which outlives it
  ReferencePair(const Setting& setting, Batches batches);
  PairRecord step();

 private:
  std::vector<at::Tensor> micro_batch(int64_t index);

  Setting setting_;
  Batches batches_;
  std::shared_ptr<Encoder> encoder_;
  std::shared_ptr<Captioner> captioner_;
  reference::Stepper encoder_stepper_, language_stepper_;
  int64_t step_ = 0;
};

}  // namespace equigrad::conformance::vision
