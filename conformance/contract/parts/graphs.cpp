// 16. Its parts: what is seen of a backward pass, by whoever begins it and however it ends.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/players/reentrant.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/autograd/backward_pass.hpp"
#include "engine/autograd/gradients.hpp"
#include "engine/autograd/graph_tasks.hpp"
#include "engine/autograd/shared_callback.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace graph_parts {
namespace {

using autograd::BackwardPass;

// A diary of one or several passes.
struct Diary {
  std::string text;
  std::string throws_at = {};
  void write(const std::string& event) {
    text += event + " ";
    if (event == throws_at) throw std::out_of_range("thrown at " + event);
  }
  std::string take() { return std::exchange(text, {}); }
};

// Two leaves, watched as parameters 3 and 8, and one that is not.
struct Watched {
  Diary diary;
  std::string mark;
  at::Tensor w = at::arange(1, 4, at::kFloat).requires_grad_(),
             b = (w.detach() * 10).requires_grad_(), other = at::ones({3}).requires_grad_();
  std::vector<at::Tensor> got = std::vector<at::Tensor>(9);
  std::optional<BackwardPass> pass;

  explicit Watched(std::string of = "", int64_t order = 0, Diary* into = nullptr)
      : mark(std::move(of)) {
    Diary& diary_of = into == nullptr ? diary : *into;
    const auto event = [this, &diary_of](const std::string& what) { diary_of.write(mark + what); };
    pass.emplace(std::vector<autograd::WatchedParameter>{{3, "layer.w", w}, {8, "layer.b", b}},
                 autograd::PassCallbacks{.begin = [event] { event("begin"); },
                                         .ready =
                                             [this, event](std::size_t i, at::Tensor gradient) {
                                               got[i] = std::move(gradient);
                                               event(std::to_string(i));
                                             },
                                         .end = [event] { event("end"); },
                                         .abandoned = [event] { event("abandoned"); },
                                         .graph_task = [event] { event("task"); }},
                 order);
  }
};

void is(Play& play, const std::string& what, const std::string& got, const std::string& want) {
  play.check(what + ": \"" + want + "\", seen is \"" + got + "\"", got == want);
}

bool same(const at::Tensor& got, const at::Tensor& want) {
  return got.defined() && at::equal(got, want);
}

// The order of two leaves is autograd's.
void is_whole(Play& play, const std::string& what, Diary& diary) {
  const auto got = diary.take();
  play.check(what + " begins, brings two gradients and ends, seen is \"" + got + "\"",
             got == "begin task 3 8 end " || got == "begin task 8 3 end ");
}

void check_ways_in(Play& play) {
  Watched it;
  it.w.mutable_grad() = at::ones({3});
  const auto loss = (it.w * it.b).sum();
  const std::vector<std::pair<std::string, std::function<void()>>> ways = {
      {"loss.backward()", [&] { loss.backward({}, /*retain_graph=*/true); }},
      {"a second one", [&] { loss.backward({}, true); }},
      {"torch::autograd::backward", [&] { torch::autograd::backward({loss}, {}, true); }},
      {"run", [&] { it.pass->run([&] { loss.backward({}, true); }); }},
      {"on a thread", [&] { std::thread([&] { loss.backward({}, true); }).join(); }}};
  it.w.mutable_grad() = at::Tensor();
  int64_t completed = 0;
  for (const auto& [what, way] : ways) {
    play.check("passes are counted", it.pass->completed() == completed++);
    it.got.assign(9, {});
    way();
    is_whole(play, what, it.diary);
    play.check(what + " brings each gradient once, and leaves none",
               same(it.got[3], it.b) && same(it.got[8], it.w) && !it.w.grad().defined() &&
                   !it.b.grad().defined() && !it.got[3].requires_grad());
  }
  it.w.sum().backward({}, true);
  is(play, "a pass that reaches one", it.diary.take(), "begin task 3 end ");
  torch::autograd::grad({loss}, {it.w, it.b}, {}, true);
  loss.backward({}, true, false, std::vector<at::Tensor>{it.b});
  is(play, "a pass to one of two", it.diary.take(),
     play.fault() ? "begin task 3 end " : "begin task 8 end ");
  it.other.sum().backward();
  is(play, "a pass that reaches none", it.diary.take(), "");
  play.check("what is not watched has its gradient", it.other.grad().defined());
}

void check_run(Play& play) {
  Watched it;
  it.pass->run([&] { it.other.sum().backward(); });
  is(play, "run of a pass that reaches none", it.diary.take(), "begin end ");
  it.pass->run([] {});
  is(play, "run of nothing", it.diary.take(), "begin end ");
  play.check("both count", it.pass->completed() == 2);
  play.fail("no pass", [&] { it.pass->run([] { throw std::out_of_range("no pass"); }); });
  is(play, "run of what throws before any gradient", it.diary.take(), "abandoned ");
  auto out = (it.w * 2).sum();
  out.register_hook([&](const at::Tensor&) {
    const at::AutoGradMode with_grad(true);
    it.pass->join();
    it.pass->run([&] { it.other.sum().backward(); });
  });
  it.pass->run([&] { out.backward({}, true); });
  is(play, "run inside of a pass is part of it", it.diary.take(), "begin task 3 end ");
  auto joined = it.other.sum();
  joined.register_hook([&](const at::Tensor&) { it.pass->join(); });
  joined.backward();
  is(play, "a pass that is joined and reaches none", it.diary.take(), "begin end ");
  play.fail("after a pass", [&] {
    it.pass->run([&] {
      out.backward({}, true);
      throw std::out_of_range("after a pass");
    });
  });
  is(play, "a pass that has ended stays ended", it.diary.take(), "begin task 3 end ");
  play.check("four of them ended", it.pass->completed() == 5);
  for (const char* at : {"begin", "end"}) {
    it.diary.throws_at = at;
    play.fail(std::string("thrown at ") + at, [&] { it.pass->run([] {}); });
    is(play, "an empty run that throws", it.diary.take(),
       at == std::string("begin") ? "begin abandoned " : "begin end abandoned ");
  }
  play.check("they do not count", it.pass->completed() == 5);
}

void check_exceptions(Play& play) {
  Watched it;
  const auto loss = (it.w * 3).sum();
  const std::vector<std::pair<std::string, std::string>> all = {
      {"begin", "begin abandoned "},
      {"task", "begin task abandoned "},
      {"3", "begin task 3 abandoned "},
      {"end", "begin task 3 end abandoned "}};
  for (const auto& [event, want] : all) {
    it.diary.throws_at = event;
    play.fail("thrown at " + event, [&] { loss.backward({}, true); });
    is(play, "a pass that throws at " + event, it.diary.take(), want);
    it.diary.throws_at = "";
    loss.backward({}, true);
    is(play, "the next one", it.diary.take(), "begin task 3 end ");
  }
  play.check("those that threw do not count", it.pass->completed() == 4);
  // The product's node runs before w's sum is there: w has a gradient, b has none yet.
  auto late = it.b * 2;
  late.register_hook([&](const at::Tensor&) {
    if (it.diary.text.find('3') != std::string::npos) throw std::out_of_range("in a hook");
  });
  const auto both = late.sum() + (it.w * 1).sum();
  std::string got;
  try {
    both.backward({}, true);
  } catch (const std::out_of_range&) {
  }
  got = it.diary.take();
  play.check("one that throws in the graph is abandoned or whole, seen is \"" + got + "\"",
             got == "begin task 3 abandoned " || got == "begin task 8 3 end ");
  play.check("no gradient stays", !it.w.grad().defined() && !it.b.grad().defined());
}

void check_sparse(Play& play) {
  Watched it;
  const auto table = at::ones({3, 2}).requires_grad_();
  BackwardPass pass({{0, "words.weight", table}}, {.begin = [] {},
                                                   .ready = [](std::size_t, const at::Tensor&) {},
                                                   .end = [] {},
                                                   .abandoned = [] {}});
  const auto rows = at::embedding(table, at::zeros({2}, at::kLong), -1, false, /*sparse=*/true);
  play.fail(
      "[backward] expected a dense gradient for parameter \"words.weight\", got a sparse one. "
      "Build the embedding with sparse(false), in Python with sparse=False.",
      [&] { rows.sum().backward(); });
  play.check("no sparse gradient stays", !table.grad().defined() && pass.completed() == 0);
}

struct Counting final : torch::autograd::PostAccumulateGradHook {
  int* calls;
  at::Tensor* seen;
  Counting(int* of, at::Tensor* kept) : calls(of), seen(kept) {}
  void operator()(const at::Tensor& leaf) override {
    ++*calls;
    *seen = leaf.grad();
  }
};

// Hooks of the caller's run first, and stay; without a watcher the leaves are plain ones.
void check_lives(Play& play) {
  int calls = 0;
  at::Tensor seen;
  const auto leaf = at::ones({2}).requires_grad_(), other = at::ones({2}).requires_grad_();
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<Counting>(&calls, &seen));
  play.check("a leaf with another's hook is not watched", !autograd::is_watched(leaf));
  leaf.mutable_grad() = at::ones({2});
  at::Tensor got;
  int ready = 0;
  {
    BackwardPass pass({{0, "leaf", leaf}}, {.begin = [] {},
                                            .ready =
                                                [&](std::size_t, at::Tensor gradient) {
                                                  got = std::move(gradient);
                                                  ++ready;
                                                },
                                            .end = [] {},
                                            .abandoned = [] {}});
    play.check("a gradient from before is dropped", !leaf.grad().defined());
    play.check("what is watched is known",
               autograd::is_watched(leaf) && !autograd::is_watched(other));
    (leaf * 5).sum().backward();
    play.check("the caller's hook sees the gradient, then the watcher",
               calls == 1 && ready == 1 && same(seen, at::full({2}, 5.0)) && same(got, seen));
  }
  play.check("nobody watches any more", !autograd::is_watched(leaf));
  (leaf * 5).sum().backward();
  play.check("the caller's hook stays, and so does the gradient",
             calls == 2 && ready == 1 && same(leaf.grad(), at::full({2}, 5.0)));
}

