// What a backward pass tells: begin, one `ready` per parameter it reaches, end; whoever started it.
#include "engine/autograd/backward_pass.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "conformance/contract/players/reentrant.hpp"
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/sample.hpp"

namespace equigrad::autograd {
namespace {

using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using Events = std::vector<std::string>;

struct Watch {
  Events events;
  std::vector<at::Tensor> gradients{3};
  at::Tensor w = sample(5, 1).requires_grad_();
  at::Tensor b = sample(5, 2).requires_grad_();
  at::Tensor unwatched = sample(5, 3).requires_grad_();
  std::string throw_in;  // the event in which the callback throws
  std::unique_ptr<BackwardPass> pass;

  Watch() { start(); }
  void start() {
    pass = std::make_unique<BackwardPass>(
        std::vector<WatchedParameter>{{1, "layer.w", w}, {2, "layer.b", b}},
        PassCallbacks{.begin = [this] { tell("begin"); },
                      .ready =
                          [this](std::size_t parameter, const at::Tensor& gradient) {
                            gradients[parameter] = gradient.clone();
                            EXPECT_FALSE(gradient.requires_grad());
                            tell("ready " + std::to_string(parameter));
                          },
                      .end = [this] { tell("end"); },
                      .abandoned = [this] { tell("abandoned"); }});
  }
  void tell(const std::string& event) {
    events.push_back(event);
    if (event == throw_in) throw Error("test", "thrown in " + event);
  }
  Events take() { return std::exchange(events, {}); }
};

TEST(BackwardPass, BeginsTellsOfEachGradientAndEnds) {
  Watch watch;
  (watch.w * watch.b).sum().backward();
  const auto events = watch.take();
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events.front(), "begin");
  EXPECT_EQ(events.back(), "end");
  EXPECT_NE(events[1], events[2]);
  EXPECT_THAT(watch.gradients[1], HasTheBitsOf(watch.b.detach()));
  EXPECT_THAT(watch.gradients[2], HasTheBitsOf(watch.w.detach()));
  EXPECT_EQ(watch.pass->completed(), 1);
}

TEST(BackwardPass, AParameterThatIsUsedTwiceIsReadyOnce) {
  Watch watch;
  (watch.w * 3 + watch.w * 4).sum().backward();
  EXPECT_EQ(watch.take(), (Events{"begin", "ready 1", "end"}));
  EXPECT_THAT(watch.gradients[1], HasTheBitsOf(at::full({5}, 7.0F)));
}

TEST(BackwardPass, TakesTheGradientOutSoNothingIsAddedTwice) {
  Watch watch;
  for (int pass = 0; pass < 2; ++pass) {
    (watch.w * 3).sum().backward();
    EXPECT_FALSE(watch.w.grad().defined());
    EXPECT_THAT(watch.gradients[1], HasTheBitsOf(at::full({5}, 3.0F)));
  }
  EXPECT_EQ(watch.take(), (Events{"begin", "ready 1", "end", "begin", "ready 1", "end"}));
}

struct Idle final : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor&) override {}
};

// So the engine may keep it where it lies. Autograd has the tensor whose storage it is.
TEST(BackwardPass, AGradientIsHandedOverUnlessSomebodyHasIt) {
  const auto leaf = at::ones({3}).requires_grad_();
  int64_t tensors = 0, storages = 0;
  const auto ready = [&](std::size_t, const at::Tensor& gradient) {
    EXPECT_FALSE(gradient.requires_grad());
    tensors = static_cast<int64_t>(gradient.use_count());
    storages = static_cast<int64_t>(gradient.storage().use_count());
  };
  const auto new_pass = [&] {
    return std::make_unique<BackwardPass>(
        std::vector<WatchedParameter>{{0, "leaf", leaf}},
        PassCallbacks{.begin = [] {}, .ready = ready, .end = [] {}, .abandoned = [] {}});
  };
  auto pass = new_pass();
  (leaf * leaf).sum().backward();
  EXPECT_TRUE(tensors == 1 && storages <= 2);
  // Copies, or not ours alone.
  (leaf * leaf).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_TRUE(tensors > 1 || storages != 2);
  std::vector<at::Tensor> held;
  leaf.register_hook([&](const at::Tensor& gradient) { held.push_back(gradient.view({1, 3})); });
  (leaf * leaf).sum().backward();
  EXPECT_NE(storages, 2);
  pass.reset();
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<Idle>());
  pass = new_pass();
  (leaf * leaf).sum().backward();
  EXPECT_GT(tensors, 1);
}

