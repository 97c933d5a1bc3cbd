// What the planted faults said before a rank died is told, and nothing of those after it.
#include "conformance/campaigns/self_check.hpp"

#include <gmock/gmock.h>
#include <signal.h>

#include "conformance/campaigns/runner.hpp"
#include "conformance/faults/planted_faults.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(SelfCheck, ThatBreaksOffKeepsWhatWasPlantedAndCaughtBefore) {
  const auto& faults = faults::planted_faults();
  RunOptions options;
  options.cases = {parse_id(faults[0].in)};
  options.data = find_data("", false);
  options.quiet = true;
  options.slots = 1;
  options.serve = [dies = faults[2].name](const nlohmann::json& request,
                                          ranks::RankContext& context) {
    if (request.value("fault", "") == dies) raise(SIGKILL);
    return serve(request, context);
  };
  const auto run = run_matrix(options);
  EXPECT_THAT(run.failure, HasSubstr("planted: " + faults[2].name));
  ASSERT_THAT(run.self_checks, SizeIs(2));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(run.self_checks[i].fault, faults[i].name);
    EXPECT_TRUE(run.self_checks[i].caught) << run.self_checks[i].by;
  }
  ASSERT_THAT(run.cases, SizeIs(1));
  EXPECT_EQ(run.cases[0].verdict, reports::Verdict::NotRun);
}

}  // namespace
}  // namespace equigrad::conformance
