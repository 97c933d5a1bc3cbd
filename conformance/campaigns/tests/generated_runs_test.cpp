#include "conformance/campaigns/generated_runs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "conformance/generated/program.hpp"
#include "conformance/generator/draw.hpp"

namespace equigrad::conformance {
namespace {

using testing::Contains;
using testing::HasSubstr;

reports::Run run_of(const GeneratedOptions& options) {
  ProcessSlots slots({.slots = 2, .widest = kGeneratedRanks, .serve = serve_with_generated});
  reports::Run run;
  run_generated(options, slots, run);
  return run;
}

TEST(GeneratedRuns, CasesHoldAndWhatTheyHadIsCounted) {
  const auto run = run_of({.seed = 1, .count = 96, .quiet = true});
  ASSERT_TRUE(run.generated);
  EXPECT_EQ(run.generated->failed, 0) << (run.cases.empty() ? "" : run.cases[0].message);
  EXPECT_EQ(run.generated->cases + run.generated->replaced, 96);
  EXPECT_GT(run.generated->compared, 10'000);
  EXPECT_GT(run.generated->pairs, 1000);
  EXPECT_GE(run.generated->workloads, 12);
}

TEST(GeneratedRuns, AFaultIsFoundAndItsCaseIsShrunkToAFileThatFailsAlike) {
  std::string folder = testing::TempDir() + "generated-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto run = run_of({.seed = 2,
                           .count = 64,
                           .shrink_s = 120,
                           .keep = folder,
                           .replay_prefix = "equigrad run",
                           .fault = "averaged_twice",
                           .quiet = true});
  ASSERT_FALSE(run.cases.empty());
  const auto& first = run.cases[0];
  EXPECT_EQ(first.verdict, reports::Verdict::Failed);
  EXPECT_THAT(first.replay, HasSubstr("equigrad run " + first.id));
  EXPECT_THAT(first.message, HasSubstr("fail alike"));
  std::ifstream file(folder + "/" + first.id + "/smaller.json");
  const auto smaller = generated_case(nlohmann::json::parse(file));
  EXPECT_LE(smaller.workload.world, 2);
  EXPECT_EQ(smaller.workload.steps, 1);
  EXPECT_LE(smaller.workload.tensors.size(), 2);
}

TEST(GeneratedRuns, OfMeshesAloneRanksShareAModelOrASequence) {
  const auto run = run_of({.seed = 4, .count = 12, .only_meshes = true, .quiet = true});
  ASSERT_TRUE(run.generated);
  EXPECT_EQ(run.generated->failed, 0) << (run.cases.empty() ? "" : run.cases[0].message);
  for (const auto& axis : run.generated->axes)
    if (axis.name == "data x sequence x tensor ranks")
      for (const auto& [value, cases] : axis.cases)
        EXPECT_FALSE(value.ends_with("x 1 x 1")) << value;
}

TEST(GeneratedRuns, TheEndOfTimeEndsThem) {
  // Ranks and their first twins take some of it: more, where the machine is busy.
  int64_t cases = 0;
  for (double seconds = 0.5; cases == 0 && seconds < 100; seconds *= 4) {
    const auto run = run_of({.seed = 3, .seconds = seconds, .quiet = true});
    ASSERT_TRUE(run.generated);
    cases = run.generated->cases;
  }
  EXPECT_GT(cases, 0);
}

}  // namespace
}  // namespace equigrad::conformance
