// Album: images with captions: those to train on, and those that no training sees.
//
// Invariants: a batch depends on the files and its Draw only; within a step no two batches share
//   an image. A caption is made of the label's name and nothing else.
// Shapes: input [N, 1, 28, 28] fp32, exact in bf16; target [N, kCaptionBytes] int64 bytes, zeros
//   behind the caption.
// Errors: c10::Error for files that cannot be read, for batches of no multiple of four.
// Depends on: reference/models/data.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "reference/models/data.hpp"

namespace equigrad::conformance::vision {

constexpr int kLabels = 10;
constexpr int64_t kCaptionBytes = 27;  // of the longest, "a picture of an ankle boot."

std::string caption(int label);
// [labels] -> [labels, kCaptionBytes]
at::Tensor captions(const at::Tensor& labels);
// A row of bytes up to its first full stop, with ? for what is not ASCII.
std::string sentence_of(const at::Tensor& bytes);

class Album {
 public:
  Album(const std::string& images_path, const std::string& labels_path);

  // Rows [first, first + count) of what ranks 0, 1, .. draw one after another, `images` each.
  reference::Batch rows(reference::Draw draw, int64_t images, int64_t first, int64_t count) const;
  reference::Batch held_out(int64_t first, int64_t count) const;

 private:
  reference::Batch draw(const reference::Draw& draw, int64_t images) const;
  explicit Album(const reference::Images& all);

  reference::Data train_;
  reference::Images held_out_;
};

}  // namespace equigrad::conformance::vision
