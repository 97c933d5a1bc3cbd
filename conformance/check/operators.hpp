// OperatorTrace: what every operator of this thread gave, as digests, in the order in which they
// ended; to find the first of two runs that differs.
//
//   OperatorTrace first([&] { loss(model).backward(); });
//   OperatorTrace second(...);
//   first_difference(first, second)  -> "aten::bernoulli_"
//
// Invariants: operators that give memory without writing it, another view of it or a copy are left
// out: what they show is no result of theirs. Nothing of the run is changed.
// Units: none.   Errors: what the run throws.
// Depends on: ATen's RecordFunction, oracle/digest.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace equigrad::conformance {

class OperatorTrace {
 public:
  explicit OperatorTrace(const std::function<void()>& run);

  struct Result {
    std::string name;  // aten::mul
    uint64_t digest = 0;
    bool operator==(const Result&) const = default;
  };
  const std::vector<Result>& results() const { return results_; }

 private:
  std::vector<Result> results_;
};

// The first operator whose result differs, or that only one of them ran; empty: none.
std::string first_difference(const OperatorTrace& first, const OperatorTrace& second);

}  // namespace equigrad::conformance