// Of two passes the one with the smaller number ends first, whatever is reached first.
void check_orders(Play& play) {
  Diary diary;
  Watched late("L:", 7, &diary), early("E:", -2, &diary);
  const auto ends = [&](const std::string& what) {
    const auto got = diary.take();
    play.check(what + " ends in order, seen is \"" + got + "\"",
               got.ends_with("E:end L:end ") && got.find("abandoned") == std::string::npos);
  };
  (late.w.sum() + early.w.sum()).backward();
  ends("a pass of both");
  (early.w.sum() + late.w.sum()).backward();
  ends("the other way round");
  const Block inner = [&](const at::Tensor& x) { return x * late.w; };
  const auto x = at::ones({3}).requires_grad_();
  Reentrant::apply(inner, x * early.w).sum().backward();
  ends("one of them in an inner graph task");
  const Block second = [&](const at::Tensor& y) { return y * early.b + late.b; };
  Reentrant::apply(second, Reentrant::apply(inner, x * early.w)).sum().backward();
  ends("two inner ones");
  play.check("each of four passes counts once",
             late.pass->completed() == 4 && early.pass->completed() == 4);
  const Block throws = [&](const at::Tensor& y) {
    auto out = y * late.w;
    if (out.requires_grad())
      out.register_hook([](const at::Tensor&) { throw std::out_of_range("in a block"); });
    return out;
  };
  play.fail("in a block", [&] {
    Reentrant::apply(inner, Reentrant::apply(throws, x * early.w)).sum().backward();
  });
  const auto got = diary.take();
  play.check("an exception in a block abandons what its pass has begun, seen is \"" + got + "\"",
             got == "L:begin L:task L:3 L:abandoned ");
}

