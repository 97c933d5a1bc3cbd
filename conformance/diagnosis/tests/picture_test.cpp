// What is drawn of a failure: counted by hand.
#include "conformance/diagnosis/picture.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <limits>

namespace equigrad::conformance {
namespace {

using nlohmann::json;

Failure failure_of(const std::string& name, const at::Tensor& got, const at::Tensor& want) {
  return {
      {.phase = Phase::Gradient, .step = 1, .what = "gradient", .parameter = name, .begin = 100},
      got,
      want};
}

int64_t sum_of(const json& counts) {
  int64_t sum = 0;
  for (const auto& count : counts) sum += count.get<int64_t>();
  return sum;
}

TEST(Picture, CountsErrorsAndWhereTheyAre) {
  const auto want = at::ones({64});
  auto got = want.clone();
  got[0] = 1 + 0x1p-23;  // 1 ulp
  got[1] = 1 + 0x3p-23;  // 3 ulp
  got[63] = std::numeric_limits<float>::quiet_NaN();
  const auto picture = picture_of({failure_of("w", got, want)}, "w");
  EXPECT_EQ(picture.at("tensor"), "w");
  EXPECT_EQ(picture.at("step"), 2);
  const auto& ulps = picture.at("ulps");
  EXPECT_EQ(sum_of(ulps), 64);
  EXPECT_EQ(ulps.at(0), 61);
  EXPECT_EQ(ulps.at(1), 1);
  EXPECT_EQ(ulps.at(2), 1);
  EXPECT_EQ(ulps.back(), 1);
  const auto& slice = picture.at("slices").at(0);
  EXPECT_EQ(slice.at(1), 100);
  EXPECT_EQ(slice.at(2), 164);
  EXPECT_EQ(slice.at(3).size(), 32u);
  EXPECT_EQ(slice.at(3).at(0), 2);
  EXPECT_EQ(slice.at(3).at(31), 1);
  EXPECT_EQ(sum_of(slice.at(3)), 3);
}

TEST(Picture, SamplesAreFewInOrderAndHoldWhatIsWrong) {
  const auto want = at::arange(10000, at::kFloat);
  auto got = want.clone();
  got[7777] = 0;
  const auto samples = picture_of({failure_of("w", got, want)}, "w").at("samples");
  EXPECT_LE(samples.size(), static_cast<std::size_t>(kPictureSamples));
  EXPECT_GE(samples.size(), 32u);
  bool has_wrong = false;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (i > 0) EXPECT_LT(samples[i - 1].at(0), samples[i].at(0));
    has_wrong = has_wrong || samples[i].at(0) == 7877;
  }
  EXPECT_TRUE(has_wrong);
}

TEST(Picture, IsOfTheFirstParameterAndOfNoSingleNumber) {
  const auto want = at::ones({4});
  const auto got = want * 2;
  const auto picture = picture_of({failure_of("a", got, want), failure_of("b", got, want)}, "b");
  EXPECT_EQ(picture.at("tensor"), "b");
  EXPECT_EQ(picture.at("slices").size(), 2u);
  EXPECT_TRUE(picture_of({failure_of("", got, want)}, "").is_null());
  EXPECT_TRUE(picture_of({failure_of("n", at::ones({1}), at::zeros({1}))}, "n").is_null());
  EXPECT_TRUE(picture_of({}, "").is_null());
}

TEST(Picture, ANaNInPlaceOfANaNIsNoDifference) {
  const auto nan = at::full({4}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(picture_of({failure_of("w", nan, nan)}, "w").at("ulps").at(0), 4);
}

}  // namespace
}  // namespace equigrad::conformance
