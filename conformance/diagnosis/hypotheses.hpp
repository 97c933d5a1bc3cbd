// Hypotheses: what the wrong elements would be under each known fault.
//
// Of a gradient: a wrong factor (averaging, loss scale, clipping), wrong coefficients on
// contributions, another place or another time. Of any other tensor: another place or another time,
// a lost or rounded element; of an update see update_predictions.hpp. What counts as explained is
// search.hpp's; here stand the roundings of each hypothesis: none of a copy, four of a factor (its
// own and the product's, on both sides), those of the additions of a sum.
//
// Invariants: sorted best first (search.hpp).
// Shapes: `wrong` holds flat indices into got and want, both finite there.
// Errors: std::runtime_error for contributions whose sizes do not agree.
// Depends on: explain.hpp (the values), search.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/diagnosis/explain.hpp"

namespace equigrad::conformance::oracle {

std::vector<Hypothesis> find_hypotheses(const Evidence& evidence,
                                        const std::vector<int64_t>& wrong);

// How many ulp, of the largest partial sum, the roundings of an averaged sum may leave.
double rounding_ulp(const Evidence& evidence);

}  // namespace equigrad::conformance::oracle
