#include "engine/kernels/tree_sum.hpp"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <vector>

namespace equigrad::kernels {
namespace {

constexpr int64_t kBlockNumel = 2048;  // rows of one block stay in the first-level caches

template <class In, class Out>
void sum_blocks(const In* input, int rows, int64_t n, Out* output) {
  std::vector<float> levels(static_cast<size_t>(rows * kBlockNumel));
  for (int64_t start = 0; start < n; start += kBlockNumel) {
    const int64_t width = std::min(kBlockNumel, n - start);
    for (int row = 0; row < rows; ++row) {
      const In* from = input + row * n + start;
      float* to = levels.data() + row * kBlockNumel;
      for (int64_t i = 0; i < width; ++i) to[i] = static_cast<float>(from[i]);
    }
    for (int left = rows; left > 1; left = (left + 1) / 2) {
      for (int row = 0; row < (left + 1) / 2; ++row) {
        const float* a = levels.data() + 2 * row * kBlockNumel;
        float* to = levels.data() + row * kBlockNumel;
        if (2 * row + 1 == left) {
          std::copy(a, a + width, to);
          continue;
        }
        for (int64_t i = 0; i < width; ++i) to[i] = a[i] + a[i + kBlockNumel];
      }
    }
    for (int64_t i = 0; i < width; ++i)
      output[start + i] = static_cast<Out>(levels[static_cast<size_t>(i)]);
  }
}

// Two fp32 ranks are the common case on a CPU: no copy through the block is needed.
void sum_pair(const float* input, int64_t n, float* output) {
  for (int64_t i = 0; i < n; ++i) output[i] = input[i] + input[n + i];
}

template <class In>
void dispatch_output(const In* input, int rows, int64_t n, void* output, Element output_type) {
  if (output_type == Element::Fp32) {
    sum_blocks(input, rows, n, static_cast<float*>(output));
  } else {
    sum_blocks(input, rows, n, static_cast<c10::BFloat16*>(output));
  }
}

}  // namespace

void tree_sum(const void* input, Element input_type, int rows, int64_t n, void* output,
              Element output_type) {
  if (rows == 2 && input_type == Element::Fp32 && output_type == Element::Fp32) {
    sum_pair(static_cast<const float*>(input), n, static_cast<float*>(output));
  } else if (input_type == Element::Fp32) {
    dispatch_output(static_cast<const float*>(input), rows, n, output, output_type);
  } else {
    dispatch_output(static_cast<const c10::BFloat16*>(input), rows, n, output, output_type);
  }
}

}  // namespace equigrad::kernels
