// Convert: numbers of one floating-point type in another.
//
// Invariants: each is rounded once, to nearest, ties to even, also from F64 to 16 bits. NaN stays
// NaN; what is too large becomes infinite; subnormal numbers are numbers. The same type: the same
// bits. Neither end need be aligned; the two do not overlap.
// Units: elements.
// Errors: equigrad::Error for a type that is not floating point.
// Depends on: safetensors.
#pragma once

#include <cstdint>

#include "engine/checkpoint/safetensors.hpp"

namespace equigrad::checkpoint {

bool is_floating_point(ElementType type);

void convert(const void* from, ElementType from_type, void* to, ElementType to_type,
             std::int64_t numel);

}  // namespace equigrad::checkpoint
