// Zero to fp32: the text of python/equigrad/zero_to_fp32.py, the script that a save puts beside its
// tags: it makes one model in fp32 of a checkpoint, and needs nothing but Python.
//
// Units: none.   Errors: none.
// Depends on: the build, which makes the source of the script (equigrad_script of targets.cmake).
#pragma once

#include <string_view>

namespace equigrad::checkpoint {

inline constexpr std::string_view kZeroToFp32Name = "zero_to_fp32.py";

std::string_view zero_to_fp32_script();

}  // namespace equigrad::checkpoint
