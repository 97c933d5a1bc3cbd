#include "conformance/diagnosis/explain.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

namespace equigrad::conformance::oracle {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Contributions of 2 ranks and 4 micro-batches to a parameter of [30, 20], with different data
// everywhere, and their right average in fp32.
class ExplainTest : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(11);
    for (auto& row : c_) {
      for (at::Tensor& tensor : row) tensor = at::randn({30, 20});
    }
    evidence_.name = "blocks.1.weight";
    evidence_.world = 2;
    evidence_.accumulation_steps = 4;
    evidence_.shards = 2;
    evidence_.contributions = c_;
    evidence_.want = average(std::vector<double>(8, 1));
    evidence_.got = evidence_.want.clone();
  }

  // The average with these coefficients, [rank * 4 + micro_batch]; all 1 is right.
  at::Tensor average(const std::vector<double>& coefficients) const {
    at::Tensor sum = at::zeros({30, 20}, at::kDouble);
    for (size_t k = 0; k < 8; ++k) sum += c_[k / 4][k % 4].to(at::kDouble) * coefficients[k];
    return (sum / 8).to(at::kFloat);
  }

  std::string cause() const {
    const Explanation result = explain(evidence_);
    return result.hypotheses.empty() ? "none" : result.hypotheses[0].cause;
  }
  // As above when nothing is known about the contributions.
  std::string cause_without_contributions() {
    Evidence less = evidence_;
    less.contributions.clear();
    const Explanation result = explain(less);
    return result.hypotheses.empty() ? "none" : result.hypotheses[0].cause;
  }

  std::vector<std::vector<at::Tensor>> c_{2, std::vector<at::Tensor>(4)};
  Evidence evidence_;
};

TEST_F(ExplainTest, NothingToExplain) {
  const auto result = explain(evidence_);
  EXPECT_EQ(result.differing, 0);
  EXPECT_TRUE(result.hypotheses.empty());
  EXPECT_EQ(result.text, "  blocks.1.weight [30,20]   none of 600 elements differ\n");
}

TEST_F(ExplainTest, NamesEveryWrongFactor) {
  const std::vector<std::pair<double, std::string>> factors = {
      {0.5, "averaged twice over 2 ranks"},
      {2, "not averaged over 2 ranks or added twice"},
      {0.25, "averaged twice over 4 micro-batches"},
      {4, "summed, not averaged over 4 micro-batches"},
      {0.125, "averaged twice over 2 ranks and 4 micro-batches"},
      {8, "a sum, not averaged at all"},
      {0, "lost: no contribution arrived"},
      {-1, "the sign is flipped"},
      {0.7, "one common factor (a scale or a clipping factor?)"}};
  for (const auto& [factor, want] : factors) {
    evidence_.got = evidence_.want * factor;
    EXPECT_EQ(cause(), want) << factor;
    EXPECT_EQ(cause_without_contributions(), want) << factor;
  }
}

TEST_F(ExplainTest, WhatWouldHaveBeenWrongBeforeSaysThatItWasRight) {
  evidence_.held_steps = 1;
  evidence_.got = evidence_.want * 0.5;
  EXPECT_EQ(cause(), "averaged twice over 2 ranks, though the step before held");
  evidence_.held_steps = 2;
  EXPECT_EQ(cause(), "averaged twice over 2 ranks, though the 2 steps before held");
  evidence_.next_loss_scale = 2;
  EXPECT_EQ(cause(),
            "divided by the loss scale of the next step or averaged twice over 2 ranks, though the "
            "2 steps before held");
  evidence_.got = evidence_.want * 0;
  EXPECT_EQ(cause(), "lost: no contribution arrived");
  evidence_.got = average({1, 1, 1, 1, 1, 0, 1, 1});
  EXPECT_EQ(cause(), "micro-batch 2 of rank 1 is missing");
}

TEST_F(ExplainTest, OneRankHasNothingToAverageOver) {
  evidence_.world = 1;
  evidence_.got = evidence_.want * 0.5;
  EXPECT_EQ(cause_without_contributions(), "halved");
}

TEST_F(ExplainTest, TextSaysCountWorstPlaceAndCause) {
  evidence_.got.flatten().slice(0, 300, 600) *= 0.5;
  const auto result = explain(evidence_);
  EXPECT_EQ(result.differing, 300);
  EXPECT_EQ(result.where, "all inside rank 1's shard, flat 300..599");
  EXPECT_THAT(result.text,
              StartsWith("  blocks.1.weight [30,20]   300 of 600 elements differ (50.0 %)\n"
                         "    worst   ["));
  EXPECT_THAT(result.text, HasSubstr("ulp\n    where   all inside rank 1's shard, flat 300..599\n"
                                     "    looks like  got = 0.5000 x want on 300/300 -> averaged "
                                     "twice over 2 ranks   (residual 0.0 ulp; next best: "));
}

