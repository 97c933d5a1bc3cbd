// Who says nothing after a failure is named; a store that does not answer is waited for in vain, but
// not for ever.
#include "engine/comm/roll_call.hpp"

#include <gmock/gmock.h>

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace equigrad::comm {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

TEST(RollCall, RanksWithoutAWordAreNamed) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto of = [&](int rank, int patience_ms) {
    return RollCall(store, rank, 4, milliseconds(patience_ms)).silent();
  };
  EXPECT_THAT(of(2, 30), Optional(ElementsAre(0, 1, 3)));
  EXPECT_THAT(of(0, 30), Optional(ElementsAre(1, 3)));
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(100));
    of(3, 0);
    of(1, 0);
  });
  EXPECT_THAT(of(0, 30'000), Optional(IsEmpty())) << "who comes late is waited for";
  late.join();
}

class Mute : public c10d::HashStore {
 public:
  void set(const std::string&, const std::vector<uint8_t>&) override {
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
};

TEST(RollCall, AStoreThatDoesNotAnswerIsNotWaitedForWithoutEnd) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(RollCall(c10::make_intrusive<Mute>(), 0, 4, milliseconds(50)).silent(), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
}

class Broken : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>&) override { throw std::runtime_error("gone"); }
};

TEST(RollCall, AStoreThatBreaksIsNoAnswer) {
  EXPECT_EQ(RollCall(c10::make_intrusive<Broken>(), 0, 4, milliseconds(50)).silent(), std::nullopt);
}

TEST(RollCall, WithoutAStoreNobodyIsAsked) {
  EXPECT_FALSE(RollCall());
  EXPECT_THAT(RollCall().silent(), Optional(IsEmpty()));
}

}  // namespace
}  // namespace equigrad::comm
