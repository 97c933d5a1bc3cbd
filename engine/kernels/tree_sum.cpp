#include "engine/kernels/tree_sum.hpp"

#include <algorithm>
#include <vector>

#include "engine/kernels/convert.hpp"
#include "engine/kernels/parallel.hpp"

namespace equigrad::kernels {
namespace {

constexpr int64_t kBlockNumel = 2048;  // rows of one block stay in the first-level caches

struct Columns {
  int64_t begin, end;
};

void sum_blocks(const void* const* inputs, Element input_type, int rows, Columns columns,
                char* output, Element output_type) {
  std::vector<float> levels(static_cast<size_t>(rows * kBlockNumel));
  for (int64_t start = columns.begin; start < columns.end; start += kBlockNumel) {
    const int64_t width = std::min(kBlockNumel, columns.end - start);
    for (int row = 0; row < rows; ++row) {
      widen(static_cast<const char*>(inputs[row]) + start * element_bytes(input_type), input_type,
            width, levels.data() + row * kBlockNumel);
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
    narrow(levels.data(), width, output + start * element_bytes(output_type), output_type);
  }
}

// Two fp32 ranks are the common case on a CPU: no copy through the block is needed.
void sum_pair(const float* a, const float* b, Columns columns, float* output) {
  for (int64_t i = columns.begin; i < columns.end; ++i) output[i] = a[i] + b[i];
}

}  // namespace

void tree_sum(const void* const* inputs, Element input_type, int rows, int64_t n, void* output,
              Element output_type) {
  const bool is_pair = rows == 2 && input_type == Element::Fp32 && output_type == Element::Fp32;
  parallel_for(n, [&](int64_t begin, int64_t end) {
    if (is_pair) {
      sum_pair(static_cast<const float*>(inputs[0]), static_cast<const float*>(inputs[1]),
               {begin, end}, static_cast<float*>(output));
    } else {
      sum_blocks(inputs, input_type, rows, {begin, end}, static_cast<char*>(output), output_type);
    }
  });
}

}  // namespace equigrad::kernels
