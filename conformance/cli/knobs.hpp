// Knobs: keys that `equigrad run --knobs` merges into the configuration of every case of the
// matrix.
//
// Invariants: what is refused is refused in every case, whatever its stage and precision: an
// unknown key, a value of another type or out of its range, what cases differ in.
// Units: none.
// Errors: none are thrown; the words are what is wrong, empty where nothing is.
// Depends on: engine/config/config.hpp, nlohmann-json (sources only). No torch.
#pragma once

#include <string>

namespace equigrad::conformance::cli {

// Of the text behind --knobs, a JSON object.
std::string knobs_problem(const std::string& text);

}  // namespace equigrad::conformance::cli
