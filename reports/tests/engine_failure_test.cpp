// Every writer says that the engine failed where no fault was planted, and none that a planted
// fault was missed.
#include <gmock/gmock.h>

#include "reports/json.hpp"
#include "reports/parts.hpp"
#include "reports/tests/example_run.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/tests/schema.hpp"
#include "reports/text.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kSentence =
    "The engine failed where no fault was planted: Required.grad.x: step 1, gradient of w.";

reports::Run failed_run() {
  reports::Run run = large_run(32, 0);
  run.self_checks.clear();
  run.engine_failure = "Required.grad.x: step 1, gradient of w";
  fail(run.cases[5]);
  run.parts = {{"covering", 32, 1.5}};
  return run;
}

TEST(EngineFailure, IsTheVerdictOfEveryWriter) {
  const auto run = failed_run();
  EXPECT_EQ(reports::outcome_text(run), std::string(kSentence) + " 1 case of 32 failed.");
  EXPECT_THAT(reports::to_terminal(run),
              AllOf(HasSubstr(std::string("# planted: no fault more. ") + kSentence + "\n"),
                    HasSubstr(std::string("\nFAILED  ") + kSentence), Not(HasSubstr("NOT CAUGHT")),
                    Not(HasSubstr("VOID"))));
  EXPECT_THAT(reports::to_html(run), AllOf(HasSubstr(kSentence), Not(HasSubstr("proves nothing"))));
  EXPECT_THAT(reports::to_markdown(run), HasSubstr("The engine failed where no fault"));
  EXPECT_THAT(reports::to_annotations(run),
              StartsWith(std::string("::error title=equigrad failed::") + kSentence));
  EXPECT_THAT(reports::to_junit(run), AllOf(HasSubstr("name=\"self_check.engine\""),
                                            HasSubstr("<failure message=\"The engine failed")));
  EXPECT_THAT(reports::part_lines(run).at(0), StartsWith("covering: FAILED  32 cases, 1 failed"));
}

// One case of the planted faults held, another did not.
TEST(EngineFailure, IsToldBehindTheFaultsThatWerePlantedBeforeIt) {
  auto run = failed_run();
  run.self_checks = {example_self_checks()[0]};
  EXPECT_EQ(reports::outcome(run), reports::Outcome::Failed);
  EXPECT_THAT(reports::to_terminal(run),
              HasSubstr("was left out -> caught by exact lane, 59,177 of 59,177 elements\n"
                        "# planted: no fault more. " +
                        std::string(kSentence) + "\n"));
  EXPECT_THAT(reports::to_junit(run), HasSubstr("name=\"self_check.engine\""));
}

TEST(EngineFailure, IsInTheRecordAndItsSchema) {
  const auto text = reports::to_json(failed_run());
  EXPECT_THAT(schema_problems("run.schema.json", {text}), ElementsAre(IsEmpty()));
  EXPECT_EQ(reports::from_json(text).engine_failure, failed_run().engine_failure);
  EXPECT_THAT(reports::to_json(large_run(8, 0)), Not(HasSubstr("engine_failure")));
}

}  // namespace
}  // namespace equigrad::conformance
