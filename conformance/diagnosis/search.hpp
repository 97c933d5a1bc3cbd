// Search: predictions of the wrong elements, each with its residual, the best ones first.
//
// A prediction counts as explaining an element when it leaves at most 1/16 of the difference
// unexplained, and is kept when it explains at least half of the wrong elements. Its residual is
// the distance from what was got, in units in the last place of the largest number that takes part,
// for nine out of ten elements.
//
// Invariants: sorted by (residual + 1) handicap; among equals what was tried first.
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

// A hypothesis with more free numbers must fit better to come first.
struct Handicap {
  static constexpr double kNamed = 1, kShift = 1.5, kContribution = 2, kFitted = 4, kMatrix = 16;
};

class Search {
 public:
  // `dtype`: whose ulp residuals count in.
  Search(const at::Tensor& got, const at::Tensor& want, const std::vector<int64_t>& wrong,
         at::ScalarType dtype);

  const Values& got() const { return got_; }
  const Values& want() const { return want_; }
  const std::vector<int64_t>& wrong() const { return wrong_; }
  at::ScalarType dtype() const { return dtype_; }
  Values pick(const at::Tensor& tensor) const;
  // Roundings count in ulp of numbers at least so large.
  void set_sizes(Values sizes) { sizes_ = std::move(sizes); }

  void try_values(const Values& predicted, const std::string& formula, const std::string& cause,
                  double handicap, const Matrix& coefficients = {});
  void try_tensor(const at::Tensor& predicted, const std::string& formula,
                  const std::string& cause) {
    if (predicted.defined()) try_values(pick(predicted), formula, cause, Handicap::kNamed);
  }
  // Differences of at most so many ulp.
  void try_roundings(double ulps);
  std::vector<Hypothesis> sorted();

 private:
  double ulp_at(std::size_t j, double predicted) const;
  void keep(Values residuals, int64_t explained, const std::string& formula,
            const std::string& cause, double handicap, const Matrix& coefficients);

  const std::vector<int64_t>& wrong_;
  at::ScalarType dtype_;
  int64_t numel_;
  Values got_, want_, sizes_;
  std::vector<std::pair<double, Hypothesis>> found_;
};

// The numbers of a flat tensor in fp64.
at::Tensor flat_double(const at::Tensor& tensor);

}  // namespace equigrad::conformance::oracle
