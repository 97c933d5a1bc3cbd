// What the passes of a check depend on: each has a seed of its own, and one of them overflows where
// the loss is scaled.
#include "conformance/check/subject_model.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <set>

#include "conformance/cases/recipe.hpp"
#include "conformance/check/check_case.hpp"

namespace equigrad::conformance {
namespace {

struct Passed {
  uint64_t seed;
  float drawn;  // the first number of torch's generator
  float loss;
};

Passed pass_of(const PassSetting& setting, const Pass& pass) {
  uint64_t seed = 0;
  const auto subject = subject_of(std::make_shared<torch::nn::LinearImpl>(2, 1),
                                  [&seed](torch::nn::Module&, const Which& which) {
                                    seed = which.seed;
                                    return Forward{at::rand({1})};
                                  });
  const auto forward = seeded_forward(*subject, setting, pass, at::kFloat);
  set_generator(seed);
  return {seed, at::rand({1}).item<float>(), forward.output.item<float>()};
}

TEST(SubjectModel, EveryPassHasASeedOfItsOwnAndTheGeneratorIsSetFromIt) {
  std::set<uint64_t> seeds;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}})
    for (const int step : {0, 1})
      for (const int rank : {0, 1})
        for (const int micro_batch : {0, 1}) {
          const Pass pass{.step = step, .rank = rank, .micro_batch = micro_batch};
          const auto passed = pass_of({.seed = seed, .world = 2}, pass);
          EXPECT_EQ(passed.loss, passed.drawn);
          seeds.insert(passed.seed);
        }
  EXPECT_EQ(seeds.size(), 16u);
}

TEST(SubjectModel, OnePassOfAPrecisionThatScalesTheLossOverflows) {
  const auto setting_in = [](Precision precision) {
    return setting_of({.spec = {.stage = 1,
                                .precision = precision,
                                .style = Style::EngineBackward,
                                .world = 3,
                                .accumulation = 2,
                                .clip = Clip::Above,
                                .optimizer = Rule::AdamW,
                                .model = "model"}});
  };
  EXPECT_FALSE(setting_in(Precision::Fp32).overflowing.has_value());
  const auto setting = setting_in(Precision::Fp16);
  ASSERT_TRUE(setting.overflowing.has_value());
  int overflowing = 0;
  for (const int step : {0, 1, 2})
    for (const int rank : {0, 1, 2})
      for (const int micro_batch : {0, 1}) {
        const auto passed = pass_of(setting, {step, rank, micro_batch});
        if (passed.loss == passed.drawn) continue;
        EXPECT_EQ(passed.loss, passed.drawn * static_cast<float>(kOverflowFactor));
        ++overflowing;
      }
  EXPECT_EQ(overflowing, 1);
}

}  // namespace
}  // namespace equigrad::conformance
