// Search: predictions of the wrong elements, and which of them explain what was got.
//
// A prediction is offered as an explanation only where it is one:
//
//   - it claims an element where it is as near to what was got as its own roundings allow, each of
//     which moves a number by at most one ulp (below), and where it leaves at most 1/16 of the
//     difference;
//   - it claims at least half of the wrong elements;
//   - what it claims is no accident. An element with values of its own counts log2(1 + |got - want|
//     / room) bits, with room = 2 allowed + 1 ulp: so many other numbers it might have been. All
//     of them together must have kLeastBits, and as many more as it takes to say which of the
//     wrong elements are claimed, log2 of their binomial coefficient. A number that was fitted
//     takes one element's bits, the most, away: that element proves nothing.
//
// kLeastBits: some 2^8 predictions are tried, so that one in 2^10 of what nothing explains gets an
// explanation by chance. An element in fp32 has at most 24 bits, one in bf16 8.
//
// Invariants: sorted by (residual + 1) handicap; among equals what was tried first. A residual is
// that of the worst element that is claimed, in the ulp that its roundings count in.
// Shapes: `wrong` holds flat indices into got and want, both finite there; Values has one number
//   for each of them, NaN: no prediction.
// Errors: std::runtime_error for tensors of another size.
// Depends on: explain.hpp (the values), coefficients.hpp, bits.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "conformance/diagnosis/explain.hpp"

namespace equigrad::conformance::oracle {

inline constexpr double kLeastBits = 18;

// A hypothesis with more free numbers must fit better to come first.
struct Handicap {
  static constexpr double kNamed = 1, kShift = 1.5, kContribution = 2, kFitted = 4, kMatrix = 16;
};

// What a prediction says, and how far from it its roundings may leave what was got.
struct Claim {
  std::string formula, cause;
  double handicap = Handicap::kNamed;
  double roundings = 0;  // ulp of the larger of what is got and what is predicted
  double of_sum = 0;     // ulp of the largest number that takes part in the sum
  Values sizes = {};     // of that number, where it is known
  int fitted = 0;        // numbers that were fitted to what was got
  int least = 1;         // elements with values of their own, beside those that were fitted to
  Matrix coefficients = {};
};

class Search {
 public:
  // `dtype`: whose ulp roundings count in. `before`: roundings that got and want have gone through
  // beside those of a hypothesis.
  Search(const at::Tensor& got, const at::Tensor& want, const std::vector<int64_t>& wrong,
         at::ScalarType dtype, double before);

  const Values& got() const { return got_; }
  const Values& want() const { return want_; }
  const std::vector<int64_t>& wrong() const { return wrong_; }
  Values pick(const at::Tensor& tensor) const;

  // Whether it is an explanation.
  bool try_values(const Values& predicted, const Claim& claim);
  bool try_tensor(const at::Tensor& predicted, const Claim& claim) {
    return predicted.defined() && try_values(pick(predicted), claim);
  }
  // Nothing but the roundings of a sum: got = want within claim.of_sum.
  bool try_roundings(const Claim& claim);
  std::vector<Hypothesis> sorted();

 private:
  // What the elements say that were looked at so far.
  struct Proof {
    int64_t claimed = 0;
    double residual_ulp = 0;
    std::vector<std::pair<double, double>> seen;  // got and want
    std::vector<double> bits;                     // of each pair that is new
  };
  double value_ulp(std::size_t j, double predicted) const;
  double sum_ulp(std::size_t j, double predicted, const Claim& claim) const;
  void add(Proof& proof, std::size_t j, double left_ulp, double bits) const;
  bool keep(Proof proof, const Claim& claim);

  const std::vector<int64_t>& wrong_;
  at::ScalarType dtype_;
  int64_t numel_;
  double before_;
  Values got_, want_;
  std::vector<std::pair<double, Hypothesis>> found_;
};

// The numbers of a flat tensor in fp64.
at::Tensor flat_double(const at::Tensor& tensor);

}  // namespace equigrad::conformance::oracle
