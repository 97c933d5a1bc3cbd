// A rank that is gone is named, whenever that is noticed.
#include "perf/race/rank_processes.hpp"

#include <gmock/gmock.h>

#include "perf/race/scratch.hpp"

namespace equigrad::perf {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(RankProcesses, ARankThatIsGoneIsNamedWithItsContestantAndWhatItSaid) {
  const Scratch scratch;
  RankProcesses ranks("short", {"/bin/sh", "-c", "echo it breaks"}, 2, scratch.path());
  // At first the answer does not come; afterwards the request cannot be sent.
  for (int time = 0; time < 2; ++time)
    EXPECT_THAT(
        [&] {
          ranks.ask({{"do", "start"}});
        },
        ThrowsMessage<std::runtime_error>(testing::AllOf(
            testing::ContainsRegex("\\[race\\] short, rank [01]: "), HasSubstr("it breaks"))));
}

}  // namespace
}  // namespace equigrad::perf
