// Data: what the models are trained on: bytes of text and 28 x 28 images, drawn by counter.
//
// A batch depends only on its Draw and on the files, never on a global generator, on the world
// size or on who draws it first.
//
// Invariants: within one step no two samples of any two (rank, micro_batch) start at the same byte
//   or are the same image, as long as there are more of them than samples in the step. Every float
//   made here is exact in bf16, so a change of dtype is never a change of data.
// Shapes: gpt input and target [2, 16] int64; irregular input [3, 7] float, target [3] int64 below
//   5; vision input [2, 16, 49] float, target [2, 16, 24] float; conv input [4, 1, 28, 28]
//   float, target [4] int64 below 10.
// Errors: c10::Error for an unreadable file, a bad IDX header, too little data, an unknown model.
// Depends on: ATen, zlib (IDX files may be gzipped or not).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace equigrad::reference {

// Random-looking numbers by counter: a bijection of words (splitmix64, Steele, Lea & Flood 2014).
inline uint64_t hash(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

// The place of a batch in a run. Another seed gives another order of the data.
struct Draw {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t rank = 0;
  int64_t micro_batch = 0;
};

struct Images {
  at::Tensor pixels;  // [count, 28, 28] uint8; undefined when there are none
  at::Tensor labels;  // [count] uint8
};

// The files one after another.
std::string read_text(const std::vector<std::string>& paths);
Images read_images(const std::string& images_path, const std::string& labels_path);

// The models that are trained on images; the others need none.
bool reads_images(const std::string& model);

class Data {
 public:
  explicit Data(std::string text, Images images = {});

  // The batch that the model of this name (model.hpp) is trained on.
  Batch make_batch(const std::string& model, const Draw& draw) const;
  // input = text[i, i + context), target = text[i + 1, i + 1 + context), for `size` places i.
  Batch text_batch(int64_t size, int64_t context, const Draw& draw) const;

 private:
  Batch irregular_batch(const Draw& draw) const;
  Batch vision_batch(const Draw& draw) const;
  Batch conv_batch(const Draw& draw) const;

  std::string text_;
  Images images_;
};

// Floating tensors converted to dtype, integers as they are.
Batch to_dtype(const Batch& batch, at::ScalarType dtype);

}  // namespace equigrad::reference
