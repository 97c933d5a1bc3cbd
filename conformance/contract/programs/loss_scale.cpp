// 4. The loss scale of fp16: a pass that is not scaled once, by its engine's scale, is refused
// before it counts; a step divides by the scale that its passes had.
#include <ATen/ATen.h>

#include <limits>
#include <utility>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void see_scale(Play& play, std::size_t which = 0) {
  play.see("loss scale", at::scalar_tensor(play.loss_scale(which), at::kDouble));
}

void see_window(Play& play) {
  for (const char* name : {"encode.weight", "head.bias"})
    play.see(std::string("gradient so far of ") + name, play.full("gradient", name));
}

// A pass, a wrong one, and the wrong one's graph again in a right way: two passes count.
template <class Wrong>
void refused(Play& play, const std::string& fragment, Wrong wrong) {
  each_micro_batch(play, [&](int64_t number) {
    play.backward(play.model().loss(play.batch(2 * number)));
    const auto batch = play.batch(2 * number + 1);
    const auto output = play.model().output(batch);
    const auto loss = play.model().criterion(output, batch);
    play.refuse(fragment, [&] { wrong(output, loss); });
    see_window(play);
    if (play.fault()) play.backward(loss, {.retain_graph = true});
    if (number % 2 == 0) return (void)play.backward(loss);
    play.run([&] { play.scale(loss).backward(); });
  });
}

const char* const kTwoWays = "engine.backward(loss) or engine.scale(loss).backward()";

void unscaled_loss(Play& play) {
  refused(play, kTwoWays, [](const at::Tensor&, const at::Tensor& loss) {
    loss.backward({}, /*retain_graph=*/true);
  });
}

void unscaled_gradient(Play& play) {
  refused(play, "engine.scale(output).backward(gradient)",
          [](const at::Tensor& output, const at::Tensor&) {
            output.backward(uneven_gradient(output), /*retain_graph=*/true);
          });
}

void partly_unscaled(Play& play) {
  refused(play, kTwoWays, [&play](const at::Tensor& output, const at::Tensor& loss) {
    (play.scale(loss) + uneven(output)).backward({}, /*retain_graph=*/true);
  });
}

void scaled_twice(Play& play) {
  refused(play, "more than once", [&play](const at::Tensor&, const at::Tensor& loss) {
    play.backward(play.scale(loss), {.retain_graph = true});
  });
}

// What was scaled before the third step, which doubles the scale, is differentiated after it.
void scaled_before_a_step(Play& play) {
  auto& tower = play.as<Tower>();
  const auto window = play.context().window;
  if (window == 2) play.kept() = play.scale(tower.first->weight.to(at::kFloat).sum());
  if (window == 3)
    play.refuse("with the scale of an earlier step", [&] { play.kept().backward(); });
  see_scale(play);
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = uneven(tower.forward(play.batch(number).input));
    play.backward(play.fault() ? loss * 0.5 : loss);
  });
}

// A gradient in fp32, of which fp16 would keep less; and a loss whose leaf is fp32.
void scaled_output(Play& play) {
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto output = play.model().output(batch);
    if (number % 2 == 0) {
      const auto gradient = uneven_gradient(output.to(at::kFloat)) / 3;
      return play.run(
          [&] { play.scale(output).backward(play.fault() ? at::ones_like(gradient) : gradient); });
    }
    const auto leaf = output.detach().to(at::kFloat).requires_grad_();
    play.model().criterion(leaf, batch).backward();
    const auto gradient = play.fault() ? leaf.grad() * 2 : leaf.grad();
    play.run([&] { play.scale(output).backward(gradient); });
  });
}

// The third and the fifth step double the scale: they divide by what their passes had.
void growth(Play& play) {
  const auto window = play.context().window;
  if (auto* engine = play.engine();
      engine != nullptr && play.context().precision == Precision::Fp16) {
    const double want = window < 3 ? 256 : window < 5 ? 512 : 1024;
    play.check("the scale is doubled by the third and the fifth step",
               engine->loss_scale() == want);
  }
  see_scale(play);
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = play.model().loss(play.batch(number));
    // The fault is a step which divides by the scale that it has just doubled.
    play.backward(play.fault() && window == 2 ? loss * 0.5 : loss);
  });
}

