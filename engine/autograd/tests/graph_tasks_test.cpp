// The end of a pass: called once, by the outermost graph task, in the order of the numbers; or
// dropped before the exception reaches the caller.
#include "engine/autograd/graph_tasks.hpp"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "conformance/testing/sample.hpp"

namespace equigrad::autograd {
namespace {

using conformance::sample;
using Events = std::vector<std::string>;
using Inner = std::function<at::Tensor(const at::Tensor&)>;

// Tells of its end, however it comes.
struct Token {
  Events& events;
  std::string name;
  bool ended = false;
  Token(Events& to, std::string of) : events(to), name(std::move(of)) {}
  ~Token() {
    if (!ended) events.push_back("dropped " + name);
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
};

struct Recorder {
  GraphTaskObserver observer;
  Events events;
  Events take() { return std::exchange(events, {}); }

  void ask(int64_t order) {
    auto token = std::make_shared<Token>(events, std::to_string(order));
    at_end_of_pass(order, [this, token, order] {
      token->ended = true;
      events.push_back("end " + std::to_string(order));
    });
  }
  // x, whose gradient's arrival asks for the end of the pass.
  at::Tensor asking(const at::Tensor& x, int64_t order) {
    auto y = x * 1;
    y.register_hook([this, order](const at::Tensor&) {
      EXPECT_GE(current_graph_task(), 0);
      events.push_back("asked " + std::to_string(order));
      ask(order);
    });
    return y;
  }
  at::Tensor telling(const at::Tensor& x, const std::string& what) {
    auto y = x * 1;
    y.register_hook([this, what](const at::Tensor&) { events.push_back(what); });
    return y;
  }
  at::Tensor throwing(const at::Tensor& x) {
    auto y = x * 1;
    y.register_hook([this](const at::Tensor&) {
      events.push_back("thrown");
      throw std::out_of_range("boom");
    });
    return y;
  }
};

// A node whose backward runs a graph task of its own, as reentrant checkpointing does; and may
// throw after it.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static std::vector<std::pair<Inner, bool>>& inners() {
    static std::vector<std::pair<Inner, bool>> all;
    return all;
  }
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            int64_t inner) {
    context->saved_data["inner"] = inner;
    context->save_for_backward({x});
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode grad(true);
    const auto number = static_cast<std::size_t>(context->saved_data["inner"].toInt());
    const auto [inner, throws] = inners().at(number);
    inner(x).backward(gradients[0]);
    if (throws) throw std::out_of_range("after the inner one");
    return {x.grad(), {}};
  }
};

at::Tensor checkpoint(const Inner& inner, const at::Tensor& x, bool throws = false) {
  Reentrant::inners().emplace_back(inner, throws);
  return Reentrant::apply(x, static_cast<int64_t>(Reentrant::inners().size()) - 1);
}

at::Tensor leaf() { return sample(5, 1).requires_grad_(); }

TEST(GraphTasks, ThereIsNoneOutsideOfAPass) {
  EXPECT_EQ(current_graph_task(), -1);
  Recorder recorder;
  recorder.asking(leaf(), 1).sum().backward();
  EXPECT_EQ(current_graph_task(), -1);
}

TEST(GraphTasks, TheEndComesOnceAfterEverythingAndBeforeTheCallerGoesOn) {
  Recorder recorder;
  const auto x = leaf();
  const auto caller = std::this_thread::get_id();
  std::thread::id ended_by;
  auto y = recorder.telling(x, "later");
  auto z = y * 1;
  z.register_hook([&](const at::Tensor&) {
    recorder.ask(1);
    at_end_of_pass(0, [&] { ended_by = std::this_thread::get_id(); });
  });
  for (int pass = 0; pass < 2; ++pass) {
    z.sum().backward({}, /*retain_graph=*/true);
    EXPECT_EQ(recorder.take(), (Events{"later", "end 1"}));
    EXPECT_EQ(ended_by, caller);
  }
  recorder.telling(x, "no one asked").sum().backward();
  EXPECT_EQ(recorder.take(), Events{"no one asked"});
}

TEST(GraphTasks, SeveralEndsComeInTheOrderOfTheirNumbers) {
  Recorder recorder;
  const auto x = leaf();
  recorder.asking(recorder.asking(recorder.asking(x, 2), 3), 1).sum().backward();
  EXPECT_EQ(recorder.take(), (Events{"asked 1", "asked 3", "asked 2", "end 1", "end 2", "end 3"}));
}

