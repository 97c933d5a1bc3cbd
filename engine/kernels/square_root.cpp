#include "engine/kernels/square_root.hpp"

#include <cmath>

namespace equigrad::kernels {

void square_root(const float* input, int64_t numel, float* output) {
  for (int64_t i = 0; i < numel; ++i) output[i] = std::sqrt(input[i]);
}

}  // namespace equigrad::kernels
