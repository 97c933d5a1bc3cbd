#include <cuda_runtime.h>

#include "engine/kernels/cuda_number.hpp"
#include "engine/kernels/largest.hpp"

namespace equigrad::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlockNumel = 1 << 15;

// Without their sign, finite numbers are in the order of their bits.
template <class Number>
__global__ void find_largest(const Number* values, int64_t numel, unsigned long long* words) {
  __shared__ unsigned found[2];  // the largest, and how many are not finite
  if (threadIdx.x < 2) found[threadIdx.x] = 0;
  __syncthreads();
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kBlockNumel;
  const int64_t end = min(numel, start + kBlockNumel);
  unsigned most = 0, non_finite_numel = 0;
  for (int64_t i = start + threadIdx.x; i < end; i += kThreads) {
    const unsigned bits = __float_as_uint(load(values + i)) & 0x7FFFFFFFU;
    if (bits < 0x7F800000U) {
      most = max(most, bits);
    } else {
      ++non_finite_numel;
    }
  }
  atomicMax(&found[0], most);
  atomicAdd(&found[1], non_finite_numel);
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicMax(&words[0], static_cast<unsigned long long>(found[0]));
    atomicAdd(&words[1], static_cast<unsigned long long>(found[1]));
  }
}

template <class Number>
void launch(const void* values, int64_t numel, int64_t* words, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((numel + kBlockNumel - 1) / kBlockNumel);
  find_largest<<<blocks, kThreads, 0, stream>>>(static_cast<const Number*>(values), numel,
                                                reinterpret_cast<unsigned long long*>(words));
}

}  // namespace

void largest_cuda(const void* values, Element type, int64_t numel, int64_t* words, void* stream) {
  if (numel == 0) return;
  auto on = static_cast<cudaStream_t>(stream);
  if (type == Element::Fp32) {
    launch<float>(values, numel, words, on);
  } else if (type == Element::Bf16) {
    launch<__nv_bfloat16>(values, numel, words, on);
  } else {
    launch<__half>(values, numel, words, on);
  }
}

}  // namespace equigrad::kernels
