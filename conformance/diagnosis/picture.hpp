// Picture: what is drawn of the tensors in which engine and twin first differ on a rank: a sample
// of got and want, how far off the elements are, and where in each slice the wrong ones lie.
//
// Invariants: says nothing about right or wrong; a NaN in place of a NaN is no difference.
// Shapes: got and want are flat elements [begin, begin + numel) of the whole parameter.
// Units: elements; ulp of `got`'s dtype.   Errors: none.
// Depends on: diagnosis.hpp, oracle/bits.hpp (sources only), nlohmann-json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/diagnosis/diagnosis.hpp"

namespace equigrad::conformance {

inline constexpr int64_t kPicturePieces = 32;   // of a slice
inline constexpr int64_t kPictureSamples = 64;  // of one tensor
inline constexpr std::size_t kPictureSlices = 64;

// {"tensor", "what", "step", "samples": [[index, got, want]], "ulps": [counts], "slices":
//  [[name, begin, end, [counts]]]}. `first`: the parameter that is sampled; of `failures` it is the
// first where none has that name. Null where nothing of more than one element is wrong.
nlohmann::json picture_of(const std::vector<Failure>& failures, const std::string& first);

}  // namespace equigrad::conformance
