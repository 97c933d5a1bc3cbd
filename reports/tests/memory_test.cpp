#include "reports/memory.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "reports/bars.hpp"

namespace equigrad::reports {
namespace {

using testing::HasSubstr;
using testing::Not;

Memory memory() {
  Memory memory;
  memory.kinds = {"parameters", "activations"};
  MemoryGroup group{.name = "GPT <small>", .left_bytes = 1234, .formula_bytes = 1234};
  group.holders = {
      {"LibTorch alone", {{"forward", {2'000'000, 0}}, {"step", {3'000'000, 0}}}},
      {"Equigrad stage 3", {{"forward", {500'000, 1'000'000}}, {"step", {500'000, 0}}}, 1'650'000}};
  memory.groups = {group};
  return memory;
}

TEST(MemoryReport, TheHighestMomentIsThatOfTheMostBytesOfAllKinds) {
  const auto groups = memory().groups;
  EXPECT_EQ(highest(groups[0].holders[0]).phase, "step");
  EXPECT_EQ(highest(groups[0].holders[1]).phase, "forward");
  EXPECT_EQ(highest(groups[0].holders[1]).live_bytes(), 1'500'000);
  EXPECT_EQ(forecast_text(groups[0].holders[1]), "+10.00 %");
  EXPECT_EQ(forecast_text(groups[0].holders[0]), "");
}

TEST(MemoryReport, ThePageSaysWhoHoldsLeastAndDrawsEachKind) {
  const std::string page = to_html(memory());
  EXPECT_THAT(page, HasSubstr("GPT &lt;small&gt;: Equigrad stage 3 holds 1.50 MB at its highest "
                              "moment, LibTorch alone 3.00."));
  EXPECT_THAT(page, Not(HasSubstr("<small>")));
  // Of the largest, 3 MB: 500,000 of one kind and 1,000,000 of the other.
  EXPECT_THAT(page, HasSubstr(bar_cell({500'000, 1'000'000}, 3'000'000)));
  EXPECT_THAT(page, HasSubstr(swatch(1) + "activations"));
  EXPECT_THAT(page, HasSubstr("+10.00 %"));
}

TEST(MemoryReport, PiecesOfABarAreSharesOfTheLargest) {
  const std::string bar = bar_cell({1, 0, 1}, 4);
  EXPECT_THAT(bar, HasSubstr("<rect x=\"0\" width=\"25\""));
  EXPECT_THAT(bar, HasSubstr("<rect x=\"25\" width=\"25\""));
  EXPECT_THAT(bar_cell({0}, 0), Not(HasSubstr("<rect")));
}

TEST(MemoryReport, TheJsonHasEveryPhase) {
  const auto json = nlohmann::json::parse(to_json(memory()));
  const auto& holder = json.at("groups").at(0).at("holders").at(1);
  ASSERT_EQ(holder.at("moments").size(), 2U);
  EXPECT_EQ(holder.at("moments").at(0).at("live_bytes"), 1'500'000);
  EXPECT_EQ(holder.at("moments").at(0).at("bytes").at(1), 1'000'000);
  EXPECT_EQ(json.at("kinds").at(1), "activations");
}

}  // namespace
}  // namespace equigrad::reports
