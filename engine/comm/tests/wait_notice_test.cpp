// When a notice is due; connect_test.cpp hears them.
#include "engine/comm/wait_notice.hpp"

#include <gtest/gtest.h>

namespace equigrad::comm {
namespace {

TEST(WaitNotice, ComesAfterFiveAndThirtySecondsAndThenEveryMinute) {
  const std::vector<int> seconds{5, 30, 90, 150, 210};
  for (int notices = 0; notices < 5; ++notices)
    EXPECT_EQ(notice_time(notices).count(), seconds[static_cast<std::size_t>(notices)]);
}

TEST(WaitNotice, IsSilentWhereNothingIsWaitedFor) {
  testing::internal::CaptureStderr();
  {
    WaitNotice notice("rank 1", std::chrono::seconds(30));
    notice.wait_for("");
    std::this_thread::sleep_for(std::chrono::milliseconds(5'200));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace equigrad::comm
