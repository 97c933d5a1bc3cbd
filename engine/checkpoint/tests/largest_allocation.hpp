// Largest allocation: how much memory a test's program has asked for at once, so that a length
// which a file only claims is seen where it is believed. It replaces operator new: for one source
// of a program.
//
// Units: bytes.
// Depends on: the C++ standard library only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace equigrad::checkpoint {

inline std::atomic<std::size_t> largest_allocation{0};

}  // namespace equigrad::checkpoint

void* operator new(std::size_t bytes) {
  if (bytes > equigrad::checkpoint::largest_allocation)
    equigrad::checkpoint::largest_allocation = bytes;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
