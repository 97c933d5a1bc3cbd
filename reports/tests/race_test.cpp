#include "reports/race.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace equigrad::reports {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

RaceRow row(const std::string& contestant, double step_s, double ratio) {
  RaceRow row;
  row.contestant = contestant;
  row.round_s = {step_s, step_s, step_s};
  row.step_s = {step_s, 0.9 * step_s, 1.1 * step_s};
  row.to_base = {ratio, 0.9 * ratio, 1.1 * ratio};
  row.cpu_s = row.step_s;
  row.cpu_to_base = row.to_base;
  row.best_step_s = 0.8 * step_s;
  row.growth_bytes = 285'000'000;
  row.wire_bytes = 21'200'000;
  row.collectives = {{"all_gather", 3}, {"all_to_all", 1}};
  if (contestant != "DDP") {
    row.gathered_numel = 1'234'567;
    row.least_gathered_numel = 1'200'000;
  }
  row.is_proven = true;
  return row;
}

Race race() {
  Race race;
  race.environment.cpu = "a <processor>";
  race.bandwidth_bytes_per_s = 1e9;
  for (const int ranks : {1, 2, 4}) {
    RaceGroupResult group;
    group.name = "ranks " + std::to_string(ranks);
    group.model = "GPT";
    group.parameters = 5'289'472;
    group.ranks = ranks;
    group.base = "DDP";
    group.compute_limit_s = 0.1;
    group.rows = {row("DDP", 0.2, 1), row("Equigrad stage 2", 0.15 * ranks, 0.75)};
    RaceRow fallen;
    fallen.contestant = "DeepSpeed <3>";
    fallen.trouble = "it | broke\nafterwards";
    group.rows.push_back(fallen);
    race.groups.push_back(group);
  }
  return race;
}

TEST(RaceJson, HoldsEveryRoundAndWhyOneFell) {
  const auto json = nlohmann::json::parse(to_json(race()));
  ASSERT_EQ(json.at("groups").size(), 3U);
  const auto& rows = json.at("groups").at(1).at("rows");
  EXPECT_EQ(rows.at(1).at("round_s").size(), 3U);
  EXPECT_EQ(rows.at(1).at("collectives").at("all_gather"), 3);
  EXPECT_EQ(rows.at(2).at("trouble"), "it | broke\nafterwards");
  EXPECT_TRUE(rows.at(2).at("growth_bytes").is_null());
}

TEST(RaceMarkdown, HasARowForEachContestant) {
  const std::string text = to_markdown(race());
  EXPECT_THAT(text, HasSubstr("| Equigrad stage 2 | 300 [270, 330] | 0.75 [0.68, 0.83] | 240 |"));
  EXPECT_THAT(text, HasSubstr("1 all\\_to\\_all | 1,234,567 / 1,200,000 |"));
  EXPECT_THAT(text, HasSubstr("1 all\\_to\\_all |  |"));
  EXPECT_THAT(text, HasSubstr("every bit"));
  EXPECT_THAT(text, HasSubstr("it \\| broke"));  // no more cells than the head has
  EXPECT_THAT(text, Not(HasSubstr("afterwards")));
}

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

TEST(RaceTerminal, ARowHasStepRatioAndProofAndFits) {
  const std::string text = to_terminal(race(), 80);
  EXPECT_THAT(text, ContainsRegex("\nEquigrad stage 2 +300 \\[270, 330\\] +0.75 \\[0.68, 0.83\\] "
                                  "+every bit\n"));
  EXPECT_THAT(text, ContainsRegex("\ncontestant +step, ms +/ DDP +of bound\n"));
  EXPECT_THAT(text, HasSubstr("\nDeepSpeed <3>  it | broke\n"));
  for (const char* not_there : {"afterwards", "all_gather", "\\_", "too wide"})
    EXPECT_THAT(text, Not(HasSubstr(not_there)));
  for (const std::size_t columns : {45U, 80U, 132U})
    EXPECT_LE(widest_line(to_terminal(race(), columns)), columns);
}

TEST(RaceTerminal, WhatDoesNotFitIsLeftOutAndNamed) {
  const std::string narrow = to_terminal(race(), 45);
  EXPECT_THAT(narrow, ContainsRegex("\nEquigrad stage 2 +300 +0.75 +every bit\n"));
  EXPECT_THAT(narrow, HasSubstr("\n# too wide, in race.md: intervals\n"));
  EXPECT_THAT(to_terminal(race(), 40), ContainsRegex("\nEquigrad stage 2 +300 +0.75\n"));
}

// Its time is what the others' are divided by, and its bytes are one of the limits.
TEST(Race, WhereTheBaseFellThereIsNoRatio) {
  Race of = race();
  of.groups.resize(1);
  auto& group = of.groups[0];
  group.rows[0] = RaceRow{.contestant = "DDP", .trouble = "it broke"};
  group.rows[1].to_base = group.rows[1].cpu_to_base = {};
  const std::string text = to_markdown(of);
  EXPECT_THAT(text, HasSubstr("| DDP | it broke |"));
  EXPECT_THAT(text,
              HasSubstr("| Equigrad stage 2 | 150 [135, 165] | - | 120 | 150 [135, 165] | -"));
  EXPECT_THAT(text, HasSubstr("100 ms to compute without communication."));
  EXPECT_THAT(text, Not(HasSubstr("bytes that DDP sends")));
  EXPECT_THAT(to_html(of), HasSubstr(">-</td>"));
  EXPECT_THAT(ratio_drawing(group), HasSubstr(">no base<"));
  EXPECT_THAT(ratio_drawing(group), Not(HasSubstr("0.00")));
}

TEST(RacePage, EscapesAndDraws) {
  const std::string page = to_html(race());
  EXPECT_THAT(page, HasSubstr("DeepSpeed &lt;3&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<3>")));
  EXPECT_THAT(page, HasSubstr(">1,234,567 / 1,200,000<"));
  EXPECT_THAT(page, HasSubstr("Step time along ranks"));
  EXPECT_THAT(page, HasSubstr("</html>"));
}

TEST(RacePage, BeginsWithWhatTheIntervalsShow) {
  Race of = race();
  EXPECT_THAT(to_html(of),
              HasSubstr("Equigrad stage 2 is faster than DDP, 0.75 [0.68, 0.83] of its "
                        "step time."));
  for (RaceRow& row : of.groups[0].rows) row.to_base.high = 1.2;
  EXPECT_THAT(to_html(of), HasSubstr("Equigrad stage 2 cannot be told apart from DDP"));
}

TEST(RaceDrawing, ABarIsAsLongAsItsRatio) {
  const std::string drawing = ratio_drawing(race().groups[0]);
  EXPECT_THAT(drawing, HasSubstr("width=\"500\" height=\"15\""));  // the base, the longest
  EXPECT_THAT(drawing, HasSubstr("width=\"375\" height=\"15\""));  // 0.75 of it
}

TEST(RaceDrawing, SeriesAreHeatsThatDifferInTheLastNumber) {
  const auto series = scaling_series(race());
  ASSERT_EQ(series.size(), 1U);
  EXPECT_EQ(series[0].along, "ranks");
  ASSERT_EQ(series[0].points.size(), 3U);
  EXPECT_EQ(series[0].points[2].along, 4);
  EXPECT_EQ(series[0].points[2].step_s.at("DDP"), 0.2);
  Race single = race();
  single.groups.resize(1);
  EXPECT_TRUE(scaling_series(single).empty());
  EXPECT_EQ(scaling_drawing("none", "ranks", {}), "");
}

}  // namespace
}  // namespace equigrad::reports
