// What `equigrad train` says of steps: rows that fit 80 columns, the course of the loss, the rate.
#include "conformance/cli/train_report.hpp"

#include <gmock/gmock.h>

#include <sstream>

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TrainReport report_of(std::size_t steps) {
  TrainReport report;
  report.data = "text";
  report.parameters = 96;
  report.stage = 2;
  report.world = 2;
  report.wanted_steps = 4;
  report.precision = "fp32";
  report.twin = "the command's options";
  report.tokens = 100;
  report.verdict = "HELD";
  report.all_seconds = 9;
  for (std::size_t i = 0; i < steps; ++i)
    report.steps.push_back({.loss = 4.0 - static_cast<double>(i),
                            .twin_loss = 4.0,
                            .compared = 100'000'000'000,
                            .differing = static_cast<int64_t>(i == 1 ? 5 : 0),
                            .worst_ulp = 1.5e10,
                            .seconds = i == 0 ? 3.0 : 1.0});
  return report;
}

TEST(TrainReport, RowsStandUnderTheirHeadsAndFitEightyColumns) {
  const auto report = report_of(2);
  std::istringstream lines(head_of(report) + row_of(report, 0) + row_of(report, 1));
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  ASSERT_EQ(all.size(), 7U);
  EXPECT_THAT(all[0], HasSubstr("text, 96 parameters, stage 2, fp32, 2 ranks, seed 0"));
  EXPECT_THAT(all[3], HasSubstr("tokens/s"));
  for (std::size_t i : {3U, 5U, 6U}) EXPECT_EQ(all[i].size(), 77U) << all[i];
  EXPECT_EQ(all[5],
            "     1    4.000000    4.000000  100000000000            0   1.5e+10        33");
  EXPECT_THAT(all[6], HasSubstr("     100"));
}

TEST(TrainReport, TheEndHasTheCourseOfTheLossAndTheAverageRate) {
  const auto text = end_of(report_of(4));
  EXPECT_THAT(text, HasSubstr("# loss 4.000000 in the first step, 1.000000 in the last\n"));
  EXPECT_THAT(text, HasSubstr("#         4 | *\n"));
  EXPECT_THAT(text, HasSubstr("#         1 |    *\n"));
  EXPECT_THAT(text, HasSubstr("# 66 tokens/s on average, the engine alone; 9.0 s in all"));
  EXPECT_THAT(text, HasSubstr("HELD  4 steps, 400000000000 elements compared with the twin, at "
                              "most 5 of a step differing\n"));
}

TEST(TrainReport, AnEarlyEndSaysHowFarItCame) {
  EXPECT_THAT(end_of(report_of(1)), AllOf(HasSubstr("HELD  1 steps of 4, "), Not(HasSubstr("|"))));
  const auto none = end_of(report_of(0));
  EXPECT_EQ(none,
            "HELD  0 steps of 4, 0 elements compared with the twin, at most 0 of a step "
            "differing\n");
}

TEST(TrainReport, TheRecordHasEveryStep) {
  const auto record = record_of(report_of(3));
  EXPECT_EQ(record.at("steps").size(), 3U);
  EXPECT_EQ(record.at("steps").at(1).at("differing"), 5);
  EXPECT_EQ(record.at("steps").at(2).at("loss"), 2.0);
  EXPECT_EQ(record.at("wanted_steps"), 4);
  EXPECT_EQ(record.at("tokens_per_second"), 60.0);
  EXPECT_TRUE(record_of(report_of(0)).at("tokens_per_second").is_null());
}

}  // namespace
}  // namespace equigrad::conformance::cli
