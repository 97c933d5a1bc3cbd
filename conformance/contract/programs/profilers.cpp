// 15. What an engine says of itself: the module of every operator; profilers beside each other.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <array>
#include <memory>
#include <thread>
#include <utility>

#include "conformance/contract/players/reentrant.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/autograd/operator_observer.hpp"
#include "engine/engine.hpp"
#include "engine/profile/flops_profiler.hpp"
#include "engine/profile/session.hpp"

namespace equigrad::conformance::contract {
namespace profiler_parts {
namespace {

using Values = std::vector<c10::IValue>;
using profile::FlopsReport;

at::Tensor of(const std::vector<int64_t>& sizes) { return at::empty(sizes); }

// ---- Sessions: operators with a place and times by hand. ----------------------------------------
using profile::kNone;
using profile::Operator;
using profile::Session;
using profile::Tally;

// The model, a, a.b.c (there is no a.b), a.b.c.e, d, x.y; `shared` is a's and d's.
struct Tree {
  at::Tensor own = of({2}), first = of({3, 4}), deep = of({5}), deepest = of({}), shared = of({7}),
             empty = of({0}), strange = of({9}), last = of({6});
  std::vector<layout::ModuleEntry> modules() const {
    const auto id = [](const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); };
    return {{"", "Model", {id(own)}},
            {"a", "A", {id(first), id(shared), id(empty)}},
            {"a.b.c", "C", {id(deep), id(strange)}},
            {"a.b.c.e", "E", {id(deepest)}},
            {"d", "D", {id(shared)}},
            {"x.y", "Y", {id(last)}}};
  }
  std::vector<at::Tensor> parameters() const {
    return {last, shared, own, first, deep, deepest, empty};
  }
};
enum Place : int64_t { kModel, kA, kC, kE, kD, kY };

void check_owners(Play& play, const Tree& tree, const Session& session) {
  const auto list = [](const std::vector<at::Tensor>& tensors) { return c10::IValue(tensors); };
  const at::Tensor other = of({4}), none;
  const std::vector<std::pair<Values, int64_t>> all = {
      {{}, kNone},
      {{other, 1.0, none, c10::IValue()}, kNone},
      {{tree.own}, kModel},
      {{other, tree.first.t()[1]}, kA},
      {{tree.shared.slice(0, 1, 3)}, kA},
      {{tree.deepest, tree.deep}, kE},
      {{tree.deep, tree.deepest}, kC},
      {{std::vector<int64_t>{1, 2}, tree.last.detach()}, kY},
      {{list({other, none, tree.deep}), tree.own}, kC},
      {{list({other}), tree.own}, kModel},
      {{list({}), c10::IValue(tree.last)}, kY},
      {{tree.strange, tree.empty}, kNone}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto got = session.module_of(all[i].first);
    play.check("operator " + std::to_string(i) + " reads parameters of module " +
                   std::to_string(all[i].second) + ", said is " + std::to_string(got),
               got == all[i].second);
  }
}

struct Done {
  Operator made;
  int64_t begin_ns, end_ns;
  int64_t module;  // that it is counted for
};

Done forward(int64_t reads, int64_t sequence, int64_t begin, int64_t end, int64_t module) {
  return {{false, reads, sequence, {begin + end, begin}, 0}, begin, end, module};
}
Done backward(int64_t reads, int64_t sequence, int64_t begin, int64_t end, int64_t module) {
  return {{true, reads, sequence, {begin + end, begin}, 0}, begin, end, module};
}

// What says nothing is the deepest module's around those before and after it. An operator of no
// node has the number of the next; the last of a number made it. In the middle a forward pass more.
std::vector<Done> history() {
  return {forward(kNone, 1, 10, 12, kModel), forward(kE, 1, 12, 20, kE),
          forward(kNone, kNone, 21, 22, kA), forward(kA, 2, 30, 33, kA),
          forward(kNone, 3, 33, 34, kA),     forward(kC, 3, 34, 38, kC),
          forward(kNone, 4, 38, 39, kC),     forward(kC, 5, 40, 45, kC),
          forward(kNone, 6, 45, 46, kModel), forward(kD, 7, 46, 50, kD),
          forward(kNone, 8, 51, 52, kModel), backward(kNone, 8, 60, 61, kModel),
          backward(kNone, 7, 61, 65, kD),    backward(kNone, kNone, 65, 66, kModel),
          backward(kNone, 3, 66, 70, kC),    backward(kNone, 99, 70, 71, kC),
          backward(kC, 7, 71, 80, kC),       forward(kY, 9, 90, 97, kY),
          backward(kNone, 2, 100, 110, kA),  backward(kNone, kNone, 110, 111, kA),
          backward(kNone, 1, 111, 115, kE),  backward(kNone, 1000, 120, 121, kModel)};
}

std::string words_of(const Tally& tally) {
  return std::to_string(tally.flops) + " flops, " + std::to_string(tally.macs) + " MACs, " +
         std::to_string(tally.time_ns) + " ns";
}

void check_tally(Play& play, const std::string& what, const Tally& got, const Tally& want) {
  play.check(what + " has " + words_of(want) + ", got " + words_of(got),
             got.flops == want.flops && got.macs == want.macs && got.time_ns == want.time_ns);
}

// Parents are those of the names.
void check_tallies(Play& play, const profile::FlopsReport& report, const std::vector<Done>& all) {
  const std::vector<std::vector<int64_t>> around = {{0},          {1, 0}, {2, 1, 0},
                                                    {3, 2, 1, 0}, {4, 0}, {5, 0}};
  std::vector<Tally> own[2] = {std::vector<Tally>(6), std::vector<Tally>(6)},
                     sum[2] = {own[0], own[0]};
  for (const auto& one : all) {
    const Tally tally{one.made.cost.flops, one.made.cost.macs, one.end_ns - one.begin_ns};
    const auto module = static_cast<std::size_t>(one.module);
    own[one.made.backward ? 1 : 0][module] += tally;
    for (const auto at : around[module])
      sum[one.made.backward ? 1 : 0][static_cast<std::size_t>(at)] += tally;
  }
  for (std::size_t i = 0; i < report.modules.size() && i < 6; ++i) {
    const auto& module = report.modules[i];
    check_tally(play, "forward of \"" + module.name + "\" itself", module.own_forward, own[0][i]);
    check_tally(play, "backward of \"" + module.name + "\" itself", module.own_backward, own[1][i]);
    check_tally(play, "forward of \"" + module.name + "\"", module.forward, sum[0][i]);
    check_tally(play, "backward of \"" + module.name + "\"", module.backward, sum[1][i]);
  }
}

void check_tree(Play& play, const profile::FlopsReport& report) {
  struct Want {
    std::string name, type;
    int64_t depth, params_numel;
  };
  const std::vector<Want> all = {{"", "Model", 0, 2 + 12 + 7 + 5 + 1 + 6},
                                 {"a", "A", 1, 12 + 7 + 5 + 1},
                                 {"a.b.c", "C", 2, 5 + 1},
                                 {"a.b.c.e", "E", 3, 1},
                                 {"d", "D", 1, 7},
                                 {"x.y", "Y", 1, 6}};
  play.check("every module is there once", report.modules.size() == all.size());
  for (std::size_t i = 0; i < all.size() && i < report.modules.size(); ++i) {
    const auto& got = report.modules[i];
    play.check("module \"" + all[i].name + "\" is " + all[i].type + " at depth " +
                   std::to_string(all[i].depth) + " with " + std::to_string(all[i].params_numel) +
                   " elements, got " + got.type + " at " + std::to_string(got.depth) + " with " +
                   std::to_string(got.params_numel),
               got.name == all[i].name && got.type == all[i].type && got.depth == all[i].depth &&
                   got.params_numel == all[i].params_numel);
  }
}

void check_spans(Play& play, const profile::FlopsReport& report, int64_t forward_ns,
                 int64_t backward_ns) {
  play.check("a pass is from its first operator to its last: " + std::to_string(forward_ns) +
                 " ns there and " + std::to_string(backward_ns) + " back, got " +
                 std::to_string(report.forward_ns) + " and " + std::to_string(report.backward_ns),
             report.forward_ns == forward_ns && report.backward_ns == backward_ns);
}

void check_session(Play& play) {
  const Tree tree;
  Session session(tree.modules(), tree.parameters());
  check_tree(play, session.report());
  play.check("nobody owns anything before it begins", session.module_of(Values{tree.own}) == kNone);
  session.begin();
  check_owners(play, tree, session);
  auto all = history();
  for (const auto& one : all) session.add(one.made, one.begin_ns, one.end_ns);
  for (const char* name : {"aten::z", "aten::b", "aten::z"}) session.add_unknown(name);
  for (int again = 0; again < 2; ++again) {
    const auto report = session.report();
    check_tree(play, report);
    check_tallies(play, report, all);
    check_spans(play, report, (52 - 10) + (97 - 90) + (play.fault() ? 1 : 0),
                (80 - 60) + (121 - 100));
    const auto& unknown = report.unknown;
    play.check("what has no formula is counted, by name",
               unknown.size() == 2 && unknown[0].name == "aten::b" && unknown[0].count == 1 &&
                   unknown[1].name == "aten::z" && unknown[1].count == 2);
  }
  session.begin();
  check_spans(play, session.report(), 0, 0);
  check_tallies(play, session.report(), {});
  play.check("a new beginning knows of no operator", session.report().unknown.empty());
  all = {backward(kNone, 1, 5, 9, kModel)};
  session.add(all[0].made, 5, 9);
  check_tallies(play, session.report(), all);
  check_spans(play, session.report(), 0, 4);
}

void every_operator_in_one_module(Play& play) {
  if (play.group()) check_session(play);
  train_along(play);
}

// ---- Profilers of a real model ---------------------------------------------------------------
// inner.deep has a weight of 12 elements, which outer.again has too; `idle` is not used.
struct Nested : torch::nn::Module {
  explicit Nested(const std::string& name = "Nested") : torch::nn::Module(name) {
    inner->register_module("a b", deep);
    register_module("inner", inner);
    register_module("again", again);
    register_module("idle", std::make_shared<torch::nn::Module>("Idle"));
    weight = deep->register_parameter("w", at::ones({3, 4}));
    again->register_parameter("w", weight);
  }
  std::shared_ptr<torch::nn::Module> inner = std::make_shared<torch::nn::Module>("Inner"),
                                     deep = std::make_shared<torch::nn::Module>("Deep"),
                                     again = std::make_shared<torch::nn::Module>("Again");
  at::Tensor weight;
  at::Tensor product(int64_t rows) { return at::mm(at::ones({rows, 3}), weight); }  // 24 a row
};

void counts(Play& play, const std::string& what, const FlopsReport& report, int64_t forward,
            int64_t backward = 0) {
  const auto& all = report.modules.front();
  play.check(what + ": " + std::to_string(forward) + " there and " + std::to_string(backward) +
                 " back, counted are " + std::to_string(all.forward.flops) + " and " +
                 std::to_string(all.backward.flops),
             all.forward.flops == forward && all.backward.flops == backward);
}

void check_starts(Play& play, Nested& model) {
  profile::FlopsProfiler profiler(model);
  const auto stop_idle = [&] {
    play.refuse("[profile.stop] expected a profiler that runs, got one that is idle. Call start().",
                [&] { profiler.stop(); });
  };
  play.check("a new one is idle", !profiler.running());
  stop_idle();
  model.product(1);
  counts(play, "before the start", profiler.report(), 0);
  profiler.start();
  model.product(2);
  play.refuse("[profile.start] expected a profiler that is idle, got one that runs. Call stop().",
              [&] { profiler.start(); });
  play.check("it runs", profiler.running());
  counts(play, "while it runs", profiler.report(), 48);
  profiler.stop();
  play.check("it is idle again", !profiler.running());
  model.product(3);
  counts(play, "after the end", profiler.report(), 48);
  stop_idle();
  profiler.start();
  counts(play, "from a second start on", profiler.report(), 0);
  model.product(4);
  profiler.stop();
  counts(play, "of the second", profiler.report(), play.fault() ? 97 : 96);
}

void check_beside(Play& play, Nested& model) {
  profile::FlopsProfiler first(model), second(model);
  FlopsReport other;
  {
    profile::FlopsProfiler dies(model);
    dies.start();
    first.start();
    model.product(1);
  }
  second.start();
  model.product(2);
  std::thread([&] {
    profile::FlopsProfiler third(model);
    third.start();
    model.product(5);
    third.stop();
    other = third.report();
  }).join();
  {
    const autograd::Silence silence;
    model.product(7);
  }
  first.stop();
  model.product(3);
  second.stop();
  counts(play, "the first of two", first.report(), 72);
  counts(play, "the second of two", second.report(), 120);
  counts(play, "one of another thread", other, 120);
}

template <class Pass>
FlopsReport report_of(Nested& model, Pass pass) {
  profile::FlopsProfiler profiler(model);
  profiler.start();
  pass();
  profiler.stop();
  return profiler.report();
}

struct Throws : torch::autograd::Function<Throws> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::out_of_range("thrown in backward");
  }
};