TEST(BackwardPass, EveryWayOfStartingOneIsSeen) {
  Watch watch;
  auto output = watch.w * 2;
  output.backward(sample(5, 4), /*retain_graph=*/true);
  EXPECT_THAT(watch.gradients[1], HasTheBitsOf(sample(5, 4) * 2));
  output.sum().backward();
  EXPECT_THAT(watch.gradients[1], HasTheBitsOf(at::full({5}, 2.0F)));
  torch::autograd::backward({(watch.b * 5).sum()});
  EXPECT_EQ(watch.take(), (Events{"begin", "ready 1", "end", "begin", "ready 1", "end", "begin",
                                  "ready 2", "end"}));
}

TEST(BackwardPass, OneThatReachesNothingEndsThroughRun) {
  Watch watch;
  const auto loss = watch.unwatched.sum();
  watch.pass->run([&] { loss.backward(); });
  EXPECT_EQ(watch.take(), (Events{"begin", "end"}));
  EXPECT_TRUE(watch.unwatched.grad().defined());
  watch.pass->run([&] { watch.w.sum().backward(); });
  EXPECT_EQ(watch.take(), (Events{"begin", "ready 1", "end"})) << "not begun a second time";
  EXPECT_EQ(watch.pass->completed(), 2);
}

TEST(BackwardPass, ParametersArePlainLeavesAfterIt) {
  Watch watch;
  watch.pass.reset();
  watch.w.sum().backward();
  EXPECT_TRUE(watch.w.grad().defined());
  EXPECT_EQ(watch.take(), Events{});
}

class Earlier final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Earlier(Watch& watch) : watch_(watch) {}
  void operator()(const at::Tensor& leaf) override {
    EXPECT_TRUE(leaf.grad().defined());
    watch_.tell("earlier");
  }

 private:
  Watch& watch_;
};

TEST(BackwardPass, HooksThatWereThereBeforeStillRunAndStay) {
  Watch watch;
  watch.pass.reset();
  torch::autograd::impl::set_post_acc_grad_hooks(watch.w, std::make_unique<Earlier>(watch));
  watch.w.register_hook([](const at::Tensor& gradient) { return gradient * 10; });
  watch.start();
  watch.w.sum().backward();
  EXPECT_EQ(watch.take(), (Events{"earlier", "begin", "ready 1", "end"}));
  EXPECT_THAT(watch.gradients[1], HasTheBitsOf(at::full({5}, 10.0F)));
  watch.pass.reset();
  watch.w.sum().backward();
  EXPECT_EQ(watch.take(), Events{"earlier"});
}

TEST(BackwardPass, ASparseGradientIsRefusedByName) {
  Watch watch;
  auto table = sample(12, 5).view({4, 3}).detach().requires_grad_();
  const BackwardPass pass({{0, "embedding.weight", table}},
                          {[] {}, [](std::size_t, const at::Tensor&) {}, [] {}, [] {}});
  const auto index = at::tensor({1, 2}, at::kLong);
  const auto loss = at::embedding(table, index, -1, false, /*sparse=*/true).sum();
  EXPECT_THAT(error_of([&] { loss.backward(); }),
              testing::AllOf(testing::HasSubstr("embedding.weight"),
                             testing::HasSubstr("expected a dense gradient")));
}

TEST(BackwardPass, ACallbacksErrorReachesTheCallerAndTheNextPassBeginsAnew) {
  Watch watch;
  for (const std::string where : {"begin", "ready 1", "end"}) {
    watch.throw_in = where;
    EXPECT_EQ(error_of([&] { watch.w.sum().backward(); }), "[test] thrown in " + where);
    const auto events = watch.take();
    // A pass that threw after its begin is abandoned, before the exception is here.
    EXPECT_EQ(events.back(), "abandoned");
    EXPECT_EQ(watch.pass->completed(), where == "begin" ? 0 : where == "end" ? 2 : 1);
    watch.throw_in = "";
    watch.w.sum().backward();
    EXPECT_EQ(watch.take(), (Events{"begin", "ready 1", "end"})) << "after one in " << where;
  }
}

