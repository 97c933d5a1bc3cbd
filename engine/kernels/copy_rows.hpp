// copy_rows: rows of bytes from one matrix to another, where tensors' views and their copy cost
// more than the bytes: `kFewNumel` elements, or many tensors out of one matrix.
//
// Shapes: rows of `row_bytes`, one every `from_stride_bytes` and `to_stride_bytes`; `bytes` in all,
// so the last row may be short.
// Errors: none.
// Depends on: nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace equigrad::kernels {

inline constexpr int64_t kFewNumel = int64_t{1} << 14;

inline void copy_rows(void* to, int64_t to_stride_bytes, const void* from,
                      int64_t from_stride_bytes, int64_t row_bytes, int64_t bytes) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  for (; bytes > 0; bytes -= row_bytes, out += to_stride_bytes, in += from_stride_bytes)
    std::memcpy(out, in, static_cast<std::size_t>(std::min(bytes, row_bytes)));
}

}  // namespace equigrad::kernels