TEST_F(ExplainTest, NamesTheLostAndTheDoubledContribution) {
  for (size_t k = 0; k < 8; ++k) {
    std::vector<double> coefficients(8, 1);
    const std::string which =
        "micro-batch " + std::to_string(k % 4 + 1) + " of rank " + std::to_string(k / 4);
    coefficients[k] = 0;
    evidence_.got = average(coefficients);
    EXPECT_EQ(cause(), which + " is missing");
    coefficients[k] = 2;
    evidence_.got = average(coefficients);
    EXPECT_EQ(cause(), which + " is counted twice");
  }
}

TEST_F(ExplainTest, NamesRowsAndColumns) {
  const std::vector<std::pair<std::vector<double>, std::string>> faults = {
      {{0, 0, 0, 0, 1, 1, 1, 1}, "rank 0 is missing"},
      {{2, 2, 2, 2, 0, 0, 0, 0}, "rank 0 alone, not reduced"},
      {{1, 1, 0, 1, 1, 1, 0, 1}, "micro-batch 3 is missing"},
      {{2, 1, 1, 1, 2, 1, 1, 1}, "micro-batch 1 is counted twice"},
      {{0, 0, 0, 1, 0, 0, 0, 1}, "only the last micro-batch"},
      {{1, 1, 1, 1, 2, 2, 2, 2}, "rank 1 is counted twice"}};
  for (const auto& [coefficients, want] : faults) {
    evidence_.got = average(coefficients);
    EXPECT_EQ(cause(), want);
  }
}

TEST_F(ExplainTest, FitsAnyMixOfContributions) {
  evidence_.got = average({1, 0, 0, 1, 0.5, 1, 3, 1});
  EXPECT_EQ(cause(), "coefficients of another kind");
  EXPECT_THAT(explain(evidence_).text,
              HasSubstr("    C       rank 0: 1/8 0 0 1/8, rank 1: 1/16 1/8 3/8 1/8\n"));
  EXPECT_EQ(cause_without_contributions(), "none");
}

TEST_F(ExplainTest, TakesClippingIntoAccount) {
  evidence_.want = evidence_.want * 0.3f;
  evidence_.got = average({1, 1, 1, 1, 1, 0, 1, 1}) * 0.3f;
  EXPECT_EQ(cause(), "micro-batch 2 of rank 1 is missing");
}

TEST_F(ExplainTest, SeesAShift) {
  for (const int64_t shift : {1, -1, 3}) {
    evidence_.got = at::roll(evidence_.want.flatten(), -shift).reshape({30, 20});
    const std::string by = (shift > 0 ? "+" : "") + std::to_string(shift);
    EXPECT_EQ(cause(), std::abs(shift) == 1 ? "shifted by one element (" + by + ")"
                                            : "shifted by " + by + " elements");
  }
  evidence_.got = at::roll(evidence_.want.flatten(), -300).reshape({30, 20});
  EXPECT_EQ(cause(), "shards 0 and 1 are swapped");
}

TEST_F(ExplainTest, SeesTheValueOfTheStepBefore) {
  evidence_.previous = at::randn({30, 20});
  evidence_.got = evidence_.previous.clone();
  EXPECT_EQ(cause(), "the previous step's values");
}

// Half of the right value within one ulp, but exactly "stale".
TEST_F(ExplainTest, TheLeastResidualComesFirst) {
  evidence_.previous = at::nextafter(evidence_.want * 0.5, at::zeros({30, 20}));
  evidence_.got = evidence_.previous.clone();
  const auto result = explain(evidence_);
  ASSERT_GE(result.hypotheses.size(), 2u);
  EXPECT_EQ(result.hypotheses[0].cause, "the previous step's values");
  EXPECT_EQ(result.hypotheses[0].residual_ulp, 0);
  EXPECT_GT(result.hypotheses[1].residual_ulp, 0);
}

TEST_F(ExplainTest, AHypothesisForAThirdOfTheElementsIsNone) {
  evidence_.got = at::randn({30, 20});
  evidence_.got.flatten().slice(0, 0, 200).copy_(evidence_.want.flatten().slice(0, 0, 200) * 0.5);
  EXPECT_EQ(cause_without_contributions(), "none");
  evidence_.got.flatten().slice(0, 0, 400).copy_(evidence_.want.flatten().slice(0, 0, 400) * 0.5);
  EXPECT_THAT(cause_without_contributions(), StartsWith("averaged twice"));
}

TEST_F(ExplainTest, SeesThatItIsOnlyRounding) {
  evidence_.got = evidence_.want * (1 + 0x1p-22f);
  EXPECT_THAT(cause(), StartsWith("rounding"));
}