// What throws leaves nothing behind: what runs after it counts as ever.
void check_throwing(Play& play, Nested& model) {
  const auto report = report_of(model, [&] {
    play.fail("mat1 and mat2", [&] { at::mm(at::ones({0, 5}), model.weight); });
    model.product(1);
    const auto x = at::ones({3, 3}).requires_grad_();
    const auto out = at::mm(Throws::apply(x), model.weight);
    play.fail("thrown in backward", [&] { out.sum().backward(); });
    model.product(2);
  });
  counts(play, "around exceptions", report, 72 + 72 + 12, 2 * 72);
  model.weight.mutable_grad() = at::Tensor();
}

// celu is an operator without a formula that runs elu, which has one; result_type runs none.
void check_unknown(Play& play, Nested& model) {
  const auto report = report_of(model, [&] {
    at::celu(at::ones({5}));
    (void)at::result_type(at::ones({2}), at::ones({3}));
    at::matmul(at::ones({1, 3}), model.weight);
  });
  std::string names;
  for (const auto& one : report.unknown) names += one.name + " " + std::to_string(one.count) + " ";
  play.check("of three composites two are unknown, got " + names,
             names == "aten::celu 1 aten::result_type 1 ");
  counts(play, "what they run", report, 5 + 24);
  play.check("no operator counts its time twice",
             report.modules.front().forward.time_ns <= report.forward_ns);
}

