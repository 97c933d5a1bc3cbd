// Who says nothing after a failure is named; a board that does not answer is waited for in vain,
// but not for ever.
#include "engine/comm/roll_call.hpp"

#include <gmock/gmock.h>

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

namespace equigrad::comm {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

Board shared_board() {
  struct Written {
    std::mutex mutex;
    std::set<std::string> keys;
  };
  const auto written = std::make_shared<Written>();
  return {[written](const std::string& key) {
            const std::lock_guard lock(written->mutex);
            written->keys.insert(key);
          },
          [written](const std::string& key) {
            const std::lock_guard lock(written->mutex);
            return written->keys.contains(key);
          }};
}

TEST(RollCall, RanksWithoutAWordAreNamed) {
  const auto board = shared_board();
  const auto of = [&](int rank, int patience_ms) {
    return RollCall(board, rank, 4, milliseconds(patience_ms)).silent();
  };
  // Its patience doubles until the board has answered in time, on a machine that is busy.
  const auto silent_of = [&](int rank) {
    for (int patience = 30; patience < 4'000; patience *= 2)
      if (auto silent = of(rank, patience)) return silent;
    return std::optional<std::vector<int>>();
  };
  EXPECT_THAT(silent_of(2), Optional(ElementsAre(0, 1, 3)));
  EXPECT_THAT(silent_of(0), Optional(ElementsAre(1, 3)));
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(100));
    of(3, 0);
    of(1, 0);
  });
  EXPECT_THAT(of(0, 30'000), Optional(IsEmpty())) << "who comes late is waited for";
  late.join();
}

TEST(RollCall, ABoardThatDoesNotAnswerIsNotWaitedForWithoutEnd) {
  auto mute = shared_board();
  mute.write = [](const std::string&) { std::this_thread::sleep_for(std::chrono::hours(1)); };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(RollCall(mute, 0, 4, milliseconds(50)).silent(), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

TEST(RollCall, ABoardThatBreaksIsNoAnswer) {
  auto broken = shared_board();
  broken.has = [](const std::string&) -> bool { throw std::runtime_error("gone"); };
  EXPECT_EQ(RollCall(broken, 0, 4, milliseconds(50)).silent(), std::nullopt);
}

TEST(RollCall, WithoutABoardNobodyIsAsked) {
  EXPECT_FALSE(RollCall());
  EXPECT_THAT(RollCall().silent(), Optional(IsEmpty()));
}

}  // namespace
}  // namespace equigrad::comm
