// HasTheBitsOf: EXPECT_THAT(got, HasTheBitsOf(want)) for tensors, by bits.hpp.
//
// Invariants: passes exactly when compare(got, want).equal() and something was compared: a test
//   that compares two empty tensors proves nothing and fails (use compare() where that is meant).
// Shapes: same sizes and dtype on both sides.
// Errors: those of compare().
// Depends on: bits.hpp, GoogleMock.
#pragma once

#include <gmock/gmock.h>

#include "conformance/oracle/bits.hpp"

namespace equigrad::conformance::oracle {

MATCHER_P(HasTheBitsOf, want, negation ? "differs in bits" : "has the same bits") {
  const BitsReport report = compare(arg, want);
  *result_listener << describe(report);
  return report.equal() && report.compared > 0;
}

}  // namespace equigrad::conformance::oracle