void check_graph_tasks(Play& play) {
  const autograd::GraphTaskObserver observer;
  play.check("outside of a pass there is none", autograd::current_graph_task() == -1);
  std::string called;
  const auto pass = [&](bool throws) {
    const auto x = at::ones({2}).requires_grad_();
    auto y = x * 2;
    auto token = std::make_shared<int>(0);
    y.register_hook([&called, token, throws](const at::Tensor&) {
      called += autograd::current_graph_task() >= 0 ? "in " : "out ";
      for (const int order : {5, -1, 3, -1})
        autograd::at_end_of_pass(
            order, [&called, order, token] { called += std::to_string(order) + " "; });
      if (throws) throw std::out_of_range("in the pass");
    });
    auto loss = y.sum();
    const std::weak_ptr<int> alive = token;
    token.reset();
    if (throws)
      play.fail("in the pass", [&] { loss.backward(); });
    else
      loss.backward();
    y = loss = at::Tensor();
    play.check("nothing of a pass is kept", alive.expired());
    return std::exchange(called, {});
  };
  is(play, "the ends of a pass, in order", pass(false), "in -1 -1 3 5 ");
  is(play, "of one that throws", pass(true), "in ");
  is(play, "of the next", pass(false), "in -1 -1 3 5 ");
}

void check_gradients(Play& play) {
  const auto x = at::full({2}, 3.0).requires_grad_(), unused = at::ones({2}).requires_grad_();
  const auto cube = x.pow(3);
  for (int again = 0; again < 2; ++again) {
    const auto first = autograd::gradients({cube.sum()}, {x, unused}, {}, /*create_graph=*/true);
    play.check("3 x x, and nothing of what is not used",
               first.size() == 2 && same(first[0], at::full({2}, 27.0)) &&
                   first[0].requires_grad() && !first[1].defined());
    const auto second =
        autograd::gradients(first[0].defined() ? std::vector{first[0]} : std::vector{x}, {x},
                            {at::tensor({1.0F, 2.0F})}, false);
    play.check("6 x along a vector, without a graph",
               same(second[0], at::tensor({18.0F, 36.0F})) && !second[0].requires_grad());
  }
  play.check("no gradient is written", !x.grad().defined());
}

