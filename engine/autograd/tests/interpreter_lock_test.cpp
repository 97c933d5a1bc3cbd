#include "engine/autograd/interpreter_lock.hpp"

#include <gmock/gmock.h>

#include <mutex>
#include <optional>
#include <thread>

namespace equigrad::autograd {
namespace {

// A lock as an interpreter's: one thread has it.
std::mutex interpreter;
thread_local bool has_it = false;
int times_given_up = 0;  // under the lock

void* give_up() {
  if (!has_it) return nullptr;
  ++times_given_up;
  has_it = false;
  interpreter.unlock();
  return &interpreter;
}

void take_back(void* given_up) {
  EXPECT_EQ(given_up, &interpreter);
  interpreter.lock();
  has_it = true;
}

struct Running {
  Running() {
    interpreter.lock();
    has_it = true;
  }
  ~Running() {
    has_it = false;
    interpreter.unlock();
  }
};

class OfAnInterpreter : public testing::Test {
 protected:
  OfAnInterpreter() {
    times_given_up = 0;
    set_interpreter_lock({give_up, take_back});
  }
  ~OfAnInterpreter() override { set_interpreter_lock({nullptr, nullptr}); }
};

TEST(InterpreterLock, WithoutAnInterpreterNothingHappens) {
  const WithoutInterpreter without;
  EXPECT_EQ(times_given_up, 0);
}

TEST_F(OfAnInterpreter, AnotherThreadRunsMeanwhile) {
  const Running running;
  {
    const WithoutInterpreter without;
    bool has_run = false;
    std::thread([&] {
      const Running other;
      has_run = true;
    }).join();
    EXPECT_TRUE(has_run);
    EXPECT_FALSE(has_it);
  }
  EXPECT_TRUE(has_it);
  EXPECT_EQ(times_given_up, 1);
}

TEST_F(OfAnInterpreter, AThreadThatDoesNotHoldItGivesNothingUp) {
  { const WithoutInterpreter without; }
  EXPECT_FALSE(has_it);
  const Running running;
  const WithoutInterpreter outer;
  { const WithoutInterpreter inner; }
  EXPECT_FALSE(has_it) << "the inner one had nothing to take back";
  EXPECT_EQ(times_given_up, 1);
}

}  // namespace
}  // namespace equigrad::autograd
