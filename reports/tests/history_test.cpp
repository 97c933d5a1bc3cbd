// Earlier runs of a folder: what is written is read again, and what cannot be read is left out.
#include "reports/history.hpp"

#include <gmock/gmock.h>

#include "reports/tests/example_run.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(History, IsReadAsItWasWritten) {
  const std::vector<reports::PastRun> runs = {reports::past_run(example_run()),
                                              reports::past_run(large_run(32, 0))};
  const auto again = reports::read_history(reports::history_lines(runs));
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again[0].outcome, "failed");
  EXPECT_EQ(again[0].executed, 5);
  EXPECT_EQ(again[0].failed, 3);
  EXPECT_EQ(again[0].wall_s, 93.0625);
  EXPECT_EQ(again[1].outcome, "held");
  EXPECT_EQ(reports::history_lines(again), reports::history_lines(runs));
}

TEST(History, LeavesOutWhatIsNoRunAndTheOldest) {
  const auto good = reports::history_lines({reports::past_run(example_run())});
  EXPECT_THAT(reports::read_history("not json\n{\"time\": 3}\n[1]\n" + good + "{\"time\":"),
              SizeIs(1));
  std::string many;
  for (int i = 0; i < 300; ++i) many += good;
  EXPECT_THAT(reports::read_history(many), SizeIs(reports::kMostPastRuns));
  EXPECT_THAT(reports::read_history(""), IsEmpty());
}

TEST(History, ThePageShowsEarlierRunsAndOtherPagesAndIsInert) {
  reports::Surroundings around;
  around.earlier = {reports::past_run(example_run()), reports::past_run(large_run(32, 0))};
  around.earlier[0].commit = around.earlier[0].command = kHostile;
  around.pages = {"faults.html", "javascript:alert(1)"};
  const auto page = reports::to_html(large_run(32, 0), around);
  EXPECT_THAT(page, AllOf(HasSubstr("2 of 3 held, this one among them"),
                          HasSubstr("<a href=\"faults.html\">faults.html</a>"),
                          HasSubstr("Time of the last 3 runs, 2 of which held"),
                          Not(HasSubstr("javascript:alert"))));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(reports::to_html(large_run(32, 0)),
              AllOf(Not(HasSubstr("Earlier runs")), Not(HasSubstr("id=\"folder\""))));
}

}  // namespace
}  // namespace equigrad::conformance
