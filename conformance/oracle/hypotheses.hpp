// Hypotheses: what the wrong elements of a gradient would be under each known fault.
//
// A hypothesis predicts every wrong element; its residual is the distance from what was got. It
// counts as explaining an element when it leaves at most 1/16 of the difference unexplained, and is
// kept when it explains at least half of the wrong elements.
//
// Invariants: sorted best first: least residual, with a handicap for hypotheses that have more free
//   numbers (one named factor < one contribution < a fitted factor < a matrix of coefficients).
// Shapes: `wrong` holds flat indices into got and want, both finite there.
// Errors: std::runtime_error for contributions whose sizes do not agree.
// Depends on: explain.hpp (the values), bits.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "conformance/oracle/explain.hpp"

namespace equigrad::conformance::oracle {

std::vector<Hypothesis> find_hypotheses(const Evidence& evidence,
                                        const std::vector<int64_t>& wrong);

}  // namespace equigrad::conformance::oracle
