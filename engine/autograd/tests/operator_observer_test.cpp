// Every operator that reads a watched storage is announced before it runs and signed off after.
#include "engine/autograd/operator_observer.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "conformance/testing/sample.hpp"
#include "engine/autograd/interpreter_lock.hpp"

namespace equigrad::autograd {
namespace {

using conformance::sample;
using Pages = std::vector<std::size_t>;

struct Listener final : OperatorListener {
  void before(const Pages& pages) noexcept override {
    began.insert(began.end(), pages.begin(), pages.end());
    ++open;
    most_open = std::max(most_open, open);
  }
  void after(const Pages& pages) noexcept override {
    ended.insert(ended.end(), pages.begin(), pages.end());
    --open;
  }
  // The pages of the operators since the last call, each once.
  Pages take() {
    EXPECT_EQ(open, 0);
    std::sort(began.begin(), began.end());
    std::sort(ended.begin(), ended.end());
    EXPECT_EQ(began, ended);
    began.erase(std::unique(began.begin(), began.end()), began.end());
    ended.clear();
    return std::exchange(began, {});
  }
  Pages began, ended;
  int open = 0, most_open = 0;
};

struct Watched {
  Listener listener;
  at::Tensor a = sample(12, 1).view({3, 4}).detach().requires_grad_();
  at::Tensor b = sample(12, 2).view({4, 3}).detach().requires_grad_();
  at::Tensor x = sample(12, 3).view({4, 3});
  Observation observation{listener, {a, b}};
};

TEST(OperatorObserver, SeesAnOperatorThatReadsAWatchedTensor) {
  Watched it;
  at::mm(it.a, it.x);
  EXPECT_EQ(it.listener.take(), (Pages{0}));
  at::mm(it.a, it.b);
  EXPECT_EQ(it.listener.take(), (Pages{0, 1}));
}

TEST(OperatorObserver, DoesNotReportOthers) {
  Watched it;
  at::mm(it.x, it.x.t()).add_(1);
  EXPECT_EQ(it.listener.take(), Pages{});
}

using MaybeTensors = c10::List<std::optional<at::Tensor>>;

// Takes indices as aten::index does, and runs no other operator.
TORCH_LIBRARY_FRAGMENT(equigrad_test, library) {
  library.def("count(Tensor?[] tensors) -> int",
              [](const MaybeTensors& tensors) { return static_cast<int64_t>(tensors.size()); });
}

TEST(OperatorObserver, SeesTheTensorsOfAListOfWhichSomeMayBeUndefined) {
  Watched it;
  const auto count = c10::Dispatcher::singleton()
                         .findSchemaOrThrow("equigrad_test::count", "")
                         .typed<int64_t(const MaybeTensors&)>();
  EXPECT_EQ(count.call({std::nullopt, it.b, it.x}), 3);
  EXPECT_EQ(it.listener.take(), (Pages{1}));
  at::cat({it.x.view({-1}), it.b.view({-1})});
  EXPECT_EQ(it.listener.take(), (Pages{1}));
  at::stack({it.x, it.b});
  EXPECT_EQ(it.listener.take(), (Pages{1}));
}

TEST(OperatorObserver, SeesViewsAndDetachedTensors) {
  Watched it;
  auto row = it.a[1], turned = it.b.t(), bare = it.a.detach();
  it.listener.take();
  (void)(row * 2);
  EXPECT_EQ(it.listener.take(), (Pages{0}));
  (void)(turned * 2);
  EXPECT_EQ(it.listener.take(), (Pages{1}));
  (void)(bare * 2);
  EXPECT_EQ(it.listener.take(), (Pages{0}));
}

// Another thread is within before() when its engine goes: the listener must be there until it has
// left, and must hear of nothing after that.
TEST(OperatorObserver, EndsWhenNoThreadIsTellingItsListenerAnyMore) {
  struct Slow final : OperatorListener {
    void before(const Pages&) noexcept override {
      is_in = true;
      ++told;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      is_in = false;
    }
    void after(const Pages&) noexcept override { ++told; }
    std::atomic<bool> is_in = false;
    std::atomic<int> told = 0;
  };
  Slow listener;
  const auto a = sample(12, 1);
  auto observation = std::make_unique<Observation>(listener, std::vector{a});
  std::atomic<int> operators = 0;
  std::atomic<bool> stop = false;
  std::thread other([&, a] {
    for (; !stop; ++operators) (void)(a * 2);
  });
  while (!listener.is_in) std::this_thread::yield();
  observation.reset();
  EXPECT_FALSE(listener.is_in);
  const int told = listener.told, ran = operators;
  while (operators < ran + 3) std::this_thread::yield();
  stop = true;
  other.join();
  EXPECT_EQ(listener.told, told);
}

thread_local bool has_interpreter = false;

// autograd.Function.apply runs callbacks with it; a listener may wait for a thread that needs it.
TEST(OperatorObserver, TellsWithoutTheInterpretersLock) {
  struct Waiting final : OperatorListener {
    void before(const Pages&) noexcept override { told.push_back(has_interpreter); }
    void after(const Pages&) noexcept override { told.push_back(has_interpreter); }
    std::vector<bool> told;  // with it
  };
  set_interpreter_lock({[] {
                          return std::exchange(has_interpreter, false)
                                     ? static_cast<void*>(&has_interpreter)
                                     : nullptr;
                        },
                        [](void*) { has_interpreter = true; }});
  Waiting listener;
  const auto a = sample(12, 1);
  const Observation observation(listener, {a});
  has_interpreter = true;
  (void)(a * 2);
  EXPECT_GE(listener.told.size(), 2U);
  EXPECT_EQ(std::count(listener.told.begin(), listener.told.end(), true), 0);
  EXPECT_TRUE(std::exchange(has_interpreter, false));
  set_interpreter_lock({nullptr, nullptr});
}

TEST(OperatorObserver, SeesTheOperatorsOfABackwardPass) {
  Watched it;
  auto input = it.x.detach().requires_grad_();
  const auto loss = at::mm(it.a, input).sum();
  it.listener.take();
  loss.backward();
  EXPECT_EQ(it.listener.take(), (Pages{0})) << "the input's gradient needs a";
}

// What torch.compile records, without its compiler.
class Recorded {
 public:
  Recorded(at::RecordScope scope, const char* name, std::vector<c10::IValue> inputs, int64_t number,
           uint64_t forward_thread = 0)
      : inputs_(std::move(inputs)), record_(scope) {
    if (!record_.isActive()) return;
    if (forward_thread != 0) record_.setForwardThreadId(forward_thread);
    record_.before(name, c10::ArrayRef<const c10::IValue>(inputs_.data(), inputs_.size()), number);
  }