// What throws need not be ours: a user's function in the graph, after a gradient was taken.
struct Bomb : torch::autograd::Function<Bomb> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x + 0;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("boom");
  }
};

TEST(BackwardPass, AnExceptionOfTheGraphAbandonsThePass) {
  Watch watch;
  const auto early = Bomb::apply(watch.b * 2);  // its backward runs after w's
  const auto loss = (early + watch.w).sum();
  EXPECT_THROW(loss.backward(), std::runtime_error);
  EXPECT_EQ(watch.take(), (Events{"begin", "ready 1", "abandoned"}));
  watch.b.sum().backward();
  EXPECT_EQ(watch.take(), (Events{"begin", "ready 2", "end"}));
}

at::Tensor checkpoint(const conformance::Block& inner, const at::Tensor& x) {
  return conformance::Reentrant::apply(inner, x);
}

TEST(BackwardPass, AGraphTaskInsideAnotherIsPartOfItsPass) {
  Watch watch;
  const auto x = sample(5, 7).requires_grad_();
  const auto by_w = [&](const at::Tensor& y) { return y * watch.w; };
  // Inside two levels; then outside as well; then nothing but the inner ones.
  (checkpoint([&](const at::Tensor& y) { return checkpoint(by_w, y * 2); }, x) * watch.b)
      .sum()
      .backward();
  EXPECT_EQ(watch.take(), (Events{"begin", "ready 2", "ready 1", "end"}));
  checkpoint(by_w, checkpoint(by_w, x)).sum().backward();
  EXPECT_EQ(watch.take(), (Events{"begin", "ready 1", "ready 1", "end"}));
  EXPECT_EQ(watch.pass->completed(), 2);
  watch.pass->run([&] { checkpoint(by_w, x).sum().backward(); });
  EXPECT_EQ(watch.take(), (Events{"begin", "ready 1", "end"}));
}

TEST(BackwardPass, AnExceptionAfterAnInnerGraphTaskAbandonsThePass) {
  Watch watch;
  const auto x = sample(5, 7).requires_grad_();
  const auto by_w = [&](const at::Tensor& y) { return y * watch.w; };
  for (const bool by_engine : {false, true}) {
    const auto loss = checkpoint(by_w, Bomb::apply(x * 1)).sum();
    const auto backward = [&] { loss.backward(); };
    EXPECT_THROW(by_engine ? watch.pass->run(backward) : backward(), std::runtime_error);
    EXPECT_EQ(watch.take(), (Events{"begin", "ready 1", "abandoned"}));
    // Inside of it.
    const auto inside =
        checkpoint([&](const at::Tensor& y) { return Bomb::apply(y * 1) * watch.w; }, x);
    EXPECT_THROW(inside.sum().backward(), std::runtime_error);
    EXPECT_EQ(watch.take(), (Events{"begin", "ready 1", "abandoned"}));
    watch.b.sum().backward();
    EXPECT_EQ(watch.take(), (Events{"begin", "ready 2", "end"}));
  }
}

TEST(BackwardPass, SeveralEndInTheOrderOfTheirNumbers) {
  for (const bool first_is_w : {true, false}) {
    auto w = sample(5, 1).requires_grad_(), b = sample(5, 2).requires_grad_();
    Events events;
    const auto watch = [&](const at::Tensor& leaf, int64_t order) {
      const auto tell = [&events, order](const std::string& what) {
        events.push_back(what + " " + std::to_string(order));
      };
      return std::make_unique<BackwardPass>(
          std::vector<WatchedParameter>{{0, "p", leaf}},
          PassCallbacks{.begin = [tell] { tell("begin"); },
                        .ready = [](std::size_t, const at::Tensor&) {},
                        .end = [tell] { tell("end"); },
                        .abandoned = [] {}},
          order);
    };
    const auto of_w = watch(w, 1), of_b = watch(b, 2);
    // Autograd runs the youngest node first.
    (first_is_w ? (b * 2).exp() * w : (w * 2).exp() * b).sum().backward();
    EXPECT_EQ(events[0], first_is_w ? "begin 1" : "begin 2");
    EXPECT_EQ(events[2], "end 1");
    EXPECT_EQ(events[3], "end 2");
  }
}

}  // namespace
}  // namespace equigrad::autograd
