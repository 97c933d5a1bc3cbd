// The pictures of a failure: what is in the record is drawn, and is said in words as well.
#include <gmock/gmock.h>

#include <limits>

#include "reports/json.hpp"
#include "reports/page.hpp"
#include "reports/tests/example_run.hpp"
#include "reports/tests/schema.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

reports::Picture example_picture() {
  reports::Picture picture;
  picture.tensor = "head.weight";
  picture.what = "gradient";
  picture.numel = 8;
  picture.samples = {{0, 0.5, 1}, {1, -1, -2}, {2, 3, 3}};
  picture.ulps = {1, 0, 2, 0};
  picture.slices = {{0, 0, 4, {1, 0, 0, 1}}, {1, 4, 8, {}}};
  picture.gradients = {{"head.weight", {1, 2}}, {"head.bias", {0, 0}}};
  return picture;
}

size_t count(const std::string& page, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = page.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST(Pictures, DrawWhatTheRecordHolds) {
  const auto page = reports::page_picture(example_picture());
  EXPECT_EQ(count(page, "<figure>"), 4u);
  EXPECT_EQ(count(page, "<circle class=\"wrong\""), 2u);
  EXPECT_EQ(count(page, "<circle class=\"right\""), 1u);
  EXPECT_THAT(page, HasSubstr("rank 0 has elements 0 to 4, 2 wrong; rank 1 has elements 4 to 8, 0 "
                              "wrong</title>"));
  EXPECT_THAT(page, HasSubstr("1 of 2 gradients were wrong in some step; a number is of ranks"));
  EXPECT_THAT(page, HasSubstr("Of 3 elements on rank 0, 2 differ"));
  EXPECT_THAT(page, HasSubstr("Got against want for 3 elements of head.weight, 2 of them wrong"));
}

TEST(Pictures, SurviveWhatARecordOfElsewhereMayHold) {
  EXPECT_THAT(reports::page_picture({}), IsEmpty());
  auto picture = example_picture();
  picture.tensor = picture.gradients[0].name = kHostile;
  picture.numel = 0;
  picture.samples[0].got = std::numeric_limits<double>::quiet_NaN();
  picture.samples[1].want = std::numeric_limits<double>::infinity();
  picture.slices[0] = {-1, 8, 4, {-5}};
  picture.ulps = {-1};
  const auto page = reports::page_picture(picture);
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(page, HasSubstr("2 points not finite"));
}

TEST(Pictures, AreInTheRecordItsSchemaAndThePage) {
  auto run = example_run();
  run.cases[2].picture = example_picture();
  const auto text = reports::to_json(run);
  EXPECT_EQ(reports::to_json(reports::from_json(text)), text);
  EXPECT_THAT(schema_problems("run.schema.json", {text}), ::testing::Each(IsEmpty()));
  EXPECT_EQ(reports::from_json(text).cases[2].picture->slices[0].wrong.size(), 4u);
  EXPECT_FALSE(reports::from_json(text).cases[1].picture.has_value());
  EXPECT_THAT(reports::to_html(run), HasSubstr("<div class=\"pictures\">"));
}

}  // namespace
}  // namespace equigrad::conformance
