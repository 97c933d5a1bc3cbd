// load, store: one number of a device array, to and from fp32.
//
// Invariants: loading is exact; storing rounds once, to nearest even.   Errors: none.
// Depends on: CUDA's 16-bit types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace equigrad::kernels {

__device__ inline float load(const float* from) { return *from; }
__device__ inline float load(const __nv_bfloat16* from) { return __bfloat162float(*from); }
__device__ inline float load(const __half* from) { return __half2float(*from); }
__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }
__device__ inline void store(__half* to, float value) { *to = __float2half_rn(value); }

}  // namespace equigrad::kernels
