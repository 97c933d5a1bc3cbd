#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "engine/kernels/tree_sum.hpp"

namespace equigrad::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kLevels = 31;  // a tree over fewer than 2^31 rows

__device__ float load(const float* from) { return *from; }
__device__ float load(const __nv_bfloat16* from) { return __bfloat162float(*from); }
__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }

// One thread a column. pending[k] is a finished subtree of 2^k rows, present when bit k of the row
// count is set: the same tree as adding neighbours level by level, without storing the levels.
template <class In, class Out>
__global__ void sum_columns(const In* input, int rows, int64_t n, Out* output) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= n) return;
  float pending[kLevels];
  for (int row = 0; row < rows; ++row) {
    float value = load(input + row * n + column);
    int level = 0;
    for (; (row >> level) & 1; ++level) value = __fadd_rn(pending[level], value);
    pending[level] = value;
  }
  int level = 0;
  while (!((rows >> level) & 1)) ++level;
  float total = pending[level];
  for (++level; (rows >> level) != 0; ++level) {
    if ((rows >> level) & 1) total = __fadd_rn(pending[level], total);
  }
  store(output + column, total);
}

template <class In>
void launch(const In* input, int rows, int64_t n, void* output, Element output_type,
            cudaStream_t stream) {
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  if (output_type == Element::Fp32) {
    sum_columns<<<blocks, kThreads, 0, stream>>>(input, rows, n, static_cast<float*>(output));
  } else {
    sum_columns<<<blocks, kThreads, 0, stream>>>(input, rows, n,
                                                 static_cast<__nv_bfloat16*>(output));
  }
}

}  // namespace

void tree_sum_cuda(const void* input, Element input_type, int rows, int64_t n, void* output,
                   Element output_type, void* stream) {
  auto on = static_cast<cudaStream_t>(stream);
  if (input_type == Element::Fp32) {
    launch(static_cast<const float*>(input), rows, n, output, output_type, on);
  } else {
    launch(static_cast<const __nv_bfloat16*>(input), rows, n, output, output_type, on);
  }
}

}  // namespace equigrad::kernels
