#include <cuda_runtime.h>

#include "engine/kernels/cuda_number.hpp"
#include "engine/kernels/square_sum.hpp"

namespace equigrad::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlockNumel =
    1 << 15;  // squares are below 2^48, so a block's counters fit a uint64

template <class Number>
__global__ void add_squares(const Number* values, int64_t numel, unsigned long long* words) {
  __shared__ unsigned long long counters[256];
  for (int e = threadIdx.x; e < 256; e += kThreads) counters[e] = 0;
  __syncthreads();
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kBlockNumel;
  const int64_t end = min(numel, start + kBlockNumel);
  for (int64_t i = start + threadIdx.x; i < end; i += kThreads) {
    const unsigned bits = __float_as_uint(load(values + i));
    const unsigned exponent = (bits >> 23) & 0xFFU;
    const unsigned long long mantissa = (bits & 0x7FFFFFU) | (exponent != 0 ? 0x800000U : 0U);
    const unsigned long long square = exponent == 255 ? 1 : mantissa * mantissa;
    if (square != 0) atomicAdd(&counters[exponent], square);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < 256; e += kThreads) {
    const unsigned long long counter = counters[e];
    if (counter == 0) continue;
    if (e == 255) {
      atomicAdd(&words[2 * kExponents], counter);
    } else {
      const int weight = e == 0 ? 1 : e;
      atomicAdd(&words[2 * weight], counter & ((1ULL << 40) - 1));
      atomicAdd(&words[2 * weight + 1], counter >> 40);
    }
  }
}

// So that low words of many ranks can be added.
__global__ void carry(unsigned long long* words) {
  const int e = threadIdx.x;
  if (e >= kExponents) return;
  words[2 * e + 1] += words[2 * e] >> 40;
  words[2 * e] &= (1ULL << 40) - 1;
}

template <class Number>
void launch(const void* values, int64_t numel, int64_t* words, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((numel + kBlockNumel - 1) / kBlockNumel);
  add_squares<<<blocks, kThreads, 0, stream>>>(static_cast<const Number*>(values), numel,
                                               reinterpret_cast<unsigned long long*>(words));
  carry<<<1, kThreads, 0, stream>>>(reinterpret_cast<unsigned long long*>(words));
}

}  // namespace

void square_sum_cuda(const void* values, Element type, int64_t numel, int64_t* words,
                     void* stream) {
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
