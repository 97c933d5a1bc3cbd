// An encoder and a language model in two engines: the reference's bits, every planted fault seen,
// and captions of unseen images that are right.
#include "conformance/vision/caption_training.hpp"

#include <gtest/gtest.h>

#include <iostream>

#include "conformance/vision/caption_rank.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::vision {
namespace {

// Forked before anything here has run torch.
ranks::Pool& pool() {
  static ranks::Pool all(4, serve_captions, {std::chrono::minutes(5)});
  return all;
}

Trained train(const Setting& setting, int steps, int64_t held_out = 0, bool compared = true) {
  Training training;
  training.setting = setting;
  training.steps = steps;
  training.held_out = held_out;
  training.compared = compared;
  training.data = find_data("", false);
  return train_captions(pool(), training);
}

// A rank compares its slices of gradient, master and two moments, and the norm and the parameters.
int64_t expected(int64_t numel, int ranks, int stage) {
  return 4 * numel * (stage == 0 ? ranks : 1) + ranks * (1 + numel);
}

void expect_held(const Setting& setting, const Trained& trained, int steps) {
  EXPECT_EQ(trained.failure, "") << setting.name();
  EXPECT_TRUE(trained.held()) << setting.name() << "\n"
                              << trained.encoder.first << "\n"
                              << trained.language.first;
  EXPECT_EQ(trained.encoder.compared,
            steps * expected(trained.encoder_numel, setting.ranks, setting.encoder_stage));
  EXPECT_EQ(
      trained.language.compared,
      steps * (expected(trained.language_numel, setting.language_ranks(), setting.language_stage) +
               setting.accumulation * setting.language_ranks()));
}

constexpr Way kWays[] = {Way::Handed, Way::OneGraph, Way::TwoGroups};

TEST(Captions, EveryPairOfStagesHasTheBitsOfTheReference) {
  int turn = 0;
  for (const Way way : kWays) {
    for (int stages = 0; stages < 16; ++stages) {
      Setting setting;
      setting.way = way;
      setting.encoder_stage = stages / 4;
      setting.language_stage = stages % 4;
      setting.bf16 = (turn / 16 + stages / 4 + stages) % 2 == 1;
      setting.accumulation = 2 + stages / 2 % 2;
      setting.style = static_cast<Style>((turn / 16 + stages / 4 + stages) % 4);
      setting.seed = static_cast<uint64_t>(1 + turn++ % 5);
      const auto trained = train(setting, 2);
      expect_held(setting, trained, 2);
      EXPECT_GE(trained.clipped, 1) << setting.name();
    }
  }
}

TEST(Captions, OneToFourRanksHaveTheBitsOfTheReference) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (int stage = 0; stage < 4; ++stage) {
      Setting setting;
      setting.way = stage % 2 == 0 ? Way::Handed : Way::OneGraph;
      setting.ranks = ranks;
      setting.encoder_stage = 3 - stage;
      setting.language_stage = stage;
      setting.bf16 = ranks % 2 == 0;
      setting.accumulation = 1 + (ranks + stage) % 3;
      setting.style = static_cast<Style>((ranks + stage) % 4);
      expect_held(setting, train(setting, 2), 2);
    }
  }
}

// Groups of different sizes have the bits of a reference whose models see the same rows.
TEST(Captions, GroupsOfDifferentSizesHaveTheBitsOfTheReference) {
  int turn = 0;
  for (const auto& [ranks, other_ranks] :
       {std::pair{1, 1}, {1, 2}, {2, 1}, {3, 1}, {1, 3}, {2, 2}}) {
    for (int stage = 0; stage < 4; ++stage, ++turn) {
      Setting setting;
      setting.way = Way::TwoGroups;
      setting.ranks = ranks;
      setting.other_ranks = other_ranks;
      setting.encoder_stage = (stage + turn / 4) % 4;
      setting.language_stage = stage;
      setting.bf16 = turn % 3 == 1;
      setting.accumulation = 1 + turn % 3;
      setting.style = static_cast<Style>(turn % 4);
      setting.images = 12;
      expect_held(setting, train(setting, 2), 2);
    }
  }
}

