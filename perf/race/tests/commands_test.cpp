#include "perf/race/commands.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

namespace equigrad::perf {
namespace {

TEST(Commands, AreRefusedUnderALauncher) {
  ASSERT_EQ(setenv("WORLD_SIZE", "2", 1), 0);
  char program[] = "equigrad_perf", command[] = "counts", option[] = "--baseline", file[] = "none";
  char* words[] = {program, command, option, file, nullptr};
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_commands(4, words), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::AllOf(testing::HasSubstr("one process of equigrad_perf"),
                             testing::HasSubstr("WORLD_SIZE=2")));
  ASSERT_EQ(unsetenv("WORLD_SIZE"), 0);
}

}  // namespace
}  // namespace equigrad::perf
