// A run in parts: each has a line of its own, in every writer, and comes back from run.json.
#include "reports/parts.hpp"

#include <gmock/gmock.h>

#include "reports/json.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

reports::Run run_in_parts() {
  reports::Run run = large_run(8, 0);
  run.parts = {{"covering", 3, 1.5}, {"rest", 5, 2.5}};
  return run;
}

TEST(Parts, EachHasALineThatSaysWhetherItHeld) {
  auto run = run_in_parts();
  auto lines = reports::part_lines(run);
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(lines[0], StartsWith("covering: HELD  3 cases, "));
  EXPECT_THAT(lines[0], HasSubstr(" 0 differing where none may, in 1.5"));
  EXPECT_THAT(lines[1], StartsWith("rest: HELD  5 cases, "));
  run.cases[2].verdict = reports::Verdict::Failed;
  run.cases[3].verdict = reports::Verdict::Crashed;
  lines = reports::part_lines(run);
  EXPECT_THAT(lines[0], StartsWith("covering: FAILED  3 cases, 1 failed, "));
  EXPECT_THAT(lines[1], StartsWith("rest: BROKEN  5 cases, 1 crashed, "));
  run.cases[2].verdict = reports::Verdict::NotRun;
  EXPECT_THAT(reports::part_lines(run)[0], StartsWith("covering: NOT ALL RUN  3 cases, 1 not run"));
  for (auto& one : run.cases) one.verdict = reports::Verdict::Equal, one.lanes.clear();
  EXPECT_THAT(reports::part_lines(run)[0], StartsWith("covering: INCONCLUSIVE  3 cases, 3 empty"));
  run.self_checks[0].caught = false;
  EXPECT_THAT(reports::part_lines(run)[0], StartsWith("covering: VOID  3 cases"));
}

TEST(Parts, ARunWithoutThemHasNoLineAndOneRange) {
  const auto run = large_run(8, 0);
  EXPECT_THAT(reports::part_lines(run), IsEmpty());
  ASSERT_THAT(reports::part_ranges(run), SizeIs(1));
  EXPECT_EQ(reports::part_ranges(run)[0].end, run.cases.size());
}

TEST(Parts, EveryWriterSaysThem) {
  const auto run = run_in_parts();
  for (const auto& text :
       {reports::to_terminal(run), reports::to_html(run), reports::to_markdown(run)}) {
    EXPECT_THAT(text, HasSubstr("covering: HELD"));
    EXPECT_THAT(text, HasSubstr("rest: HELD"));
  }
  const auto junit = reports::to_junit(run);
  EXPECT_THAT(junit, HasSubstr("<testsuite name=\"covering.zero"));
  EXPECT_THAT(junit, HasSubstr("<testsuite name=\"rest.zero"));
  EXPECT_THAT(reports::to_junit(large_run(8, 0)), Not(HasSubstr("name=\"rest.")));
}

TEST(Parts, AreReadBack) {
  const auto read = reports::from_json(reports::to_json(run_in_parts()));
  ASSERT_THAT(read.parts, SizeIs(2));
  EXPECT_EQ(read.parts[0].name, "covering");
  EXPECT_EQ(read.parts[1].cases, 5);
  EXPECT_EQ(read.parts[0].wall_s, 1.5);
}

}  // namespace
}  // namespace equigrad::conformance