// The second window overflows on the last rank, in one pass.
void overflow(Play& play) {
  auto& heads = play.as<Heads>();
  const auto& context = play.context();
  see_scale(play);
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    auto loss = heads.loss_through(0, batch) + heads.loss_through(1, batch);
    const bool now = context.window == 1 && number == 0 && context.rank + 1 == context.world;
    if (now && !play.fault()) loss = loss + (heads.tops[1]->bias.to(at::kFloat) * kInfinity).sum();
    play.backward(loss);
  });
  see_scale(play);
  if (auto* engine = play.engine(); engine != nullptr) {
    play.check("skipped_steps counts it",
               engine->counters().skipped_steps == (context.window >= 1 ? 1 : 0));
    play.check("was_step_applied tells it", engine->was_step_applied() == (context.window != 1));
  }
}

// The window that overflowed is given up: the passes after it count, and the scale stays.
void overflow_forgotten(Play& play) {
  auto& heads = play.as<Heads>();
  const auto& context = play.context();
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto loss = heads.loss_through(0, batch) + heads.loss_through(1, batch);
    if (number == 0) {
      const bool now = context.window == 1 && context.rank + 1 == context.world;
      const auto bad = (heads.tops[1]->bias.to(at::kFloat) * (now ? kInfinity : 1.0)).sum();
      play.backward(loss + bad, {.retain_graph = true});
      if (!play.fault()) play.zero_grad();
    }
    play.backward(loss);
  });
  see_scale(play);
}

// A step over an emptied window is a good one for the scale: it grows as it would have.
void emptied_window(Play& play) {
  see_scale(play);
  each_micro_batch(play, [&](int64_t number) {
    const auto loss = play.model().loss(play.batch(number));
    play.backward(play.fault() ? loss * 0.5 : loss);
    const bool cancel = play.context().window == 2 && number + 1 == play.context().accumulation;
    if (cancel) play.zero_grad();
  });
}

// One scale for two engines under one loss. In the third window the second engine overflows: it
// skips, the first does not, and the scale is halved once for both.
void shared_scale(Play& play) {
  const auto& context = play.context();
  if (context.window == 0) play.share_loss_scale(1, 0);
  see_scale(play, 0);
  see_scale(play, 1);
  auto& tower = play.as<Tower>(0);
  auto& heads = play.as<Heads>(1);
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto first = uneven(tower.forward(batch.input));
    auto second = heads.loss_through(1, batch);
    const bool now = context.window == 2 && number == 0 && context.rank + 1 == context.world;
    if (now) second = second + (heads.tops[1]->bias.to(at::kFloat) * kInfinity).sum();
    const auto loss = (play.fault() ? first * 0.5 : first) + second;
    if (number % 2 == 0) return (void)play.backward(loss, {.engine = 1});
    play.run([&] { play.scale(loss, 0).backward(); });
  });
}

// Without it such a loss is refused, and leaves both windows as they were.
void not_shared(Play& play) {
  auto& tower = play.as<Tower>(0);
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto first = uneven(tower.forward(batch.input));
    const auto second = play.model(1).loss(batch);
    play.refuse("share_loss_scale", [&] { play.scale(first + second, 0).backward({}, true); });
    play.refuse("share_loss_scale",
                [&] { play.backward(first + second, {.retain_graph = true, .engine = 1}); });
    play.backward(play.fault() ? first * 0.5 : first, {.engine = 0});
    play.backward(second, {.engine = 1});
  });
}

// The second engine is in fp32: no loss scale may reach it.
void scale_of_another(Play& play) {
  auto& tower = play.as<Tower>(0);
  each_micro_batch(play, [&](int64_t number) {
    const auto batch = play.batch(number);
    const auto between = tower.forward(batch.input);
    const reference::Batch wide = {between.to(at::kFloat), batch.target};
    const auto through_both = play.model(1).loss(wide);
    play.refuse("its engine needs none", [&] { play.scale(through_both, 0).backward({}, true); });
    const auto second = play.model(1).loss({wide.input.detach(), wide.target});
    play.backward(uneven(play.fault() ? between * 0.5 : between), {.engine = 0});
    if (number % 2 == 0) return (void)play.backward(second, {.engine = 1});
    play.run([&] { second.backward(); });
  });
}

const std::vector<Precision> kFp16 = {Precision::Fp16, Precision::Fp16Static};

