// The scale as a node of the graph: its bits; and the check of a pass on every way in which a
// gradient can be scaled, or not.
#include "engine/autograd/scaled_graph.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "engine/autograd/tests/watched_engine.hpp"

namespace equigrad::autograd {
namespace {

TEST_F(ScaledGraph, APassScaledOnceIsAcceptedAndOnlyItsExponentsMove) {
  accepts(scale(loss_of(p0) + loss_of(p1), scaler));
  EXPECT_THAT(engine.gradients[0], HasTheBitsOf((p0 * 2).detach() * 1024));
  EXPECT_THAT(engine.gradients[1], HasTheBitsOf((p1 * 2).detach() * 1024));
  accepts(scale(loss_of(p0), scaler) + scale(loss_of(p1), scaler));
  accepts(scale(loss_of(p0), scaler) + scale(loss_of(p0 * p1), scaler));
  accepts(scale(loss_of(p0), scaler) + loss_of(plain));  // is no parameter of this engine
}

TEST_F(ScaledGraph, APassThatIsNotScaledIsRefused) {
  refuses(loss_of(p0), kUnscaled, "p0");
  refuses(loss_of(p1), kUnscaled, "p1");
  refuses(loss_of(p0), "expected gradients of parameter \"p0\" with the loss scale (1024) exactly");
  refuses(loss_of(p0), "engine.scale(output).backward(gradient)");
  refuses(p0.select(0, 1), kUnscaled, "p0");
  const auto scalar = sample(1, 5)[0].detach().requires_grad_();  // the root is the leaf itself
  const Watched own(scaler, {scalar});
  EXPECT_THAT(error_of([&] { scalar.backward(); }), HasSubstr(kUnscaled));
  EXPECT_TRUE(own.got_nothing());
}

TEST_F(ScaledGraph, EveryPathIsLookedAtBeforeTheFirstGradient) {
  refuses(scale(loss_of(p0), scaler) + loss_of(p0), kUnscaled, "p0");
  refuses(loss_of(p0) + scale(loss_of(p0), scaler), kUnscaled, "p0");
  // The gradient of the other parameter comes first, or last.
  refuses(scale(loss_of(p0), scaler) + loss_of(p1), kUnscaled, "p1");
  refuses(loss_of(p0) + scale(loss_of(p1), scaler), kUnscaled, "p0");
  const auto shared = p0 * 3;
  refuses(scale(loss_of(shared), scaler) + shared.sum(), kUnscaled, "p0");
}

TEST_F(ScaledGraph, APassScaledTwiceIsRefused) {
  refuses(scale(scale(loss_of(p0), scaler), scaler), kTwice, "p0");
  refuses(scale(scale(loss_of(p0), scaler) + loss_of(p1), scaler), kTwice, "p0");
  refuses(scale(scale(loss_of(p0), other), scaler), kTwice, "p0");
  refuses(scale(scale(loss_of(p0), scaler), other), kTwice, "p0");
  refuses(scale(scale(scale(loss_of(p0), scaler), scaler), scaler), kTwice, "p0");
  const auto scaled = scale(p0, scaler);
  refuses(scale(loss_of(scaled), scaler) + scaled.sum(), kTwice, "p0");
}

TEST_F(ScaledGraph, TheScaleOfAnotherEngineIsRefused) {
  refuses(scale(loss_of(p0), other), kForeign + "Engines under one loss", "p0");
  refuses(scale(loss_of(p0), scaler) + scale(loss_of(p1), other), kForeign, "p1");
  const auto loss = scale(loss_of(p1), scaler_of(3));
  refuses(loss, kForeign, "p1");  // whose engine is gone
  // Each engine's own loss has its own scale, in one pass.
  const auto q = leaf(8);
  const Watched second(other, {q});
  accepts(scale(loss_of(p0), scaler) + scale(loss_of(q), other));
  EXPECT_THAT(second.gradients[0], HasTheBitsOf((q * 2).detach() * 1024));
}

TEST_F(ScaledGraph, TheScaleOfAnEarlierStepIsRefused) {
  const auto early = scale(loss_of(p0), scaler);
  accepts(early);
  scaler->stepped(this, /*overflow=*/true);
  refuses(early, kStale, "p0");
  refuses(early, "the loss scale (512) exactly once");
  accepts(scale(loss_of(p0), scaler));
  EXPECT_THAT(engine.gradients[0], HasTheBitsOf((p0 * 2).detach() * 512));
  refuses(early + scale(loss_of(p0), scaler), kStale, "p0");
  scaler->stepped(this, /*overflow=*/false);  // 1024 again
  accepts(early);
}

// autograd::grad brings no gradient to a parameter, so no check looks at it: the tensor's own scale
// holds.
TEST_F(ScaledGraph, ATensorKeepsTheScaleThatItWasGiven) {
  const auto early = scale(loss_of(p0), scaler);
  scaler->stepped(this, /*overflow=*/true);
  EXPECT_THAT(torch::autograd::grad({early}, {p0})[0], HasTheBitsOf((p0 * 2).detach() * 1024));
}

TEST_F(ScaledGraph, AnEngineWithoutALossScaleRefusesAnyScale) {
  const auto q = leaf(9);
  const auto none = make_scaler(LossScaleConfig{});
  for (const Scaler& without : {Scaler(), none}) {
    const Watched fp32(without, {q});
    EXPECT_EQ(error_of([&] { (loss_of(q) + scale(loss_of(p0), scaler)).backward(); }), "");
    EXPECT_FALSE(fp32.got_nothing());
    const auto scaled = scale(loss_of(q * 2), scaler);
    EXPECT_THAT(error_of([&] { scaled.backward({}, true); }),
                HasSubstr("parameter \"p0\" with no loss scale, since the precision of its engine "
                          "needs none, got the loss scale of another engine. "));
    EXPECT_THAT(error_of([&] { (scaled + loss_of(q)).backward({}, true); }), HasSubstr("got the"));
    EXPECT_THAT(error_of([&] { scale(scaled, other).backward(); }), HasSubstr("got the"));
  }
}

TEST_F(ScaledGraph, WhereNoneIsNeededScaleIsTheTensorItself) {
  const auto loss = loss_of(p0);
  EXPECT_TRUE(scale(loss, make_scaler(LossScaleConfig{})).is_same(loss));
  EXPECT_TRUE(scale(loss, nullptr).is_same(loss));
  EXPECT_FALSE(scale(loss, scaler).is_same(loss));
}

TEST_F(ScaledGraph, WithoutAGraphScaleMultipliesOnly) {
  EXPECT_THAT(scale(sample(7, 1), scaler), HasTheBitsOf(sample(7, 1) * 1024));
  EXPECT_FALSE(scale(sample(7, 1), scaler).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(scale(p0, scaler).requires_grad());
}

TEST_F(ScaledGraph, AScaledOutputIsFp32AndDoesNotOverflow) {
  const auto large = scaler_of(16);
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto out = at::full({2, 3}, 60000.0, type).requires_grad_();
    const auto scaled = scale(out, large);
    EXPECT_EQ(scaled.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
    EXPECT_THAT(scaled.detach(), HasTheBitsOf(out.detach().to(scaled.scalar_type()) * 65536));
    EXPECT_TRUE(at::isfinite(scaled).all().item<bool>());
    scaled.backward(at::full({2, 3}, 0.75, scaled.scalar_type()));
    EXPECT_THAT(out.grad(), HasTheBitsOf(at::full({2, 3}, 49152, type))) << type;
  }
}

// sum(out * g) in fp32 brings g to the output too: the same bits as out.backward(g), though g has
// more bits and smaller exponents than fp16.
TEST_F(ScaledGraph, AGradientInFp32GivesTheBitsOfTheScalarRoute) {
  const auto large = scaler_of(16);
  const auto weight = sample(64, 4, at::kHalf).reshape({8, 8}).requires_grad_();
  const Watched fp16(large, {weight});
  const auto input = sample(40, 5, at::kHalf).reshape({5, 8});
  const auto gradient = (sample(40, 6) * 0x1p-18).reshape({5, 8});
  EXPECT_TRUE((gradient.to(at::kHalf) == 0).any().item<bool>()) << "fp16 would lose some";
  const auto out = [&] { return at::tanh(at::matmul(input, weight)); };
  scale(out(), large).backward(gradient);
  const auto direct = fp16.gradients[0];
  scale((out().to(at::kFloat) * gradient).sum(), large).backward();
  EXPECT_THAT(direct, HasTheBitsOf(fp16.gradients[0]));
  // And by hand: the product is rounded once.
  const auto by_hand =
      torch::autograd::grad({out()}, {weight}, {(gradient * 65536).to(at::kHalf)})[0];
  EXPECT_THAT(direct, HasTheBitsOf(by_hand));
  EXPECT_FALSE(at::equal(
      direct, torch::autograd::grad({out()}, {weight}, {gradient.to(at::kHalf) * 65536})[0]))
      << "rounded before it is scaled it would be another";
}

struct GivesNoGradient : torch::autograd::Function<GivesNoGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& /*given*/) {
    return {at::Tensor()};
  }
};

TEST_F(ScaledGraph, NoGradientStaysNone) {
  const auto x = leaf(4);
  GivesNoGradient::apply(scale(loss_of(x), scaler)).backward();
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(ScaledGraph, GradReachesNoParameterAndIsNotRefused) {
  const auto unscaled = torch::autograd::grad({loss_of(p0)}, {p0})[0];
  EXPECT_THAT(unscaled, HasTheBitsOf((p0 * 2).detach()));
  const auto twice = scale(scale(loss_of(p0), scaler), other);
  EXPECT_THAT(torch::autograd::grad({twice}, {p0})[0],
              HasTheBitsOf((p0 * 2).detach() * 1024 * 1024));
  EXPECT_TRUE(engine.got_nothing());
}

TEST_F(ScaledGraph, AParameterThatTheInputsLeaveOutIsNotLookedAt) {
  const auto loss = scale(loss_of(p0), scaler) + loss_of(p1);
  EXPECT_EQ(error_of([&] { loss.backward({}, true, false, {{p0}}); }), "");
  EXPECT_FALSE(engine.gradients[1].defined());
  engine.gradients.assign(2, {});
  EXPECT_THAT(error_of([&] { loss.backward({}, true, false, {{p1}}); }), HasSubstr(kUnscaled));
  EXPECT_TRUE(engine.got_nothing());
}

TEST_F(ScaledGraph, SeveralRootsAreAllLookedAt) {
  const auto backward = [&](const std::vector<at::Tensor>& roots) {
    engine.gradients.assign(2, {});
    return error_of([&] { torch::autograd::backward(roots, {}, /*retain_graph=*/true); });
  };
  const auto a = scale(loss_of(p0), scaler), b = scale(loss_of(p1), scaler);
  EXPECT_EQ(backward({a, b}), "");
  EXPECT_THAT(engine.gradients[1], HasTheBitsOf((p1 * 2).detach() * 1024));
  EXPECT_THAT(backward({a, loss_of(p1)}), HasSubstr(kUnscaled));
  EXPECT_THAT(backward({loss_of(p1), a}), HasSubstr(kUnscaled));
  const auto inner = loss_of(p0);
  EXPECT_THAT(backward({scale(inner, scaler), inner}), HasSubstr(kUnscaled)) << "a root inside";
  EXPECT_TRUE(engine.got_nothing());
}

TEST_F(ScaledGraph, ARetainedGraphMayRunAgainAndIsCheckedAgain) {
  const auto loss = loss_of(p0), scaled = scale(loss, scaler);
  for (int pass = 0; pass < 3; ++pass) {
    accepts(scaled);
    EXPECT_THAT(engine.gradients[0], HasTheBitsOf((p0 * 2).detach() * 1024));
    refuses(loss, kUnscaled, "p0");
  }
}

TEST_F(ScaledGraph, TheScalingIsDifferentiatedToo) {
  // The penalty |g|^2 of the unscaled gradient g = 3 x^2, as torch's page on mixed precision has
  // it.
  const auto loss = p0.pow(3).sum();
  const auto scaled = torch::autograd::grad({scale(loss, scaler)}, {p0}, {}, true, true)[0];
  const auto penalty = loss_of(scaled / 1024);
  refuses(penalty, kUnscaled, "p0");
  accepts(scale(
      loss + loss_of(torch::autograd::grad({scale(loss, scaler)}, {p0}, {}, true, true)[0] / 1024),
      scaler));
  const auto plain_penalty = loss_of(torch::autograd::grad({loss}, {p0}, {}, true, true)[0]);
  const auto want = torch::autograd::grad({loss + plain_penalty}, {p0})[0];
  EXPECT_THAT(engine.gradients[0], HasTheBitsOf(want * 1024));
}

// How often a loss' node is held when the last node of its pass has run.
long holders_at_the_end_of_a_pass() {
  const auto parameter = sample(1, 7).requires_grad_();
  const auto loss = (parameter * parameter).sum();
  long holders = 0;
  parameter.register_hook([&](const at::Tensor&) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [&] { holders = loss.grad_fn().use_count(); });
  });
  loss.backward();
  return holders;
}

// A thread of autograd's may hold a graph task when its caller has gone on.
TEST(ScaledGraphAlone, NoGraphIsHeldByAPassThatHasEnded) {
  const auto without = holders_at_the_end_of_a_pass();
  EXPECT_GT(without, 0);
  const auto watching = scaler_of(10);
  EXPECT_EQ(holders_at_the_end_of_a_pass(), without);
}

}  // namespace
}  // namespace equigrad::autograd
