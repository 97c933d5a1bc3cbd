// sample_data: made-up text and images with enough in them for every model, without files.
//
// Shapes: 10,007 bytes of text in 32..122; 211 images.   Errors: none.
// Depends on: reference/models/data.hpp, ATen.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "reference/models/data.hpp"

namespace equigrad::conformance {

inline std::string sample_text() {
  std::string text;
  uint32_t state = 12345;
  while (text.size() < 10007) {
    state = state * 1664525u + 1013904223u;
    text.push_back(static_cast<char>(32 + (state >> 16) % 91));
  }
  return text;
}

inline reference::Images sample_images() {
  const at::Tensor places = at::arange(211 * 28 * 28, at::kLong);
  const at::Tensor pixels = (places * 2654435761).bitwise_right_shift(16).remainder(256);
  return {.pixels = pixels.to(at::kByte).view({211, 28, 28}),
          .labels = at::arange(211, at::kLong).remainder(10).to(at::kByte)};
}

inline const reference::Data& sample_data() {
  static const reference::Data kData(sample_text(), sample_images());
  return kData;
}

}  // namespace equigrad::conformance
