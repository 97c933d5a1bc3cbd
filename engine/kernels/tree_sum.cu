#include <cuda_runtime.h>

#include "engine/kernels/cuda_number.hpp"
#include "engine/kernels/tree_sum.hpp"

namespace equigrad::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kLevels = 31;  // a tree over fewer than 2^31 rows

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

template <class In, class Out>
void launch(const void* input, int rows, int64_t n, void* output, cudaStream_t stream) {
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  sum_columns<<<blocks, kThreads, 0, stream>>>(static_cast<const In*>(input), rows, n,
                                               static_cast<Out*>(output));
}

template <class In>
void dispatch_output(const void* input, int rows, int64_t n, void* output, Element output_type,
                     cudaStream_t stream) {
  if (output_type == Element::Fp32) {
    launch<In, float>(input, rows, n, output, stream);
  } else if (output_type == Element::Bf16) {
    launch<In, __nv_bfloat16>(input, rows, n, output, stream);
  } else {
    launch<In, __half>(input, rows, n, output, stream);
  }
}

}  // namespace

void tree_sum_cuda(const void* input, Element input_type, int rows, int64_t n, void* output,
                   Element output_type, void* stream) {
  auto on = static_cast<cudaStream_t>(stream);
  if (input_type == Element::Fp32) {
    dispatch_output<float>(input, rows, n, output, output_type, on);
  } else if (input_type == Element::Bf16) {
    dispatch_output<__nv_bfloat16>(input, rows, n, output, output_type, on);
  } else {
    dispatch_output<__half>(input, rows, n, output, output_type, on);
  }
}

}  // namespace equigrad::kernels
