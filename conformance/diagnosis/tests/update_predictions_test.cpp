// Every mistake of an update is found among the predictions, and a right update has none.
#include "conformance/diagnosis/update_predictions.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "conformance/oracle/plain_update.hpp"

namespace equigrad::conformance::oracle {
namespace {

using testing::Contains;
using testing::IsEmpty;

// The third step of a rule, with numbers of its own in every place.
UpdateEvidence third_step(UpdateRule rule) {
  at::manual_seed(5);
  UpdateEvidence it;
  it.spec.rule = rule;
  it.spec.lr = 0.01;
  it.spec.weight_decay = 0.1;
  it.spec.momentum = rule == UpdateRule::Sgd ? 0.9 : 0;
  it.before = start(it.spec);
  for (int64_t step = 1; step < 3; ++step) {
    it.spec.step = step;
    it.previous_gradient = at::randn({kNumel});
    it.before = fp32_update(it.spec, it.before, it.previous_gradient);
  }
  it.spec.step = 3;
  it.gradient = at::randn({kNumel});
  it.want = it.after = fp32_update(it.spec, it.before, it.gradient);
  it.world = 2, it.accumulation_steps = 3, it.loss_scale = 256, it.clip_factor = 0.25;
  auto other = it.spec;
  other.lr = 0.5;
  other.weight_decay = 0;
  it.other_groups = {other};
  return it;
}

std::vector<std::string> causes(const UpdateEvidence& it) {
  std::vector<std::string> all;
  for (const auto& one : update_predictions(it)) all.push_back(one.cause);
  return all;
}

TEST(UpdatePredictions, ARightUpdateHasNone) {
  for (const auto rule : {UpdateRule::AdamW, UpdateRule::Adam, UpdateRule::Sgd})
    EXPECT_THAT(causes(third_step(rule)), IsEmpty());
}

// What came of other settings, another beginning or another gradient.
std::vector<std::string> causes_of(UpdateRule rule, void (*spoil)(UpdateEvidence&)) {
  auto it = third_step(rule), wrong = it;
  spoil(wrong);
  it.after = fp32_update(wrong.spec, wrong.before, wrong.gradient);
  return causes(it);
}

TEST(UpdatePredictions, SettingsOfTheRule) {
  EXPECT_THAT(causes_of(UpdateRule::AdamW, [](UpdateEvidence& it) { it.spec.weight_decay = 0; }),
              Contains("no weight decay"));
  EXPECT_THAT(
      causes_of(UpdateRule::AdamW, [](UpdateEvidence& it) { it.spec.rule = UpdateRule::Adam; }),
      Contains("weight decay applied to the gradient (L2) instead of decoupled"));
  EXPECT_THAT(
      causes_of(UpdateRule::Adam, [](UpdateEvidence& it) { it.spec.rule = UpdateRule::AdamW; }),
      Contains("weight decay decoupled instead of applied to the gradient (L2)"));
  EXPECT_THAT(causes_of(UpdateRule::AdamW, [](UpdateEvidence& it) { it.spec.step = 1; }),
              Contains("bias correction of step 1"));
  EXPECT_THAT(causes_of(UpdateRule::AdamW, [](UpdateEvidence& it) { it.spec.step = 9; }),
              Contains("bias correction counted in micro-batches"));
  EXPECT_THAT(causes_of(UpdateRule::AdamW, [](UpdateEvidence& it) { it.spec.step = 1 << 30; }),
              Contains("no bias correction"));
  EXPECT_THAT(causes_of(UpdateRule::Sgd, [](UpdateEvidence& it) { it.spec.lr = 0.5; }),
              Contains("the learning rate of another group"));
  EXPECT_THAT(causes_of(UpdateRule::Sgd, [](UpdateEvidence& it) { it.spec.nesterov = true; }),
              Contains("Nesterov's momentum"));
  EXPECT_THAT(causes_of(UpdateRule::AdamW,
                        [](UpdateEvidence& it) { std::swap(it.spec.beta1, it.spec.beta2); }),
              Contains("beta1 and beta2 are swapped"));
}

TEST(UpdatePredictions, StatesAndGradients) {
  EXPECT_THAT(causes_of(UpdateRule::Sgd,
                        [](UpdateEvidence& it) {
                          for (auto& [name, state] : it.before.state) state = at::zeros_like(state);
                        }),
              Contains("momentum not carried: the states began with zeros"));
  EXPECT_THAT(
      causes_of(UpdateRule::AdamW, [](UpdateEvidence& it) { it.gradient = it.previous_gradient; }),
      Contains("the gradient of the step before"));
  EXPECT_THAT(causes_of(UpdateRule::AdamW,
                        [](UpdateEvidence& it) { it.gradient = it.gradient / it.clip_factor; }),
              Contains("the gradient not clipped"));
  EXPECT_THAT(
      causes_of(UpdateRule::Sgd, [](UpdateEvidence& it) { it.gradient = it.gradient * 256; }),
      Contains("the gradient times the loss scale"));
  EXPECT_THAT(
      causes_of(UpdateRule::Sgd, [](UpdateEvidence& it) { it.gradient = it.gradient.neg(); }),
      Contains("the sign of the gradient is flipped"));
}

TEST(UpdatePredictions, PartsOfWhatIsStored) {
  auto it = third_step(UpdateRule::AdamW);
  it.after = it.before;
  EXPECT_THAT(causes(it), Contains("the previous step's values: not updated"));
  it.after.state = it.want.state;
  EXPECT_THAT(causes(it), Contains("the masters were not updated, the states were"));
  it.after = it.want;
  it.after.state["exp_avg_sq"] = it.before.state.at("exp_avg_sq");
  EXPECT_THAT(causes(it), Contains("exp_avg_sq was not updated"));
  it.after = it.want;
  it.after.master = it.want.master.to(at::kBFloat16).to(at::kFloat);
  EXPECT_THAT(causes(it), Contains("the masters are rounded to bf16"));
  it.after = fp32_update(it.spec, it.want, it.gradient);
  EXPECT_THAT(causes(it), Contains("updated twice as the same step"));
}

// Each of them, and all that came of it off by 1/4096 of what the update moved.
TEST(UpdatePredictions, WhatIsNearlyAMistakeIsNone) {
  const std::vector<void (*)(UpdateEvidence&)> mistakes = {
      [](UpdateEvidence& it) { it.spec.weight_decay = 0; },
      [](UpdateEvidence& it) { it.spec.step = 1; },
      [](UpdateEvidence& it) { it.spec.lr = 0.5; },
      [](UpdateEvidence& it) { std::swap(it.spec.beta1, it.spec.beta2); },
      [](UpdateEvidence& it) { it.gradient = it.previous_gradient; },
      [](UpdateEvidence& it) { it.gradient = it.gradient * 256; },
      [](UpdateEvidence& it) { it.spec.lr = 0; }};
  for (const auto spoil : mistakes) {
    auto it = third_step(UpdateRule::AdamW), wrong = it;
    spoil(wrong);
    it.after = fp32_update(wrong.spec, wrong.before, wrong.gradient);
    EXPECT_FALSE(causes(it).empty());
    const auto near = [](const at::Tensor& value) { return value * (1 + 0x1p-12); };
    it.after.master = near(it.after.master);
    for (auto& [name, state] : it.after.state) state = near(state);
    EXPECT_THAT(causes(it), IsEmpty());
  }
  auto stale = third_step(UpdateRule::Sgd);
  stale.after.master = stale.before.master * (1 + 0x1p-20);
  stale.after.state = stale.before.state;
  EXPECT_THAT(causes(stale), IsEmpty()) << "nearly not updated";
}

// A prediction must agree with every tensor: a master that was not updated explains nothing when a
// state is wrong too.
TEST(UpdatePredictions, WhatFitsTheMasterAloneIsNone) {
  auto it = third_step(UpdateRule::AdamW);
  it.after = it.before;
  it.after.state["exp_avg"] = at::randn({kNumel});
  EXPECT_THAT(causes(it), IsEmpty());
}

}  // namespace
}  // namespace equigrad::conformance::oracle
