#include "engine/autograd/shared_callback.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <optional>
#include <thread>
#include <vector>

namespace equigrad::autograd {
namespace {

thread_local int calls = 0;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& /*function*/) {
  ++calls;
  return nullptr;
}

SharedCallback& counting() {
  static SharedCallback callback(
      at::RecordFunctionCallback(count, nullptr).scopes({at::RecordScope::USER_SCOPE}));
  return callback;
}

int calls_of_one_span() {
  calls = 0;
  { RECORD_USER_SCOPE("a span"); }
  return calls;
}

TEST(SharedCallback, ASpanReachesItOnceHoweverManyUseIt) {
  EXPECT_EQ(calls_of_one_span(), 0);
  EXPECT_FALSE(counting().is_used());
  std::optional<SharedCallback::Use> first(counting()), second(counting());
  EXPECT_EQ(calls_of_one_span(), 1);
  first.reset();
  EXPECT_EQ(calls_of_one_span(), 1) << "the second still uses it";
  EXPECT_TRUE(counting().is_used());
  second.reset();
  EXPECT_EQ(calls_of_one_span(), 0);
}

TEST(SharedCallback, ItCanBeUsedAgain) {
  for (int round = 0; round < 3; ++round) {
    const SharedCallback::Use use(counting());
    EXPECT_EQ(calls_of_one_span(), 1) << round;
  }
  EXPECT_EQ(calls_of_one_span(), 0);
}

TEST(SharedCallback, UsesOfManyThreadsEndWithNone) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([] {
      for (int round = 0; round < 500; ++round) {
        const SharedCallback::Use use(counting());
        EXPECT_EQ(calls_of_one_span(), 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(calls_of_one_span(), 0);
}

}  // namespace
}  // namespace equigrad::autograd
