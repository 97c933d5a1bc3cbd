// Copy: what a load takes out of a mapped file, past the cache.
//
// What is read once and written once needs no place in the cache; a store that goes past it does
// not fetch what it overwrites, a third less traffic (x86-64; elsewhere it is memcpy).
//
// Invariants: the bytes of memcpy. Neither end need be aligned; the two do not overlap.
// Units: bytes.
// Depends on: nothing.
#pragma once

#include <cstddef>

namespace equigrad::checkpoint {

void copy_past_cache(void* to, const void* from, std::size_t bytes);

}  // namespace equigrad::checkpoint