TEST_F(ExplainTest, ClaimsNothingAboutNoise) {
  evidence_.got = at::randn({30, 20});
  EXPECT_EQ(cause_without_contributions(), "none");
  EXPECT_EQ(cause(), "none");
  EXPECT_THAT(explain(evidence_).text, HasSubstr("looks like  no known fault explains this\n"));
}

// A known fault, and every element of it off by 1/8192 to 1/4096 of itself or of the right one.
struct Known {
  std::string cause;
  at::Tensor got;
};

TEST_F(ExplainTest, WhatIsNearlyAKnownFaultHasNoExplanation) {
  const auto& want = evidence_.want;
  const auto flat = want.flatten();
  evidence_.previous = at::randn({30, 20});
  evidence_.others["b"] = at::randn({30, 20});
  evidence_.loss_scale = 1024, evidence_.next_loss_scale = 4096, evidence_.previous_loss_scale = 2;
  evidence_.clip_factor = 0.3;
  std::vector<Known> all = {
      {"shifted by one element (+1)", at::roll(flat, -1).reshape({30, 20})},
      {"shifted by -3 elements", at::roll(flat, 3).reshape({30, 20})},
      {"shards 0 and 1 are swapped", at::roll(flat, 300).reshape({30, 20})},
      {"the gradient of b", evidence_.others["b"]},
      {"the previous step's values", evidence_.previous},
      {"the sum of this step and the previous one (not zeroed)", want + evidence_.previous},
      {"rounded to bf16", want.to(at::kBFloat16).to(at::kFloat)},
      {"rounded to fp16", want.to(at::kHalf).to(at::kFloat)},
      {"rounding: another order of additions, or a fused operation", want * (1 + 0x1p-22f)},
      {"micro-batch 2 of rank 1 is missing", average({1, 1, 1, 1, 1, 0, 1, 1})},
      {"coefficients of another kind", average({1, 0, 0, 1, 0.5, 1, 3, 1})},
      {"clipped by the wrong norm, or another common factor", want * 0.7}};
  for (const auto& [factor, cause] : std::vector<std::pair<double, std::string>>{
           {0.5, "averaged twice over 2 ranks"},
           {0.25,
            "averaged twice over 4 micro-batches or divided by the loss scale of the next "
            "step"},
           {8, "a sum, not averaged at all"},
           {0, "lost: no contribution arrived"},
           {-1, "the sign is flipped"},
           {1024, "the loss scale was not removed"},
           {1.0 / 1024, "the loss scale was removed twice"},
           {0.3, "clipped twice"},
           {1 / 0.3, "not clipped"}})
    all.push_back({cause, want * factor});
  for (const auto& known : all) {
    evidence_.got = known.got.clone();
    EXPECT_EQ(cause(), known.cause);
    const auto off = (at::rand({30, 20}) / 2 + 0.5) * 0x1p-12 * at::randn({30, 20}).sign();
    evidence_.got = known.got + at::maximum(want.abs(), known.got.abs()) * off;
    EXPECT_EQ(cause(), "none") << "nearly " << known.cause;
    EXPECT_THAT(explain(evidence_).text, HasSubstr("no known fault explains this\n"));
  }
}

// A single element has some factor, whatever made it wrong; so have equal ones.
TEST(Explain, AFactorOfFewElementsIsNoEvidence) {
  const auto cause_of = [](const at::Tensor& want, const at::Tensor& got) {
    const auto result = explain({.name = "bias", .got = got, .want = want, .world = 2});
    return result.hypotheses.empty() ? "none" : result.hypotheses[0].cause;
  };
  const auto want = at::tensor({0.3f, -0.7f, 0.11f, 0.9f});
  for (const float factor : {0.5f, 0.7f}) {
    for (const int64_t numel : {1, 2}) {
      const auto few = want.slice(0, 0, numel);
      EXPECT_EQ(cause_of(few, few * factor), "none") << numel;
    }
    auto half = want.slice(0, 0, 2) * factor;  // one of two
    half[1] = 5;
    EXPECT_EQ(cause_of(want.slice(0, 0, 2), half), "none");
    EXPECT_EQ(cause_of(at::full({600}, 0.3f), at::full({600}, 0.3f) * factor), "none");
    EXPECT_NE(cause_of(want, want * factor), "none") << "four of four";
  }
}

// In bf16 an element has 8 bits: it takes more of them.
TEST(Explain, ANarrowTypeNeedsMoreElements) {
  at::manual_seed(3);
  const auto all = at::randn({64}).to(at::kBFloat16);
  const auto has_cause = [&](int64_t numel) {
    const auto want = all.slice(0, 0, numel);
    const Evidence evidence{.name = "bias", .got = want * 0.5, .want = want, .world = 2};
    return !explain(evidence).hypotheses.empty();
  };
  EXPECT_FALSE(has_cause(3));
  EXPECT_TRUE(has_cause(64));
}

