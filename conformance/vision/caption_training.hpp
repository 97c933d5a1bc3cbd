// CaptionTraining: encoder and language model trained on a pool of ranks, and what became of it.
//
//   equigrad train --data captions  ->  print_caption_training(training, 10)
//
// Invariants: nothing is learned from the images that captions are then written for. A training
//   whose ranks did not answer has a failure and holds nothing else.
// Units: losses in nats a byte, the mean over ranks and micro-batches of a step.
// Errors: equigrad::Error when no images are there, or the pool cannot start.
// Depends on: setting.hpp, program.hpp, ranks/pool.hpp. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/on_rank/program.hpp"
#include "conformance/ranks/pool.hpp"
#include "conformance/vision/setting.hpp"

namespace equigrad::conformance::vision {

struct Tally {
  int64_t compared = 0;  // elements
  int64_t differing = 0;
  std::string first;  // what differs first, and on which rank

  bool held() const { return compared > 0 && differing == 0; }
};

struct Training {
  Setting setting;
  int steps = 2;
  bool compared = true;  // the reference takes every step, too
  int64_t held_out = 0;  // images for each of the setting's ranks to write captions for
  int every = 10;        // steps between two calls of `told`
  DataFiles data;
};

struct Trained {
  std::string failure;  // why ranks did not answer
  int64_t encoder_numel = 0, language_numel = 0;
  Tally encoder, language;
  std::vector<double> losses;    // of each step
  int clipped = 0;               // steps in which both gradients were
  int64_t right = 0, shown = 0;  // captions, greedily written, every byte right
  std::vector<std::pair<std::string, std::string>> samples;  // written, wanted
  // An upper bound (Hoeffding 1963, theorem 1) of the probability to be as often right by naming
  // labels at random.
  double chance() const;
  // Both engines were compared, and no bit differs.
  bool held() const { return failure.empty() && encoder.held() && language.held(); }
};

using Told = std::function<void(const Trained& so_far)>;

// On the first ranks of a pool whose handler is serve_captions.
Trained train_captions(ranks::Pool& pool, const Training& training, const Told& told = {});

// On a pool of its own, with a line every few steps on stdout. Exit codes: 0 no bit differs, 1 some
// do, 3 ranks did not answer.
int print_caption_training(const Training& training, double timeout_scale = 1);

}  // namespace equigrad::conformance::vision