TEST(Captions, TheThreeWaysHaveTheSameLosses) {
  Setting setting;
  setting.encoder_stage = 1;
  setting.language_stage = 3;
  std::vector<std::vector<double>> losses;
  for (const Way way : kWays) {
    setting.way = way;
    losses.push_back(train(setting, 4).losses);
  }
  EXPECT_EQ(losses[0].size(), 4u);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

// In the first step a fault between the engines is seen in the encoder and nowhere else.
TEST(Captions, EveryFaultBetweenTheEnginesIsSeen) {
  for (const Way way : {Way::Handed, Way::TwoGroups}) {
    for (const Fault fault :
         {Fault::DividedTwice, Fault::NotDetached, Fault::OtherMicroBatch, Fault::OtherFeatures}) {
      // A leaf that came from another process has no graph behind it.
      if (way == Way::TwoGroups && fault == Fault::NotDetached) continue;
      for (int stage = 0; stage < 4; ++stage) {
        Setting setting;
        setting.way = way;
        setting.encoder_stage = setting.language_stage = stage;
        setting.accumulation = 3;
        setting.fault = fault;
        const auto trained = train(setting, 1);
        const std::string where = setting.name() + ", fault " + std::to_string(int(fault));
        EXPECT_EQ(trained.failure, "") << where;
        EXPECT_GT(trained.encoder.differing, 0) << where;
        EXPECT_EQ(trained.language.differing > 0, fault == Fault::OtherFeatures) << where;
      }
    }
  }
}

// One group is compared with the reference at every step, two groups with the one.
TEST(Captions, AreLearnedInOneGroupAndInTwo) {
  Setting setting;
  setting.encoder_stage = 2;
  setting.language_stage = 1;
  setting.images = 8;
  const auto one = train(setting, 300, 500);
  setting.way = Way::TwoGroups;
  const auto two = train(setting, 300, 500, false);
  expect_held(setting, one, 300);
  EXPECT_EQ(two.failure, "");
  EXPECT_EQ(one.losses, two.losses);
  EXPECT_EQ(one.right, two.right);
  EXPECT_EQ(one.shown, 1000);
  EXPECT_EQ(two.shown, 1000);
  EXPECT_LT(one.chance(), 1e-9) << one.right;
  EXPECT_GE(one.right, 700);  // of 1,000
  // One rank of encoders and two of language models: other batches, and as much learned.
  setting.ranks = 1;
  setting.other_ranks = 2;
  setting.images = 16;
  const auto uneven = train(setting, 300, 1000);
  expect_held(setting, uneven, 300);
  EXPECT_EQ(uneven.shown, 1000);
  EXPECT_GE(uneven.right, 700);
  std::cout << uneven.right << " with one rank that sees and two that write\n";
  std::cout << one.right << " of " << one.shown << " captions of unseen images are right\n";
}

TEST(Captions, ChanceIsABoundOfTheBinomial) {
  Trained trained;
  EXPECT_EQ(trained.chance(), 1);
  trained.shown = 1;
  trained.right = 1;  // one guess, right: exactly 1 in 10
  EXPECT_GT(trained.chance(), 0.09);
  EXPECT_LT(trained.chance(), 0.11);
  trained.shown = 100;
  trained.right = 10;
  EXPECT_EQ(trained.chance(), 1);
  trained.right = 20;  // the tail of the binomial is 0.00198
  EXPECT_GE(trained.chance(), 0.00198);
  trained.right = 50;
  EXPECT_LT(trained.chance(), 1e-9);
}

TEST(Captions, AreTrainedFromACommand) {
  Training training;
  training.steps = 3;
  training.every = 2;
  training.held_out = 4;
  training.data = find_data("", false);
  const auto code_of = [](const Training& of, std::string& said) {
    testing::internal::CaptureStdout();
    const int code = print_caption_training(of);
    said = testing::internal::GetCapturedStdout();
    return code;
  };
  std::string said;
  EXPECT_EQ(code_of(training, said), 0);
  EXPECT_NE(said.find("\nHELD  3 steps; 0 of 8 captions"), std::string::npos) << said;
  training.setting.fault = Fault::DividedTwice;
  EXPECT_EQ(code_of(training, said), 1);
  EXPECT_NE(said.find("# first difference: rank 0, step 1 norm"), std::string::npos) << said;
  training.setting.images = 2;
  EXPECT_EQ(code_of(training, said), 3);
  EXPECT_NE(said.find("\nBROKEN  0 steps"), std::string::npos) << said;
}

TEST(Captions, WithoutImagesSayWhatIsMissing) {
  try {
    train_captions(pool(), Training{});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("expected images and labels"), std::string::npos);
  }
}

}  // namespace
}  // namespace equigrad::conformance::vision
