// 16. Its parts: the loss scale as a node of the graph, and what is wrong with a pass, in words.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/players/reentrant.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/autograd/scaled_graph.hpp"
#include "engine/engine.hpp"
#include "engine/loss/loss_scaler.hpp"

namespace equigrad::conformance::contract {
namespace scale_parts {
namespace {

using autograd::scale;
using Scaler = std::shared_ptr<loss::LossScaler>;

// Halved by every overflow.
Scaler scaler_of(int64_t power) {
  LossScaleConfig config;
  config.policy = LossScaleConfig::Policy::GradScaler;
  config.initial_scale_power = power;
  return autograd::make_scaler(config);
}

// A leaf whose gradient is looked at before it is there, as an engine with that scaler does it.
struct Leaf {
  std::string name;
  Scaler scaler;
  at::Tensor value;

  Leaf(std::string of, Scaler with, at::ScalarType type = at::kFloat)
      : name(std::move(of)),
        scaler(std::move(with)),
        value(at::arange(1, 4, at::kFloat).to(type).requires_grad_()) {
    value.register_hook([this](const at::Tensor&) { check(); });
  }
  void check() const {
    autograd::check_pass(scaler.get(), [this](const at::Tensor& leaf) {
      return leaf.is_same(value) ? &name : nullptr;
    });
  }
  at::Tensor loss() const { return value.to(at::kFloat).square().sum(); }
  at::Tensor take() { return std::exchange(value.mutable_grad(), at::Tensor()); }
};

std::string of_parameter(const std::string& name, const std::string& number) {
  return "[backward] expected gradients of parameter \"" + name + "\" with the loss scale (" +
         number + ") exactly once, got it ";
}
const std::string kUnscaled =
    "unscaled. Loss scaling is required: call engine.backward(loss) or "
    "engine.scale(loss).backward(); and with a gradient of your own "
    "engine.scale(output).backward(gradient).";
const std::string kSeveral =
    "scaled more than once. engine.backward scales by itself: hand it the loss, not "
    "engine.scale(loss); and scale a loss only, nothing that a scaled tensor is made of.";
const std::string kForeign =
    "scaled by another engine's. Engines under one loss need one scale: call "
    "engine.share_loss_scale(other) before the first pass.";
const std::string kStale =
    "scaled with the scale of an earlier step. Call engine.scale(loss) after the step, for every "
    "pass anew.";
const std::string kNone =
    "[backward] expected gradients of parameter \"plain\" with no loss scale, since the precision "
    "of its engine needs none, got the loss scale of another engine. Give the engines losses of "
    "their own, or the same precision and one scale (share_loss_scale).";
const std::string kUnwatched =
    "[backward] expected a pass that could be watched from its first node, got one that began "
    "before its engine was made, or without RecordFunction. Make engines outside of a pass; do not "
    "disable RecordFunction around one.";

struct Scene {
  Scaler scaler = scaler_of(10), other = scaler_of(10);
  Leaf p{"p", scaler}, q{"q", other}, plain{"plain", nullptr};
};

void accepts(Play& play, const std::string& what, Leaf& leaf, double scaled,
             const std::function<void()>& pass) {
  pass();
  const auto got = leaf.take();
  play.check(what + " is accepted, and brings " + std::to_string(scaled) + " times the gradient",
             got.defined() &&
                 at::equal(got.to(at::kFloat), leaf.value.detach().to(at::kFloat) * (2 * scaled)));
}

void refuses(Play& play, const std::string& words, Leaf& leaf, const std::function<void()>& pass) {
  play.fail(words, pass);
  play.check("a pass that is refused brings nothing", !leaf.take().defined());
}

void check_complaints(Play& play, Scene& at) {
  const auto p = of_parameter("p", "1024");
  const auto loss = at.p.loss();
  const auto old = scale(loss, at.scaler);
  const auto bad = [&](const std::string& kind, const at::Tensor& sum) {
    refuses(play, p + kind, at.p, [&] { sum.backward({}, /*retain_graph=*/true); });
  };
  const auto once = scale(loss, at.scaler), twice = scale(once, at.scaler),
             foreign = scale(loss, at.other);
  for (int again = 0; again < 2; ++again) {
    bad(kUnscaled, loss);
    bad(kUnscaled, once + loss);
    bad(kSeveral, twice);
    bad(kSeveral, scale(foreign, at.scaler));
    bad(kSeveral, scale(once + loss, at.scaler));
    bad(kSeveral, twice + foreign + loss);
    bad(kForeign, foreign);
    bad(kForeign, foreign + once);
    bad(kForeign, foreign + loss);
    accepts(play, "a pass scaled once", at.p, play.fault() ? 1 : 1024,
            [&] { once.backward({}, true); });
    accepts(play, "two ways scaled once each", at.p, 2048,
            [&] { (once + scale(loss * 1, at.scaler)).backward({}, true); });
  }
  int engine = 0;
  at.scaler->hold(&engine);
  at.scaler->stepped(&engine, /*overflow=*/true);
  const auto now = of_parameter("p", "512");
  refuses(play, now + kStale, at.p, [&] { old.backward({}, true); });
  refuses(play, now + kStale, at.p, [&] { (old + scale(loss, at.scaler)).backward({}, true); });
  refuses(play, now + kStale, at.p, [&] { (old + loss).backward({}, true); });
  refuses(play, now + kForeign, at.p, [&] { (old + foreign).backward({}, true); });
  accepts(play, "a pass with the new scale", at.p, 512,
          [&] { scale(loss, at.scaler).backward({}, true); });
}

void check_leaves(Play& play, Scene& at) {
  const auto number = static_cast<int64_t>(at.scaler->scale());
  const auto p = of_parameter("p", std::to_string(number)), q = of_parameter("q", "1024");
  const auto p_loss = scale(at.p.loss(), at.scaler), q_loss = scale(at.q.loss(), at.other);
  refuses(play, p + kForeign, at.p, [&] { scale(at.p.loss() + at.q.loss(), at.other).backward(); });
  at.q.take();
  p_loss.backward({}, true);
  q_loss.backward({}, true);
  at.p.take(), at.q.take();
  torch::autograd::backward({p_loss, q_loss}, {}, /*retain_graph=*/true);
  play.check("two roots, each with its own scale", at.p.take().defined() && at.q.take().defined());
  refuses(play, p + kUnscaled, at.p, [&] {
    torch::autograd::backward({q_loss, at.p.loss()}, {}, true);
  });
  at.q.take();
  // A leaf that a pass leaves out is not looked at; nor is autograd::grad.
  const auto mixed = p_loss + at.p.loss() * 0 + q_loss;
  mixed.backward({}, true, false, std::vector<at::Tensor>{at.q.value});
  play.check("one of two leaves", at.q.take().defined() && !at.p.take().defined());
  refuses(play, q + kUnscaled, at.q,
          [&] { at.q.loss().backward({}, false, false, std::vector<at::Tensor>{at.q.value}); });
  refuses(play, kNone, at.plain, [&] { scale(at.plain.loss(), at.other).backward(); });
  refuses(play, kNone, at.plain, [&] { scale(at.plain.loss(), at.scaler).backward(); });
  accepts(play, "a plain pass", at.plain, 1, [&] { at.plain.loss().backward(); });
}

// Of a thread that has run no pass; and of one that never was seen from its beginning.
void check_beginnings(Play& play, Scene& at) {
  std::thread([&] {
    const auto number = static_cast<int64_t>(at.scaler->scale());
    refuses(play, of_parameter("p", std::to_string(number)) + kUnscaled, at.p,
            [&] { at.p.loss().backward(); });
    accepts(play, "a thread's next pass", at.p, at.scaler->scale(),
            [&] { scale(at.p.loss(), at.scaler).backward(); });
  }).join();
  {
    const at::RecordFunctionGuard disabled(/*is_enabled=*/false);
    refuses(play, kUnwatched, at.p, [&] { scale(at.p.loss(), at.scaler).backward(); });
  }
  accepts(play, "a pass after one that was not seen", at.p, at.scaler->scale(),
          [&] { scale(at.p.loss(), at.scaler).backward(); });
  auto thrown = at.p.value * 2;
  thrown.register_hook([](const at::Tensor&) { throw std::out_of_range("in the graph"); });
  play.fail("in the graph", [&] { scale(thrown.sum(), at.scaler).backward(); });
  accepts(play, "a pass after one that threw", at.p, at.scaler->scale(),
          [&] { scale(at.p.loss(), at.scaler).backward(); });
}

// An inner graph task begins with what arrives at the node that runs it.
void check_inner(Play& play, Scene& at) {
  const Block block = [&](const at::Tensor& x) { return x * at.p.value; };
  const Block scales = [&](const at::Tensor& x) { return scale((x * at.p.value), at.scaler); };
  const auto x = at.p.value.detach().clone().requires_grad_();
  const auto through = [&](const Block& of) { return Reentrant::apply(of, x).sum() * 2; };
  const auto number = static_cast<int64_t>(at.scaler->scale());
  const auto p = of_parameter("p", std::to_string(number));
  accepts(play, "a block that is recomputed", at.p, at.scaler->scale(),
          [&] { scale(through(block), at.scaler).backward(); });
  refuses(play, p + kUnscaled, at.p, [&] { through(block).backward(); });
  refuses(play, p + kForeign, at.p, [&] { scale(through(block), at.other).backward(); });
  refuses(play, p + kSeveral, at.p, [&] { scale(through(scales), at.scaler).backward(); });
  accepts(play, "a block that scales itself", at.p, at.scaler->scale(),
          [&] { through(scales).backward(); });
}

// What scale() gives, of any type and shape.
void check_values(Play& play) {
  const auto scaler = scaler_of(3);
  const auto none = autograd::make_scaler(LossScaleConfig{});
  const auto x = at::arange(1, 5, at::kFloat).view({2, 2}).requires_grad_();
  play.check("without a scale a tensor is itself",
             scale(x, nullptr).is_same(x) && scale(x, none).is_same(x));
  for (const auto& [type, wide] : {std::pair{at::kHalf, at::kFloat},
                                   {at::kBFloat16, at::kFloat},
                                   {at::kFloat, at::kFloat},
                                   {at::kDouble, at::kDouble}}) {
    const auto leaf = (x.detach() * 1000).to(type).requires_grad_();
    const auto scaled = scale(leaf, scaler);
    play.check("a scaled tensor is wide, with a graph",
               scaled.scalar_type() == wide && scaled.requires_grad() && !scaled.is_leaf() &&
                   at::equal(scaled.detach(), leaf.detach().to(wide) * 8));
    const auto along = at::full({2, 2}, 0.1, wide);
    scaled.backward(along);
    play.check("its gradient is scaled wide and rounded once",
               leaf.grad().scalar_type() == type && at::equal(leaf.grad(), (along * 8).to(type)));
  }
  play.check("without a graph it is a product",
             !scale(x.detach(), scaler).requires_grad() &&
                 at::equal(scale(x.detach(), scaler), x.detach() * 8));
  {
    const at::NoGradGuard no_grad;
    play.check("with gradients off, too", !scale(x, scaler).requires_grad());
  }
  const auto first = torch::autograd::grad({scale(x.pow(3).sum(), scaler)}, {x}, {}, true,
                                           /*create_graph=*/true)[0];
  play.check("the scaling is differentiated", at::equal(first.detach(), x.detach().square() * 24));
  const auto second = torch::autograd::grad({first.sum()}, {x})[0];
  play.check("twice", at::equal(second, x.detach() * 48));
}

struct NoGradient : torch::autograd::Function<NoGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->set_materialize_grads(false);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

void check_rest(Play& play, Scene& at) {
  const auto x = at::ones({2}).requires_grad_();
  NoGradient::apply(scale(x, at.scaler)).sum().backward();
  play.check("no gradient stays none", !x.grad().defined());
  accepts(play, "a long way", at.p, at.scaler->scale(), [&] {
    auto way = at.p.loss();
    for (int i = 0; i < 300; ++i) way = way * 0.5 + way * 0.5;  // 2^300 ways
    scale(way, at.scaler).backward();
  });
  std::weak_ptr<loss::LossScaler> kept;
  at::Tensor scaled;
  {
    const auto scaler = scaler_of(2);
    kept = scaler;
    scaled = scale(x, scaler);
  }
  play.check("a graph keeps its scaler", !kept.expired());
  scaled = at::Tensor();
  play.check("and no longer", kept.expired());
}

// No pass is recorded before a scaler is made: the first that is made inside of one is too late.
void check_too_late(Play& play) {
  const std::string name = "x";
  const auto x = at::ones({2}).requires_grad_();
  Scaler late;
  auto y = x * 2;
  y.register_hook([&](const at::Tensor&) { late = scaler_of(4); });
  x.register_hook([&](const at::Tensor&) {
    autograd::check_pass(late.get(), [&](const at::Tensor&) { return &name; });
  });
  play.fail(kUnwatched, [&] { y.sum().backward(); });
}

void gradients_scaled_once(Play& play) {
  if (play.group()) {
    check_too_late(play);
    check_values(play);
    Scene scene;
    check_complaints(play, scene);
    check_leaves(play, scene);
    check_beginnings(play, scene);
    check_inner(play, scene);
    check_rest(play, scene);
  }
  train_along(play);
}

}  // namespace
}  // namespace scale_parts

std::vector<Case> scaled_graphs() {
  return {of_part("gradients_scaled_once",
                  "the loss scale in a graph: what it does, and every complaint, in words",
                  "an unscaled gradient is expected", scale_parts::gradients_scaled_once)};
}

}  // namespace equigrad::conformance::contract