int begun = 0, ended = 0;
std::unique_ptr<at::ObserverContext> count_begin(const at::RecordFunction& function) {
  if (std::string_view(function.name()) == "aten::erfinv") ++begun;
  return nullptr;
}
void count_end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  if (std::string_view(function.name()) == "aten::erfinv") ++ended;
}

void check_shared_callback(Play& play) {
  static autograd::SharedCallback callback(
      at::RecordFunctionCallback(count_begin, count_end).scopes({at::RecordScope::FUNCTION}));
  const auto calls = [&](int users, int want) {
    begun = ended = 0;
    at::erfinv(at::zeros({1}));
    play.check("with " + std::to_string(users) + " users an operator is seen " +
                   std::to_string(want) + " times, got " + std::to_string(begun),
               begun == want && ended == want && callback.is_used() == (users > 0));
  };
  for (int again = 0; again < 2; ++again) {
    calls(0, 0);
    std::optional<autograd::SharedCallback::Use> first, second;
    first.emplace(callback);
    calls(1, 1);
    second.emplace(callback);
    calls(2, 1);
    first.reset();
    calls(1, 1);
    second.reset();
  }
  calls(0, 0);
}

void passes_from_begin_to_end(Play& play) {
  if (play.group()) {
    check_ways_in(play);
    check_run(play);
    check_exceptions(play);
    check_sparse(play);
    check_lives(play);
    check_orders(play);
    check_graph_tasks(play);
    check_gradients(play);
    check_shared_callback(play);
  }
  train_along(play);
}

}  // namespace
}  // namespace graph_parts

std::vector<Case> graphs() {
  return {of_part("passes_from_begin_to_end",
                  "begin, gradients, end: of every way in, in order, once; or abandoned",
                  "the gradient of another parameter is expected",
                  graph_parts::passes_from_begin_to_end)};
}

}  // namespace equigrad::conformance::contract
