// What went wrong is grouped by its cause, and a cause says what its cases have in common.
#include "reports/causes.hpp"

#include <gmock/gmock.h>

#include "reports/tests/example_run.hpp"
#include "reports/tests/large_run.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

reports::Case failed_with(const std::string& message) {
  reports::Case one = example_case(2, "bf16", 2, 1, "off", "sgd", "gpt", "engine_backward");
  one.verdict = reports::Verdict::Failed;
  one.message = message;
  return one;
}

TEST(Causes, AreReadFromTheMessage) {
  EXPECT_EQ(
      reports::cause_of(failed_with(
          "  first   step 1, norm of the gradient on rank 0\n"
          "    looks like  got = 0.50 x want on 12/12 -> averaged twice over 2 ranks   (residual"
          " 0.0 ulp)\n")),
      "averaged twice over 2 ranks");
  EXPECT_EQ(reports::cause_of(failed_with(
                "  first   step 1, all 29 gradients, the first head.weight [0, 3072) on rank 0\n"
                "    looks like  no known fault explains this\n")),
            "no known fault explains this; first wrong: gradient");
  EXPECT_EQ(reports::cause_of(failed_with(
                "  first   step 2, 4 of 8 parameters, the first clipped gradient of head.bias on "
                "rank 0\n    looks like  no known fault explains this\n")),
            "no known fault explains this; first wrong: clipped gradient");
  EXPECT_EQ(
      reports::cause_of(failed_with(
          "  first   step 2, gradient of head.weight [0, 3) on rank 0\n"
          "    looks like  got = 0.37 x want on 3/3 -> one common factor (a scale?)   (residual "
          "0.1 ulp)\n")),
      "one common factor (a scale?); first wrong: gradient");
  EXPECT_EQ(reports::cause_of(failed_with("  first   step 2, no answer on rank 1\n"
                                          "rank 1/2 died: signal 11\nmore")),
            "rank 1/2 died: signal 11");
  EXPECT_EQ(
      reports::cause_of(failed_with("  cross   its results differ from those of 3 cases, such as "
                                    "Required.grad.x\n")),
      "cross   its results differ from those of 3 cases");
  EXPECT_EQ(reports::cause_of(failed_with("")), "failed without a message");
}

TEST(Causes, NumbersDoNotTellThemApartButOtherWordsDo) {
  reports::Run run;
  for (const char* cause :
       {"micro-batch 1 of rank 0 missing", "clipped twice", "micro-batch 0 of rank 3 missing"})
    run.cases.push_back(failed_with("  looks like  got = f(want) -> " + std::string(cause)));
  const auto found = reports::causes(run);
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].text, "micro-batch N of rank N missing");
  EXPECT_THAT(found[0].cases, SizeIs(2));
  EXPECT_EQ(found[1].text, "clipped twice");
  EXPECT_EQ(reports::where_text(found[1]), "1 case of 3.");
}

TEST(Causes, SayWhatTheirCasesHaveInCommonAndWhetherSuchCasesHeld) {
  reports::Run run = large_run(512, 0);
  for (reports::Case& one : run.cases)
    if (one.dimensions["stage"] == "3" && one.dimensions["ranks"] != "1") fail(one);
  auto found = reports::causes(run);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(reports::where_text(found[0]),
            "96 cases of 512, only with stage 3; ranks 2, 3, 4. No such case held.");
  run.cases[511].verdict = reports::Verdict::Equal;
  found = reports::causes(run);
  EXPECT_EQ(found[0].alike_held, 1);
  run.cases[0].dimensions["section"] = "7";  // of the contract: the others have no such dimension
  EXPECT_THAT(reports::where_text(reports::causes(run)[0]), Not(HasSubstr("section")));
}

TEST(Causes, OfARunThatHeldAreNoneAndACrashIsNoFailure) {
  EXPECT_THAT(reports::causes(large_run(32, 0)), IsEmpty());
  const auto found = reports::causes(example_run());
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_EQ(found[0].verdict, reports::Verdict::Failed);
  EXPECT_EQ(found[1].verdict, reports::Verdict::Crashed);
  EXPECT_EQ(found[2].verdict, reports::Verdict::TimedOut);
}

}  // namespace
}  // namespace equigrad::conformance
