// JudgePicture: the picture of a failure, from what the ranks of its case answered.
//
// Invariants: sampled is the rank of the first difference, or the first that has a picture; a
// rank's slice without one is a slice in which nothing was wrong.
// Units: elements; steps count from 1.
// Errors: nlohmann::json::exception for an answer of another form.
// Depends on: ranks/pool.hpp, reports/record.hpp. No torch.
#pragma once

#include <optional>
#include <vector>

#include "conformance/ranks/pool.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

// Nothing where no rank has a picture.
std::optional<reports::Picture> picture_from(const std::vector<ranks::Outcome>& outcomes,
                                             int first_rank);

}  // namespace equigrad::conformance
