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

TEST(History, TheWordsThatSelectAreThoseOfTheCommandWithoutPlacesAndManners) {
  for (const char* same :
       {"equigrad run zero2 --world 2", "build/dev/equigrad run zero2 --world 2 -q",
        "equigrad run --report out zero2 --json - --world 2 --verbose",
        "equigrad run zero2 --report=out --world 2 --baseline known.json --color never"})
    EXPECT_EQ(reports::selecting_words(same), "run zero2 --world 2") << same;
  EXPECT_EQ(reports::selecting_words("equigrad run zero2 --fault averaged_twice"),
            "run zero2 --fault averaged_twice");
  EXPECT_EQ(reports::selecting_words(""), "");
}

// Of four earlier runs two had other cases: neither is drawn, and both are counted.
TEST(History, ThePageComparesARunWithThoseOfTheSameSelection) {
  const auto run = large_run(32, 0);
  auto red = reports::past_run(example_run());
  red.command = run.command + " --report elsewhere -q";
  auto other = red;
  other.command = run.command + " zero2";
  const auto page =
      reports::to_html(run, {.earlier = {other, red, other, reports::past_run(run)}, .pages = {}});
  EXPECT_THAT(page, AllOf(HasSubstr("2 of 3 runs of the same selection held, this one counted"),
                          HasSubstr("Time of the last 3 runs, 2 of which held"),
                          HasSubstr("2 runs of other selections in history.jsonl.")));
  const auto alone = reports::to_html(run, {.earlier = {other}, .pages = {}});
  EXPECT_THAT(alone, AllOf(HasSubstr("None of the same selection. 1 run of other selections in"),
                           Not(HasSubstr("Time of the last"))));
}

TEST(History, ThePageShowsEarlierRunsAndOtherPagesAndIsInert) {
  auto run = large_run(32, 0);
  run.command += kHostile;
  reports::Surroundings around;
  around.earlier = {reports::past_run(run), reports::past_run(run)};
  around.earlier[0].commit = around.earlier[0].time = kHostile;
  around.pages = {{"faults.html", "Faults", "✓ Held"}, {"javascript:alert(1)", "Mine", ""}};
  const auto page = reports::to_html(run, around);
  EXPECT_THAT(page, AllOf(HasSubstr("3 of 3 runs of the same selection held"),
                          HasSubstr("<a href=\"faults.html\">Faults <span>✓ Held</span></a>"),
                          Not(HasSubstr("javascript:alert")), Not(HasSubstr("<script>alert"))));
  EXPECT_THAT(reports::to_html(large_run(32, 0)),
              AllOf(Not(HasSubstr("Earlier runs")), HasSubstr("aria-label=\"Reports\" hidden>")));
}

}  // namespace
}  // namespace equigrad::conformance