 private:
  std::vector<c10::IValue> inputs_;
  at::RecordFunction record_;
};

TEST(OperatorObserver, ACompiledBackwardReadsWhatItsForwardRead) {
  Watched it;
  const auto forward = [&](std::vector<c10::IValue> inputs, int64_t number) {
    {
      const Recorded one(at::RecordScope::FUNCTION, "CompiledFunction", std::move(inputs), number);
    }
    return it.listener.take();
  };
  const auto thread = at::RecordFunction::currentThreadId();
  const auto backward = [&](int64_t number, uint64_t of) {
    {
      const Recorded one(at::RecordScope::BACKWARD_FUNCTION, "CompiledFunctionBackward", {}, number,
                         of);
    }
    return it.listener.take();
  };
  EXPECT_EQ(forward({it.a, it.x}, 1000), (Pages{0}));
  EXPECT_EQ(forward({it.x, it.b, it.a}, 1001), (Pages{0, 1}));
  EXPECT_EQ(forward({it.x}, 1002), Pages{});
  EXPECT_EQ(backward(1001, thread), (Pages{0, 1}));
  EXPECT_EQ(backward(1000, thread), (Pages{0}));
  EXPECT_EQ(backward(1000, thread), (Pages{0})) << "the graph may be retained";
  EXPECT_EQ(backward(1002, thread), Pages{});
  EXPECT_EQ(backward(1000, thread + 1), Pages{}) << "numbers are those of a thread";
  const Recorded other(at::RecordScope::BACKWARD_FUNCTION, "MmBackward0", {}, 1000, thread);
  EXPECT_EQ(it.listener.open, 0);
}

TEST(OperatorObserver, ACompiledRegionMayReadWhatNeedsNoGradient) {
  Watched it;
  const auto region = [&] {
    { const Recorded one(at::RecordScope::FUNCTION, "Torch-Compiled Region: 0/0", {}, -1); }
    return it.listener.take();
  };
  EXPECT_EQ(region(), Pages{});
  it.b.set_requires_grad(false);
  EXPECT_EQ(region(), (Pages{1}));
  const at::NoGradGuard no_grad;
  EXPECT_EQ(region(), (Pages{0, 1}));
}

TEST(OperatorObserver, AnOperatorThatThrowsIsSignedOffToo) {
  Watched it;
  EXPECT_THROW(at::mm(it.a, it.a), c10::Error);
  EXPECT_EQ(it.listener.take(), (Pages{0}));
}

TEST(OperatorObserver, SilenceHoldsWhileItLivesAndNests) {
  Watched it;
  {
    const Silence silence;
    {
      const Silence inner;
      at::mm(it.a, it.x);
    }
    at::mm(it.a, it.x);
  }
  EXPECT_EQ(it.listener.take(), Pages{});
  at::mm(it.a, it.x);
  EXPECT_EQ(it.listener.take(), (Pages{0}));
}

TEST(OperatorObserver, TwoListenersHearOfTheirOwn) {
  Watched one, two;
  at::mm(one.a, two.b);
  EXPECT_EQ(one.listener.take(), (Pages{0}));
  EXPECT_EQ(two.listener.take(), (Pages{1}));
}

TEST(OperatorObserver, WithoutTensorsNothingIsObserved) {
  Listener listener;
  {
    const Observation nothing(listener, {at::Tensor(), at::Tensor()});
    EXPECT_FALSE(at::hasGlobalCallbacks());
    const auto tensor = sample(4, 1);
    const Observation second(listener, {at::Tensor(), tensor});
    EXPECT_TRUE(at::hasGlobalCallbacks());
    (void)(tensor * 2);
    EXPECT_EQ(listener.take(), (Pages{1}));
  }
  EXPECT_FALSE(at::hasGlobalCallbacks());
}

TEST(OperatorObserver, HearsNothingOnceItIsGone) {
  Watched stays;
  Listener listener;
  const auto tensor = sample(4, 1);
  {
    const Observation observation(listener, {tensor});
    (void)(tensor * 2);
    EXPECT_EQ(listener.take(), (Pages{0}));
  }
  (void)(tensor * 2);
  EXPECT_EQ(listener.take(), Pages{});
  (void)(stays.a * 2);
  EXPECT_EQ(stays.listener.take(), (Pages{0}));
}

}  // namespace
}  // namespace equigrad::autograd
