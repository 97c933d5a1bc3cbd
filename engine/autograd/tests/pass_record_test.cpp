// Which node is the root of a pass, and what arrives at it: graph tasks inside of others, after
// exceptions, on threads, unseen; and how long passes are recorded.
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <stdexcept>
#include <thread>

#include "conformance/contract/players/reentrant.hpp"
#include "engine/autograd/scaled_graph.hpp"
#include "engine/autograd/tests/watched_engine.hpp"

namespace equigrad::autograd {
namespace {

using PassRecord = ScaledGraph;

at::Tensor checkpoint(const at::Tensor& x, const conformance::Block& inner) {
  return conformance::Reentrant::apply(inner, x);
}

// Graph tasks are counted by process, from 0: this is the first test of its program.
TEST_F(PassRecord, TheFirstPassOfAThreadIsSeenWhateverItsNumber) {
  for (int task = 0; task < 4; ++task) {
    SCOPED_TRACE(task);
    std::thread([&] { accepts(scale(loss_of(p0), scaler)); }).join();
  }
}

TEST_F(PassRecord, ANestedGraphTaskBeginsWithWhatArrivesAtItsNode) {
  const auto block = [&](const at::Tensor& x) { return x * p0; };
  const auto two_levels = [&](const at::Tensor& x) { return checkpoint(x * p1, block) * 2; };
  const std::vector<std::pair<conformance::Block, at::Tensor>> inners{
      {block, (plain * 1024).detach()}, {two_levels, (plain * p1 * 2048).detach()}};
  for (const auto& [inner, want] : inners) {
    accepts(scale(checkpoint(plain, inner).sum(), scaler));
    EXPECT_THAT(engine.gradients[0], HasTheBitsOf(want));
    refuses(checkpoint(plain, inner).sum(), kUnscaled);
    refuses(scale(checkpoint(plain, inner).sum(), other), kForeign);
    const auto once = scale(checkpoint(plain, inner), scaler);
    refuses(once.sum() + scale(once.sum(), scaler), kTwice);
    scaler->stepped(this, true);
    refuses(once.sum(), kStale);
    scaler->stepped(this, false);
    accepts(once.sum());
  }
}

TEST_F(PassRecord, ANestedGraphTaskMayScaleItself) {
  const auto scales = [&](const at::Tensor& x) { return scale(x * p0, scaler); };
  accepts(checkpoint(plain, scales).sum());
  EXPECT_THAT(engine.gradients[0], HasTheBitsOf((plain * 1024).detach()));
  refuses(scale(checkpoint(plain, scales).sum(), scaler), kTwice, "p0");
  // The outer task goes on after the inner one, and is not taken for it.
  accepts(scale(checkpoint(plain * p1, [&](const at::Tensor& x) { return x * p0; }).sum(), scaler));
  EXPECT_TRUE(engine.gradients[1].defined());
}

TEST_F(PassRecord, ABackwardInATensorHookIsAPassOfItsOwn) {
  auto x = plain * 1;
  std::string error;
  at::Tensor inner;
  x.register_hook([&](const at::Tensor&) {
    const at::AutoGradMode grad(true);
    error = error_of([&] { inner.backward(); });
  });
  const auto loss = scale(x.sum(), scaler);
  inner = scale(loss_of(p0), scaler);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(error, "");
  inner = loss_of(p0);
  loss.backward();
  EXPECT_THAT(error, HasSubstr(kUnscaled));
}

TEST_F(PassRecord, APassThatCouldNotBeWatchedIsRefused) {
  const auto loss = scale(loss_of(p0), scaler);
  {
    const at::DisableRecordFunctionGuard unseen;
    EXPECT_THAT(error_of([&] { loss.backward({}, true); }), HasSubstr("without RecordFunction"));
  }
  EXPECT_TRUE(engine.got_nothing());
  accepts(loss);
}

TEST_F(PassRecord, AfterAPassThatThrewTheNextIsSeenFromItsRoot) {
  const auto throws = [&](const at::Tensor& x) {
    auto y = x * p0;
    if (y.requires_grad())  // the forward pass of a checkpoint has no graph
      y.register_hook([](const at::Tensor&) { throw std::out_of_range("boom"); });
    return y;
  };
  for (const auto& out : {throws(plain), checkpoint(plain, throws)}) {
    EXPECT_THROW(scale(out.sum(), scaler).backward(), std::out_of_range);
    EXPECT_TRUE(engine.got_nothing());
    refuses(loss_of(p0), kUnscaled, "p0");
    engine.gradients.assign(2, {});
  }
}

TEST_F(PassRecord, ManyPathsAndLongOnesAreWalkedOnce) {
  auto wide = p0 * 1, deep = p0 * 1;
  for (int i = 0; i < 100; ++i) wide = wide + wide;  // 2^100 paths
  for (int i = 0; i < 100'000; ++i) deep = deep + 1;
  accepts(scale(wide.sum() + deep.sum(), scaler));
  refuses(scale(wide.sum(), scaler) + deep.sum(), kUnscaled, "p0");
}

TEST_F(PassRecord, PassesOfSeveralThreadsAreApart) {
  std::vector<std::string> errors(4);
  const auto train = [&](std::size_t number) {
    const auto q = leaf(number + 10);
    const Watched mine(number % 2 == 0 ? scaler : other, {q});
    for (int pass = 0; pass < 200; ++pass) {
      const auto scaled = scale(loss_of(q), number % 2 == 0 ? scaler : other);
      errors[number] += error_of([&] { scaled.backward(); });
      if (!at::equal(mine.gradients[0], (q * 2).detach() * 1024)) errors[number] += "bits";
      if (error_of([&] { loss_of(q).backward(); }).empty()) errors[number] += "not refused";
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < errors.size(); ++i) threads.emplace_back(train, i);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(errors, std::vector<std::string>(4));
}

TEST(PassRecording, IsThereWhileAScalerThatIsNeededOrItsGraphLives) {
  EXPECT_FALSE(at::hasGlobalCallbacks());
  const auto none = make_scaler(LossScaleConfig{});
  EXPECT_FALSE(at::hasGlobalCallbacks());
  auto first = scaler_of(1), second = scaler_of(2);
  first.reset();
  EXPECT_TRUE(at::hasGlobalCallbacks());
  auto loss = scale(loss_of(leaf(1)), second);
  second.reset();
  EXPECT_TRUE(at::hasGlobalCallbacks());
  loss.backward();
  loss.reset();
  EXPECT_FALSE(at::hasGlobalCallbacks());
}

TEST(PassRecording, APassThatIsTheLastToHoldItsScalerEndsWell) {
  const auto x = leaf(1);
  for (int pass = 0; pass < 3; ++pass) {
    scale(loss_of(x), scaler_of(4)).backward();
    EXPECT_FALSE(at::hasGlobalCallbacks());
  }
  EXPECT_THAT(x.grad(), HasTheBitsOf((x * 2).detach() * 48));
}

TEST(PassRecording, AScalerMadeInsideOfAPassRefusesThatPass) {
  const auto p = leaf(1);
  auto x = p * 1, y = p * 1;
  std::optional<Watched> late;
  Scaler scaler;
  y.register_hook([&](const at::Tensor&) {
    scaler = scaler_of(4);
    late.emplace(scaler, std::vector<at::Tensor>{p});
  });
  EXPECT_THAT(error_of([&] { (x + y * 1).sum().backward(); }), HasSubstr("before its engine"));
  EXPECT_TRUE(late->got_nothing());
  EXPECT_EQ(error_of([&] { scale(loss_of(p), scaler).backward(); }), "");
}

}  // namespace
}  // namespace equigrad::autograd