std::vector<Case> refused_passes() {
  const std::string counts = "the pass that was refused counts, too";
  return {
      {.section = "4",
       .name = "unscaled_loss_is_refused",
       .sentence =
           "loss.backward() without a loss scale is an error that names the two right ways; "
           "the window is as before",
       .fault = counts,
       .program = unscaled_loss,
       .answers = {"trap 7", "trap 9"}},
      {.section = "4",
       .name = "unscaled_gradient_is_refused",
       .sentence = "so is output.backward(gradient), with the way that is right",
       .fault = counts,
       .program = unscaled_gradient,
       .answers = {"trap 7"}},
      {.section = "4",
       .name = "partly_unscaled_loss_is_refused",
       .sentence = "so is a loss of which one term is scaled",
       .fault = counts,
       .program = partly_unscaled,
       .answers = {"trap 7"}},
      {.section = "4",
       .name = "scaled_twice_is_refused",
       .sentence = "engine.backward(engine.scale(loss)) is an error",
       .fault = counts,
       .program = scaled_twice},
      {.section = "4",
       .name = "engines_under_one_loss_must_share_a_scale",
       .sentence = "two engines under one loss without a shared scale are an error that says so",
       .fault = "one engine's loss is halved",
       .program = not_shared,
       .models = {"tower", "irregular"},
       .answers = {"trap 18"}},
      {.section = "4",
       .name = "scale_reaches_an_engine_that_has_none",
       .sentence = "an engine in fp32 refuses a pass that another's loss scale is in",
       .fault = "one engine's output is halved",
       .program = scale_of_another,
       .models = {"tower", "irregular"},
       .features = {Feature::Fp32BehindFirst},
       .answers = {"trap 18"}}};
}

std::vector<Case> scaled_steps() {
  return {
      {.section = "4",
       .name = "scaled_output",
       .sentence = "engine.scale(output).backward(gradient) takes it in fp32",
       .fault = "the gradient is another",
       .program = scaled_output,
       .answers = {"trap 9"}},
      {.section = "4",
       .name = "a_growth_step_divides_by_the_scale_that_was_used",
       .sentence = "the step that doubles the scale divides by the one its passes had",
       .fault = "the third step divides by the doubled scale",
       .program = growth,
       .windows = 6,
       .optimizer = "SGD",
       .answers = {"trap 8"}},
      {.section = "4",
       .name = "overflow_on_one_rank",
       .sentence =
           "every rank skips, nothing is written, skipped_steps counts it and the scale halves",
       .fault = "the gradient is finite",
       .program = overflow,
       .models = {"heads"},
       .windows = 3,
       .optimizer = "SGD",
       .answers = {"trap 10"}},
      {.section = "4",
       .name = "overflow_ends_a_run_of_good_steps",
       .sentence = "torch's scaler halves at once, and counts the good steps of its interval anew",
       .fault = "the gradient is finite",
       .program = overflow,
       .models = {"heads"},
       .windows = 4,
       .optimizer = "SGD",
       .features = {Feature::GradScaler}},
      {.section = "4",
       .name = "overflow_that_zero_grad_forgets",
       .sentence = "zero_grad() forgets an overflow too",
       .fault = "zero_grad() does nothing",
       .program = overflow_forgotten,
       .models = {"heads"},
       .windows = 3,
       .answers = {"trap 15"}},
      {.section = "4",
       .name = "step_over_an_emptied_window",
       .sentence = "it counts as a good step: the scale grows",
       .fault = "the loss is halved",
       .program = emptied_window,
       .windows = 5},
      {.section = "4",
       .name = "engines_share_a_scale",
       .sentence =
           "two engines under one loss share a scale; it halves once if one of them overflows",
       .fault = "one engine's term is halved",
       .program = shared_scale,
       .models = {"tower", "heads"},
       .windows = 6}};
}

}  // namespace

std::vector<Case> loss_scale() {
  auto all = refused_passes();
  for (auto& one : scaled_steps()) all.push_back(std::move(one));
  for (auto& one : all) one.places.precisions = kFp16;
  all.push_back(
      Case{.section = "4",
           .name = "scaled_before_a_step_is_refused",
           .sentence = "a loss that was scaled before a step changed the scale is an error",
           .fault = "the loss is halved",
           .program = scaled_before_a_step,
           .models = {"tower"},
           .places = {.precisions = {Precision::Fp16}},
           .windows = 5});
  return all;
}

}  // namespace equigrad::conformance::contract
