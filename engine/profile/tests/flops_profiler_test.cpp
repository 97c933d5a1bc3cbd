// What the profiler counts, against hand formulas; where; and that it counts the model only.
#include "engine/profile/flops_profiler.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <set>
#include <thread>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "conformance/testing/small_run.hpp"
#include "engine/autograd/operator_observer.hpp"
#include "engine/engine.hpp"
#include "engine/profile/session.hpp"
#include "reference/models/model.hpp"

namespace equigrad::profile {
namespace {

namespace nn = torch::nn;

template <class Pass>
FlopsReport profile_of(const nn::Module& model, Pass pass) {
  FlopsProfiler profiler(model);
  profiler.start();
  pass();
  profiler.stop();
  return profiler.report();
}

const ModuleProfile& module_at(const FlopsReport& report, const std::string& name) {
  for (const auto& module : report.modules) {
    if (module.name == name) return module;
  }
  throw Error("test", "no module \"" + name + "\"");
}

std::string counts(const FlopsReport& report) {
  std::string text;
  for (const auto& module : report.modules) {
    text += module.name + ":";
    for (const auto& tally :
         {module.own_forward, module.own_backward, module.forward, module.backward}) {
      text += " " + std::to_string(tally.flops) + "/" + std::to_string(tally.macs);
    }
    text += "\n";
  }
  for (const auto& [name, count] : report.unknown) text += name + " " + std::to_string(count);
  return text;
}

constexpr int64_t kBatch = 2, kContext = 16, kDim = 24, kHeads = 2;
constexpr int64_t kRows = kBatch * kContext, kScores = kBatch * kHeads * kContext * kContext;

reference::Batch gpt_batch(uint64_t seed) {
  const auto bytes = conformance::sample(kRows, seed).abs().mul(4096).to(at::kLong).remainder(256);
  return {bytes.view({kBatch, kContext}), bytes.flip(0).view({kBatch, kContext})};
}

TEST(FlopsProfiler, ALinearLayerIsItsProductAndItsBias) {
  nn::Linear linear(5, 3);
  for (const auto& shape : {std::vector<int64_t>{4, 5}, std::vector<int64_t>{2, 2, 5}}) {
    const auto report = profile_of(*linear, [&] { linear(at::ones(shape)).sum().backward(); });
    const auto& model = report.modules.front();
    EXPECT_EQ(model.params_numel, 18);
    EXPECT_EQ(model.forward.macs, 60);
    EXPECT_EQ(model.forward.flops, 120 + 12 + 12);  // product, bias, sum
    EXPECT_EQ(model.backward.macs, 60);
    EXPECT_EQ(model.backward.flops, 120 + 12);  // the weight's gradient, the bias's
    EXPECT_TRUE(report.unknown.empty());
    EXPECT_GT(report.forward_ns, 0);
    EXPECT_GT(report.backward_ns, 0);
    EXPECT_LE(model.forward.time_ns, report.forward_ns);
    EXPECT_LE(model.backward.time_ns, report.backward_ns);
  }
}

// [2, 6, 5, 5] outputs of 36 products each.
TEST(FlopsProfiler, AConvolutionIsCountedOnceThoughItRunsOthers) {
  nn::Conv2d convolution(nn::Conv2dOptions(4, 6, 3).stride(2).padding(1));
  const auto report = profile_of(*convolution, [&] {
    convolution(at::ones({2, 4, 9, 9})).backward(at::ones({2, 6, 5, 5}));
  });
  EXPECT_EQ(report.modules.front().forward.macs, 10800);
  EXPECT_EQ(report.modules.front().forward.flops, 21600 + 300);
  EXPECT_EQ(report.modules.front().backward.macs, 10800);
  EXPECT_EQ(report.modules.front().backward.flops, 21600 + 300);
}

// 2 heads, 4 queries, 4 keys of 8: 32 scores.
TEST(FlopsProfiler, FusedAttentionIsCountedOnceThoughItRunsOthers) {
  const auto query = at::ones({1, 2, 4, 8}).requires_grad_();
  const auto report = profile_of(nn::Module("attention"), [&] {
    at::scaled_dot_product_attention(query, query, query).backward(at::ones({1, 2, 4, 8}));
  });
  EXPECT_EQ(report.modules.front().forward.macs, 32 * 16);
  EXPECT_EQ(report.modules.front().forward.flops, 2 * 32 * 16 + 32);
  EXPECT_EQ(report.modules.front().backward.macs, 32 * 40);
  // The three gradients are one tensor's: 2 additions of 64.
  EXPECT_EQ(report.modules.front().backward.flops, 2 * 32 * 40 + 64 + 128);
}

// Every layer of the network, own counts: what it reads its parameters for.
TEST(FlopsProfiler, AGptAgreesWithTheFormulaOfEveryLayer) {
  const auto model = reference::make_model("gpt", 1);
  const auto batch = gpt_batch(1);
  const auto report = profile_of(*model, [&] { model->loss(batch).backward(); });
  const int64_t square = kRows * kDim * kDim, values = kRows * kDim;
  const auto expect = [&](const std::string& name, int64_t flops, int64_t macs) {
    EXPECT_EQ(module_at(report, name).own_forward.flops, flops) << name;
    EXPECT_EQ(module_at(report, name).own_forward.macs, macs) << name;
    EXPECT_EQ(module_at(report, name).own_backward.macs, 2 * macs) << name;
  };
  expect("token", 0, 0);
  const int64_t mixing = 2 * kScores * kDim / kHeads;  // scores, and the mean of values
  for (const std::string block : {"block0", "block1"}) {
    expect(block + ".attention_norm", 5 * values, 0);
    expect(block + ".qkv", 6 * square + 3 * values, 3 * square);
    expect(block + ".projection", 2 * square + values, square);
    expect(block + ".mlp_norm", 5 * values, 0);
    expect(block + ".up", 8 * square + 4 * values, 4 * square);
    expect(block + ".down", 8 * square + values, 4 * square);
    // Scores: scaled, masked, softmax. The residual after the attention; gelu.
    expect(block, 2 * mixing + 3 * kScores + values + 4 * values, mixing);
  }
  expect("norm", 5 * values, 0);
  expect("head", 2 * kRows * kDim * 256, kRows * kDim * 256);
  // The position's sum, the residuals between blocks, log-softmax, loss.
  expect("", values + 2 * values + kRows * 256 + kRows, 0);
  EXPECT_EQ(report.modules.front().backward.macs, 2 * report.modules.front().forward.macs);
  EXPECT_TRUE(report.unknown.empty()) << report.unknown.front().name;
}

TEST(FlopsProfiler, TheModulesOwnCountsAddUpToTheTotal) {
  for (const std::string name : {"gpt", "conv"}) {
    const auto model = reference::make_model(name, 1);
    const auto batch = name == "gpt"
                           ? gpt_batch(1)
                           : reference::Batch{at::ones({2, 1, 28, 28}), at::ones({2}, at::kLong)};
    const auto report = profile_of(*model, [&] { model->loss(batch).backward(); });
    Tally forward, backward;
    int64_t numel = 0;
    for (const auto& module : report.modules) {
      forward += module.own_forward;
      backward += module.own_backward;
    }
    std::set<const void*> seen;  // parameters() names a tied tensor once for every owner
    for (const auto& parameter : model->parameters()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) numel += parameter.numel();
    }
    const auto& total = report.modules.front();
    EXPECT_EQ(total.forward.flops, forward.flops);
    EXPECT_EQ(total.forward.time_ns, forward.time_ns);
    EXPECT_EQ(total.backward.flops, backward.flops);
    EXPECT_EQ(total.params_numel, numel);
    EXPECT_GT(total.backward.macs, 0);
  }
}

TEST(FlopsProfiler, AnOperatorWithoutAFormulaIsListedAndNotCounted) {
  nn::Linear linear(5, 3);
  const auto plain = profile_of(*linear, [&] { linear(at::ones({4, 5})); });
  const auto report = profile_of(*linear, [&] {
    const auto output = at::erfinv(linear(at::ones({4, 5})));
    at::erfinv(output);
  });
  ASSERT_EQ(report.unknown.size(), 1u);
  EXPECT_EQ(report.unknown[0].name, "aten::erfinv");
  EXPECT_EQ(report.unknown[0].count, 2);
  EXPECT_EQ(report.modules.front().forward.flops, plain.modules.front().forward.flops);
}

TEST(FlopsProfiler, TheModelOnlyCounts) {
  nn::Linear linear(5, 3);
  const auto report = profile_of(*linear, [&] {
    const at::NoGradGuard no_grad;
    linear(at::ones({4, 5}));
    {
      const autograd::Silence silence;
      linear(at::ones({4, 5}));
    }
    std::thread([&] { at::ones({4, 5}).mul(2); }).join();
  });
  linear(at::ones({4, 5}));
  EXPECT_EQ(report.modules.front().forward.flops, 132);
  EXPECT_EQ(report.modules.front().backward.flops, 0);
}

// Names of a caller's own need not name every module around one: it is in the nearest.
TEST(FlopsProfiler, AModuleIsInTheNearestOneThatItsNameTells) {
  nn::Linear linear(5, 3);
  const auto* weight = linear->weight.unsafeGetTensorImpl();
  FlopsProfiler profiler({{"", "Model", {}}, {"a", "Outer", {}}, {"a.b.c", "Linear", {weight}}},
                         {linear->weight});
  profiler.start();
  linear(at::ones({4, 5}));
  profiler.stop();
  const auto report = profiler.report();
  for (const char* name : {"", "a", "a.b.c"})
    EXPECT_EQ(module_at(report, name).forward.macs, 60) << name;
}

TEST(FlopsProfiler, OneThatEndsWhileItRunsLeavesNothingBehind) {
  nn::Linear linear(5, 3);
  const auto owners = linear->weight.use_count();
  {
    FlopsProfiler profiler(*linear);
    profiler.start();
    linear(at::ones({4, 5}));
    EXPECT_GT(linear->weight.use_count(), owners);
  }
  EXPECT_EQ(linear->weight.use_count(), owners);
}

// matmul runs mm: its own time would count twice.
TEST(FlopsProfiler, TheTimeOfACompositeIsThatOfWhatItRuns) {
  const auto report = profile_of(nn::Module("product"), [] {
    at::matmul(at::ones({2, 4, 5}), at::ones({5, 3}));
  });
  EXPECT_EQ(report.modules.front().forward.macs, 120);
  EXPECT_GT(report.modules.front().forward.time_ns, 0);
  EXPECT_LE(report.modules.front().forward.time_ns, report.forward_ns);
}

// Into .grad, and at the end of the pass.
TEST(FlopsProfiler, WhatIsDoneWithGradientsDoesNotCount) {
  nn::Linear linear(5, 3);
  const auto pass = [&] { linear(at::ones({4, 5})).sum().backward(); };
  const auto once = counts(profile_of(*linear, pass));
  EXPECT_EQ(counts(profile_of(*linear, pass)), once);
  const auto input = at::ones({4, 5}).requires_grad_().mul(2);  // no leaf: no node accumulates
  int ended = 0;
  const auto gradient_of_input = [&](bool at_end) {
    const auto output = linear(input);
    output.register_hook([&ended, at_end](const at::Tensor&) {
      if (!at_end) return;
      torch::autograd::Engine::get_default_engine().queue_callback([&ended] {
        at::ones({4, 5}).mul(2);
        ++ended;
      });
    });
    torch::autograd::grad({output}, {input}, {at::ones({4, 3})});
  };
  const auto without = counts(profile_of(*linear, [&] { gradient_of_input(false); }));
  EXPECT_EQ(counts(profile_of(*linear, [&] { gradient_of_input(true); })), without);
  EXPECT_EQ(ended, 1);
}

TEST(FlopsProfiler, ABackwardBelongsToTheModuleOfItsForward) {
  nn::Sequential model(nn::Linear(5, 5), nn::Tanh(), nn::Linear(5, 5), nn::Linear(5, 3));
  const auto report = profile_of(*model, [&] {
    model->forward(at::ones({4, 5})).sum().backward();
  });
  EXPECT_EQ(module_at(report, "0").own_backward.flops, 2 * 100 + 20);  // no gradient of the input
  EXPECT_EQ(module_at(report, "2").own_backward.flops, 4 * 100 + 20);
  EXPECT_EQ(module_at(report, "3").own_backward.flops, 4 * 60 + 12);
  EXPECT_EQ(module_at(report, "").own_backward.flops, 20);  // of tanh
}

TEST(FlopsProfiler, ChangesNoGradientAndMayRunBesideAnother) {
  const auto model = reference::make_model("gpt", 1);
  const auto batch = gpt_batch(1);
  model->loss(batch).backward();
  const auto plain = model->parameters().front().grad().clone();
  model->zero_grad();
  FlopsProfiler outer(*model);
  outer.start();
  const auto inner = profile_of(*model, [&] { model->loss(batch).backward(); });
  EXPECT_THAT(model->parameters().front().grad(), conformance::oracle::HasTheBitsOf(plain));
  EXPECT_EQ(counts(outer.report()), counts(inner));
  EXPECT_NE(conformance::error_of([&] { outer.start(); }).find("that runs"), std::string::npos);
  outer.stop();
  EXPECT_NE(conformance::error_of([&] { outer.stop(); }).find("that is idle"), std::string::npos);
  outer.start();
  EXPECT_EQ(outer.report().modules.front().forward.flops, 0);
}

// Parameters come and go at stage 3, gradients are sent within the pass at stages 2 and 3: the
// counts are those of the bare model.
TEST(FlopsProfiler, CountsTheSameAtEveryStage) {
  conformance::at_every_stage(2, [](conformance::ranks::RankContext& context, int stage) {
    const auto batch = gpt_batch(static_cast<uint64_t>(context.rank()));
    const auto pass = [&](reference::Model& model) {
      return counts(profile_of(model, [&] { model.loss(batch).backward(); }));
    };
    const auto bare = reference::make_model("gpt", 1), model = reference::make_model("gpt", 1);
    const auto engine =
        initialize(*model,
                   R"({"train_batch_size": 4, "gradient_accumulation_steps": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
            "zero_optimization": {"stage": )" +
                       std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0}})",
                   context.group());
    const auto want = pass(*bare);
    EXPECT_EQ(pass(*model), want);
    engine->step();
    EXPECT_EQ(pass(*model), want);
    engine->step();
  });
}

}  // namespace
}  // namespace equigrad::profile
