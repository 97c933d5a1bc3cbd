#include "engine/checkpoint/copy.hpp"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace equigrad::checkpoint {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kFewBytes = std::size_t{1} << 16;  // they fit into the cache
constexpr std::size_t kLine = 64;

// A whole line of the destination, which is aligned.
void stream_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const auto a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
             c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}

}  // namespace

void copy_past_cache(void* to, const void* from, std::size_t bytes) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  if (bytes >= kFewBytes) {
    const std::size_t before = (kLine - reinterpret_cast<std::uintptr_t>(target) % kLine) % kLine;
    std::memcpy(target, source, before);
    const std::size_t lines = (bytes - before) / kLine;
    target += before;
    source += before;
    for (std::size_t i = 0; i < lines; ++i) stream_line(target + i * kLine, source + i * kLine);
    _mm_sfence();
    target += lines * kLine;
    source += lines * kLine;
    bytes -= before + lines * kLine;
  }
  if (bytes > 0) std::memcpy(target, source, bytes);
}

#else

void copy_past_cache(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#endif

}  // namespace equigrad::checkpoint
