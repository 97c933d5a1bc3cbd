// From the ranks' answers to one picture: whose samples, whose slices, which gradients.
#include "conformance/verdict/picture_judge.hpp"

#include <gmock/gmock.h>

#include "conformance/verdict/lane_tally.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::Outcome;
using ::testing::ElementsAre;

Outcome answered(const json& answer) { return {Outcome::Kind::Ok, answer, "", ""}; }

json picture(const std::string& tensor, int begin, const json& wrong) {
  return {{"tensor", tensor}, {"what", "gradient"},
          {"step", 1},        {"samples", {{begin, exact_text(0.5), exact_text(1)}}},
          {"ulps", {0, 1}},   {"slices", {{tensor, begin, begin + 2, wrong}}}};
}

json answer(int rank, bool held) {
  return {{"cover", {{"w", 2 * rank, 2 * rank + 2, 4}}},
          {"gradients", {{{"w", held, exact_text(0)}, {"b", true, exact_text(0)}}}}};
}

TEST(JudgePicture, TakesTheSamplesOfTheFirstRankAndTheSlicesOfAll) {
  json first = answer(0, false), second = answer(1, false), third = answer(2, true);
  first["picture"] = picture("w", 0, {1, 1});
  second["picture"] = picture("w", 2, {0, 1});
  const auto found = picture_from({answered(first), answered(second), answered(third)}, 1);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, 1);
  ASSERT_EQ(found->samples.size(), 1u);
  EXPECT_EQ(found->samples[0].index, 2);
  EXPECT_EQ(found->samples[0].got, 0.5);
  EXPECT_EQ(found->numel, 6) << "the third rank ends there";
  ASSERT_EQ(found->slices.size(), 3u);
  EXPECT_THAT(found->slices[0].wrong, ElementsAre(1, 1));
  EXPECT_THAT(found->slices[1].wrong, ElementsAre(0, 1));
  EXPECT_TRUE(found->slices[2].wrong.empty()) << "nothing of it was wrong";
  EXPECT_EQ(found->slices[2].begin, 4);
  ASSERT_EQ(found->gradients.size(), 2u);
  EXPECT_THAT(found->gradients[0].wrong_ranks, ElementsAre(2));
  EXPECT_THAT(found->gradients[1].wrong_ranks, ElementsAre(0));
}

TEST(JudgePicture, OfTheContractIsInItsDifferenceAndThereNeedBeNone) {
  const json difference = {{"difference", {{"picture", picture("w", 0, {1})}}}};
  EXPECT_EQ(picture_from({answered(json::object()), answered(difference)}, 0)->rank, 1);
  EXPECT_FALSE(picture_from({answered(answer(0, true))}, 0).has_value());
}

}  // namespace
}  // namespace equigrad::conformance
