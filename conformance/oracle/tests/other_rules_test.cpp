// The rules in use elsewhere, on tensors whose errors are known by hand.
#include "conformance/oracle/other_rules.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace equigrad::conformance::oracle {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                 kInf = std::numeric_limits<double>::infinity();

at::Tensor of(std::vector<double> values, at::ScalarType dtype = at::kFloat) {
  return at::tensor(values, at::kDouble).to(dtype);
}

OtherRules rules_on(const at::Tensor& got, const at::Tensor& want) {
  OtherRules rules;
  rules.see_tensor(got, want);
  return rules;
}

TEST(OtherRules, TheFiguresAreThoseOfTheirFormulas) {
  EXPECT_EQ(relative_frobenius(of({3, 5}), of({3, 4})), 0.2);
  EXPECT_EQ(calc_diff(of({1, 0}), of({0, 1})), 1);
  EXPECT_EQ(calc_diff(of({1, 1}), of({2, 2})), 1 - 8 / 10.0);
  EXPECT_EQ(calc_diff(of({0, 0}), of({0, 0})), 0);
  EXPECT_EQ(relative_frobenius(of({0}), of({0})), 0);
}

TEST(OtherRules, EqualTensorsRaiseNone) {
  EXPECT_EQ(rules_on(of({1, 0, -2}), of({1, 0, -2})).to_json().dump(), "[false,false,false,false]");
}

// 1 % off: below 8.3 %, calc_diff of 5e-5, but no torch default lets it pass in fp32.
TEST(OtherRules, OnePercentOffIsOnlySeenByAssertClose) {
  EXPECT_EQ(rules_on(of({1.01, 2.02}), of({1, 2})).to_json().dump(), "[false,false,true,false]");
  EXPECT_FALSE(rules_on(of({1.01}, at::kBFloat16), of({1}, at::kBFloat16)).torch_defaults());
  EXPECT_TRUE(rules_on(of({1.01}, at::kHalf), of({1}, at::kHalf)).torch_defaults());
}

TEST(OtherRules, HalfOfAGradientIsSeenByAllThatLookAtIt) {
  EXPECT_EQ(rules_on(of({0.5, 1}), of({1, 2})).to_json().dump(), "[true,true,true,false]");
}

TEST(OtherRules, NotANumberAndAnotherShapeAreSeen) {
  EXPECT_EQ(rules_on(of({kNan}), of({1})).to_json().dump(), "[true,true,true,false]");
  EXPECT_EQ(rules_on(of({1, 1}), of({1})).to_json().dump(), "[true,true,true,false]");
  EXPECT_TRUE(holds_by_torch_defaults(of({1, kInf}), of({1, kInf})));
  EXPECT_FALSE(holds_by_torch_defaults(of({1, kInf}), of({1, -kInf})));
  EXPECT_EQ(rules_on(of({1}), of({0})).to_json().dump(), "[true,true,true,false]");
}

TEST(OtherRules, TheLossIsComparedWithOnePercentOfTheTwins) {
  OtherRules rules;
  rules.see_loss(kNan, kNan);
  rules.see_loss(-2.01, -2);
  EXPECT_FALSE(rules.loss());
  rules.see_loss(2.03, 2);
  EXPECT_TRUE(rules.loss());
  OtherRules lost;
  lost.see_loss(kNan, 1);
  EXPECT_TRUE(lost.loss());
}

}  // namespace
}  // namespace equigrad::conformance::oracle