TEST(Explain, ANumberIsExplainedByWhatItIsAndNotByWhatIsNear) {
  const auto cause_of = [](double got) {
    Evidence evidence;
    evidence.name = "norm of the gradient";
    evidence.got = at::full({1}, got, at::kDouble);
    evidence.want = at::full({1}, 17.0, at::kDouble);
    evidence.is_gradient = false;
    evidence.is_number = true;
    evidence.predictions = {{"the norm of shard 0 alone", at::full({1}, 1.3, at::kDouble)}};
    const auto result = explain(evidence);
    return result.hypotheses.empty() ? "none" : result.hypotheses[0].cause;
  };
  EXPECT_EQ(cause_of(1.3), "the norm of shard 0 alone");
  EXPECT_EQ(cause_of(1.31), "none") << "4e13 ulp away, and 1/1000 of the difference";
  EXPECT_EQ(cause_of(0), "it is zero");
  EXPECT_EQ(cause_of(8.5), "none") << "half of the right one";
}

TEST_F(ExplainTest, NotFiniteComesFirstAndDoesNotHideTheCause) {
  evidence_.got = evidence_.want * 0.5;
  evidence_.got[7][3] = std::numeric_limits<float>::quiet_NaN();
  const auto result = explain(evidence_);
  EXPECT_EQ(result.not_finite, 1);
  EXPECT_EQ(result.worst_index, 143);
  EXPECT_THAT(result.text, HasSubstr("]   1 not finite; 600 of 600 elements"));
  EXPECT_THAT(result.text, HasSubstr("worst   [7,3]  got nan"));
  EXPECT_EQ(result.hypotheses.at(0).cause, "averaged twice over 2 ranks");
  evidence_.got = at::full({30, 20}, std::numeric_limits<float>::infinity());
  EXPECT_THAT(explain(evidence_).text, HasSubstr("every wrong element is NaN or infinite"));
}

TEST_F(ExplainTest, ASliceIsPlacedInItsWhole) {
  const auto slice = [](const at::Tensor& tensor) { return tensor.flatten().slice(0, 300, 600); };
  evidence_.shape = {30, 20};
  evidence_.begin = 300;
  evidence_.want = slice(evidence_.want);
  evidence_.got = evidence_.want.clone();
  evidence_.got[45] += 1;
  for (auto& row : evidence_.contributions) {
    for (at::Tensor& tensor : row) tensor = slice(tensor);
  }
  const auto result = explain(evidence_);
  EXPECT_EQ(result.worst_index, 345);
  EXPECT_EQ(result.where, "all inside rank 1's shard, flat 345..345");
  EXPECT_THAT(result.text, HasSubstr("worst   [17,5]"));
}

TEST_F(ExplainTest, NamesTheRanksWhoseShardsAreWrong) {
  evidence_.shards = 4;
  evidence_.got.flatten()[10] += 1;
  evidence_.got.flatten().slice(0, 450, 460) += 1;
  EXPECT_EQ(explain(evidence_).where, "in the shards of rank 0 (1), rank 3 (10), flat 10..459");
  evidence_.shards = 1;
  EXPECT_EQ(explain(evidence_).where, "flat 10..459");
}

TEST_F(ExplainTest, ADifferenceWithinTheBoundIsNone) {
  evidence_.bound = at::full({30, 20}, 0.01);
  evidence_.formula = "bf16 reduce, W=2";
  evidence_.got += 0.005;
  EXPECT_EQ(explain(evidence_).differing, 0);
  evidence_.got[0][1] += 1;
  const auto result = explain(evidence_);
  EXPECT_EQ(result.differing, 1);
  EXPECT_THAT(result.text, HasSubstr("1 of 600 elements beyond bound (0.2 %)"));
  EXPECT_THAT(result.text, HasSubstr(" x bound 1.00e-02 (bf16 reduce, W=2)"));
}

TEST_F(ExplainTest, SizesMustAgree) {
  evidence_.got = at::ones({5});
  EXPECT_THROW(explain(evidence_), std::runtime_error);
  evidence_.got = evidence_.want + 1;
  evidence_.contributions[1].pop_back();
  EXPECT_THROW(explain(evidence_), std::runtime_error);
}

TEST(WithThousands, GroupsDigitsByThree) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1000), "1 000");
  EXPECT_EQ(with_thousands(-36864), "-36 864");
  EXPECT_EQ(with_thousands(-100), "-100");
  EXPECT_EQ(with_thousands(1234567), "1 234 567");
}

}  // namespace
}  // namespace equigrad::conformance::oracle
