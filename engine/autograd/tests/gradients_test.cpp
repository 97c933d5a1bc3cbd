// Gradients are taken without a backward pass: the values are torch's, and nothing is written.
#include "engine/autograd/gradients.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include "conformance/testing/bits_matcher.hpp"

namespace equigrad::autograd {
namespace {

using conformance::oracle::HasTheBitsOf;

at::Tensor leaf(std::initializer_list<double> values) {
  return at::tensor(std::vector<float>(values.begin(), values.end())).requires_grad_();
}

TEST(Gradients, AreThoseOfTheOutputsAndLeaveNothingBehind) {
  const auto x = leaf({1, 2, 3}), y = leaf({4, 5, 6}), unused = leaf({7});
  const auto output = x * y;
  const auto found = gradients({output.sum()}, {x, unused}, {}, /*create_graph=*/false);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_THAT(found[0], HasTheBitsOf(y.detach()));
  EXPECT_FALSE(found[1].defined());
  EXPECT_FALSE(x.grad().defined());
  // The graph is kept.
  const auto along = gradients({output}, {y}, {at::full({3}, 2.0F)}, /*create_graph=*/false);
  EXPECT_THAT(along[0], HasTheBitsOf(x.detach() * 2));
  EXPECT_FALSE(along[0].requires_grad());
}

TEST(Gradients, OfGradientsWhereAGraphIsMade) {
  const auto x = leaf({1, 2, 3});
  const auto first = gradients({(x * x * x).sum()}, {x}, {}, /*create_graph=*/true);
  const auto second = gradients({first[0].sum()}, {x}, {}, /*create_graph=*/false);
  EXPECT_THAT(second[0], HasTheBitsOf(x.detach() * 6));
}

}  // namespace
}  // namespace equigrad::autograd
