#include "engine/autograd/shared_callback.hpp"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

namespace equigrad::autograd {
namespace {

thread_local int calls = 0;
std::atomic<bool> is_slow = false;  // adding and removing a callback

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

// In every round all threads begin their uses together, and while one begins or ends one the next
// may come: without the lock a use begins before the callback is there, or finds it twice.
TEST(SharedCallback, UsesOfManyThreadsEndWithNone) {
  constexpr int kThreads = 4, kRounds = 25;
  std::barrier together(kThreads);
  std::atomic<int> missed = 0, doubled = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        together.arrive_and_wait();
        const SharedCallback::Use use(counting());
        const int seen = calls_of_one_span();
        missed += seen < 1;
        doubled += seen > 1;
      }
    });
  }
  is_slow = true;
  for (auto& thread : threads) thread.join();
  is_slow = false;
  EXPECT_EQ(missed, 0);
  EXPECT_EQ(doubled, 0);
  EXPECT_EQ(calls_of_one_span(), 0);
}

}  // namespace
}  // namespace equigrad::autograd

// These stand before LibTorch's, which they call: slowly, so that what must not happen meanwhile
// has time to.
namespace at {

CallbackHandle addGlobalCallback(RecordFunctionCallback callback) {
  using Function = CallbackHandle (*)(RecordFunctionCallback);
  static const auto next = reinterpret_cast<Function>(
      dlsym(RTLD_NEXT, "_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE"));
  if (equigrad::autograd::is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return next(callback);
}

void removeCallback(CallbackHandle handle) {
  using Function = void (*)(CallbackHandle);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZN2at14removeCallbackEm"));
  if (equigrad::autograd::is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  next(handle);
}

}  // namespace at