TEST(GraphTasks, APassThatThrowsDropsTheEndBeforeTheCallerHearsOfIt) {
  Recorder recorder;
  const auto loss = recorder.asking(recorder.throwing(leaf()), 1).sum();
  try {
    loss.backward();
    ADD_FAILURE() << "expected an exception";
  } catch (const std::out_of_range&) {
    recorder.events.push_back("caught");
  }
  EXPECT_EQ(recorder.take(), (Events{"asked 1", "thrown", "dropped 1", "caught"}));
  recorder.asking(leaf(), 1).sum().backward();
  EXPECT_EQ(recorder.take(), (Events{"asked 1", "end 1"}));
}

TEST(GraphTasks, WhatAnEndThrowsReachesTheCallerAndDropsTheLaterOnes) {
  Recorder recorder;
  auto y = recorder.asking(leaf(), 3);
  y.register_hook([&](const at::Tensor&) {
    recorder.ask(1);
    at_end_of_pass(2, [] { throw std::out_of_range("from an end"); });
  });
  EXPECT_THROW(y.sum().backward(), std::out_of_range);
  EXPECT_EQ(recorder.take(), (Events{"asked 3", "end 1", "dropped 3"}));
}

TEST(GraphTasks, OnlyTheOutermostEndsThePass) {
  Recorder recorder;
  const auto inner = [&](const at::Tensor& x) { return recorder.asking(x, 1); };
  const auto two_levels = [&](const at::Tensor& x) { return checkpoint(inner, x * 2); };
  for (const Inner& each : {Inner(inner), Inner(two_levels)}) {
    checkpoint(each, recorder.telling(leaf(), "outer goes on")).sum().backward();
    EXPECT_EQ(recorder.take(), (Events{"asked 1", "outer goes on", "end 1"}));
  }
  // Two inner ones, and the outer itself.
  recorder.asking(checkpoint(inner, checkpoint(inner, leaf())), 1).sum().backward();
  EXPECT_EQ(recorder.take(), (Events{"asked 1", "asked 1", "asked 1", "end 1", "end 1", "end 1"}));
}

TEST(GraphTasks, TheOrderHoldsAcrossGraphTasksOfOnePass) {
  for (const bool outer_first : {true, false}) {
    for (const int64_t of_inner : {1, 2}) {
      Recorder recorder;
      const int64_t of_outer = 3 - of_inner;
      const auto inner = [&](const at::Tensor& x) { return recorder.asking(x, of_inner); };
      (outer_first ? recorder.asking(checkpoint(inner, leaf()), of_outer)
                   : checkpoint(inner, recorder.asking(leaf(), of_outer)))
          .sum()
          .backward();
      const auto events = recorder.take();
      ASSERT_EQ(events.size(), 4U);
      EXPECT_EQ(events[2], "end 1") << outer_first << of_inner;
      EXPECT_EQ(events[3], "end 2") << outer_first << of_inner;
    }
  }
}

TEST(GraphTasks, AnExceptionAfterAnInnerOneDropsItsEnd) {
  Recorder recorder;
  const auto inner = [&](const at::Tensor& x) { return recorder.asking(x, 1); };
  const auto inner_throws = [&](const at::Tensor& x) {
    return recorder.asking(recorder.throwing(x), 1);
  };
  // In the node that ran it, in the outer task after that node, and inside of it.
  const std::vector<std::pair<at::Tensor, Events>> losses{
      {checkpoint(inner, leaf(), /*throws=*/true), {"asked 1", "dropped 1", "caught"}},
      {checkpoint(inner, recorder.throwing(leaf())), {"asked 1", "thrown", "dropped 1", "caught"}},
      {checkpoint(inner_throws, leaf()), {"asked 1", "thrown", "dropped 1", "caught"}}};
  for (const auto& [loss, want] : losses) {
    try {
      loss.sum().backward();
      ADD_FAILURE() << "expected an exception";
    } catch (const std::out_of_range&) {
      recorder.events.push_back("caught");
    }
    EXPECT_EQ(recorder.take(), want);
    recorder.asking(leaf(), 1).sum().backward();
    EXPECT_EQ(recorder.take(), (Events{"asked 1", "end 1"})) << "nothing is left over";
  }
}

TEST(GraphTasks, NestedOnesAreSeenAsLongAsOneObserverLives) {
  Recorder recorder;
  auto other = std::make_unique<GraphTaskObserver>();
  other.reset();
  const auto inner = [&](const at::Tensor& x) { return recorder.asking(x, 1); };
  checkpoint(inner, recorder.telling(leaf(), "outer goes on")).sum().backward();
  EXPECT_EQ(recorder.take(), (Events{"asked 1", "outer goes on", "end 1"}));
}

}  // namespace
}  // namespace equigrad::autograd
