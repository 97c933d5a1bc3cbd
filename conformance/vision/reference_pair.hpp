// ReferencePair: encoder and language model without engines: plain torch and two steppers.
//
// Invariants: every rank's passes run in that rank's order: the language model's, whose input is a
//   leaf, then the encoder's, of the scalar whose gradient at the features is that leaf's. What a
//   setting says of the engines' configuration is said here on its own.
// Shapes: losses are scalars, [micro_batch * ranks + rank].
// Errors: those of the steppers.
// Depends on: setting.hpp, album.hpp, reference/stepper.hpp.
#pragma once

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

class ReferencePair {
 public:
  ReferencePair(const Setting& setting, const Album& album);  // which outlives it
  PairRecord step();

 private:
  at::Tensor micro_batch(int64_t rank, int64_t index);

  Setting setting_;
  const Album& album_;
  std::shared_ptr<Encoder> encoder_;
  std::shared_ptr<Captioner> captioner_;
  reference::Stepper encoder_stepper_, language_stepper_;
  int64_t step_ = 0;
};

}  // namespace equigrad::conformance::vision