// A block that runs again in backward counts there: once more, and both gradients' products.
void check_recomputed(Play& play, Nested& model) {
  const auto report = report_of(model, [&] {
    const auto x = at::ones({2, 3}).requires_grad_();
    const auto block = [&](const at::Tensor& input) { return at::mm(input, model.weight); };
    Reentrant::apply(block, x).sum().backward();
  });
  counts(play, "a block that is recomputed", report, 48 + 8, 3 * 48);
  model.weight.mutable_grad() = at::Tensor();
}

void check_nested(Play& play, Nested& model) {
  const auto report = report_of(model, [&] { model.product(2).sum().backward(); });
  model.weight.mutable_grad() = at::Tensor();
  const std::vector<std::pair<std::string, std::array<int64_t, 4>>> all = {
      {"", {0, 12, 48 + 8, 48}},
      {"inner", {1, 12, 48, 48}},
      {"inner.a b", {2, 12, 48, 48}},
      {"again", {1, 12, 0, 0}},
      {"idle", {1, 0, 0, 0}}};
  play.check("all modules are there", report.modules.size() == all.size());
  for (std::size_t i = 0; i < all.size() && i < report.modules.size(); ++i) {
    const auto& got = report.modules[i];
    const auto& [name, want] = all[i];
    play.check("module " + std::to_string(i) + " is \"" + name + "\" with its own, got \"" +
                   got.name + "\": depth " + std::to_string(got.depth) + ", " +
                   std::to_string(got.params_numel) + " elements, " +
                   std::to_string(got.forward.flops) + " and " +
                   std::to_string(got.backward.flops) + " flops",
               got.name == name && got.depth == want[0] && got.params_numel == want[1] &&
                   got.forward.flops == want[2] && got.backward.flops == want[3]);
  }
  play.check("types are the modules' names",
             report.modules[0].type == "Nested" && report.modules[2].type == "Deep");
}

void profilers_beside_each_other(Play& play) {
  if (play.group()) {
    Nested model;
    check_nested(play, model);
    check_starts(play, model);
    check_beside(play, model);
    check_throwing(play, model);
    check_unknown(play, model);
    check_recomputed(play, model);
  }
  train_along(play);
}

}  // namespace
}  // namespace profiler_parts

std::vector<Case> profilers() {
  return {
      case_beside(
          {.section = "15",
           .name = "every_operator_in_one_module",
           .sentence = "a profile's operators, placed by what they read, made and ran between",
           .fault = "a pass that is longer is expected",
           .program = profiler_parts::every_operator_in_one_module},
          Plays::Once),
      case_beside(
          {.section = "15",
           .name = "profilers_beside_each_other",
           .sentence = "one that is started twice, dies while it runs, sees exceptions; several",
           .fault = "one operation more is expected",
           .program = profiler_parts::profilers_beside_each_other},
          Plays::Once)};
}

}  // namespace equigrad::conformance::contract
