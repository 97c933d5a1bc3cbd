// A correct engine computes the same under the adversary, and whoever breaks the rules of a
// communicator is told so.
#include "conformance/faults/adversary.hpp"

#include <gmock/gmock.h>

#include "conformance/campaigns/runner.hpp"
#include "conformance/cases/recipe.hpp"
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "conformance/testing/small_run.hpp"

namespace equigrad::conformance::faults {
namespace {

using oracle::HasTheBitsOf;
using ranks::RankContext;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<comm::Communicator> late(RankContext& context) {
  return adversarial(context.group(), AdversaryOptions{1, true, true});
}

template <class Fn>
void on_two_ranks(Fn fn) {
  EXPECT_EQ(ranks::on_ranks(2, fn), "");
}

at::Tensor mine(RankContext& context, int64_t numel, uint64_t salt) {
  return sample(numel, salt * 16 + static_cast<uint64_t>(context.rank()));
}

// Several of every kind in flight, waited for in another order.
std::vector<at::Tensor> collectives(comm::Communicator& communicator, RankContext& context) {
  const int64_t world = context.world_size();
  std::vector<at::Tensor> inputs, outputs;
  std::vector<comm::PendingPtr> sums, gathers;
  for (uint64_t round = 0; round < 3; ++round) {
    inputs.push_back(mine(context, 6 * world, round));
    outputs.push_back(at::empty({6 * world}));
    sums.push_back(communicator.all_to_all(outputs.back(), inputs.back()));
    inputs.push_back(mine(context, 5, round + 10));
    outputs.push_back(at::empty({5 * world}));
    gathers.push_back(communicator.all_gather(outputs.back(), inputs.back()));
    inputs.push_back(mine(context, 4 * world, round + 20).round());
    outputs.push_back(at::empty({4}));
    sums.push_back(communicator.reduce_scatter_sum(outputs.back(), inputs.back()));
    outputs.push_back(mine(context, 7, round + 30).round());
    sums.push_back(communicator.all_reduce_sum(outputs.back()));
    outputs.push_back(mine(context, 3, round + 40));
    gathers.push_back(
        communicator.broadcast(outputs.back(), static_cast<int>(round) % context.world_size()));
  }
  for (auto gather = gathers.rbegin(); gather != gathers.rend(); ++gather) (*gather)->wait();
  for (auto& sum : sums) sum->wait();
  return outputs;
}

TEST(Adversary, GivesWhatTheCommunicatorGives) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(ranks::on_ranks(world,
                              [](RankContext& context) {
                                const auto want = collectives(*context.group(), context);
                                for (uint64_t seed = 1; seed <= 12; ++seed) {
                                  const auto got =
                                      collectives(*adversarial(context.group(), seed), context);
                                  for (std::size_t i = 0; i < want.size(); ++i)
                                    EXPECT_THAT(got[i], HasTheBitsOf(want[i])) << i;
                                }
                              }),
              "");
  }
}

// As where a pass is given up: a rank that is told of it waits for what is in flight later.
TEST(Adversary, RanksMayWaitInDifferentOrders) {
  on_two_ranks([](RankContext& context) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      const auto communicator = adversarial(context.group(), seed);
      auto sum = at::full({5}, 1.0 + context.rank());
      const auto given = at::full({3}, 7.0 + context.rank());
      auto all = at::empty({6});
      auto first = communicator->all_reduce_sum(sum);
      if (context.rank() == 0) first->wait();
      communicator->all_gather(all, given)->wait();
      if (context.rank() == 1) first->wait();
      EXPECT_TRUE(sum.eq(3.0).all().item<bool>()) << seed;
      EXPECT_TRUE(all.equal(at::tensor({7.0F, 7.0F, 7.0F, 8.0F, 8.0F, 8.0F}))) << seed;
    }
  });
}

TEST(Adversary, WhatIsReadBeforeTheWaitIsPoison) {
  on_two_ranks([](RankContext& context) {
    for (const uint64_t seed : {uint64_t{1}, uint64_t{2}}) {
      const auto communicator = adversarial(context.group(), AdversaryOptions{seed, true, true});
      const auto input = mine(context, 4, 1), output = at::zeros({4});
      const auto words = at::zeros({2}, at::kLong);
      auto pending = communicator->all_to_all(output, input);
      const auto one = at::ones({1}, at::kLong);
      auto other = communicator->all_gather(words, one);
      EXPECT_EQ(output.isnan().all().item<bool>(), seed == 1);
      if (seed == 2) EXPECT_GT(output[0].item<float>(), 1e15);
      EXPECT_NE(words[0].item<int64_t>(), 1);
      other->wait();
      EXPECT_EQ(words[1].item<int64_t>(), 1);
      pending->wait();
      EXPECT_TRUE(output.isfinite().all().item<bool>());
      EXPECT_LT(output.abs().max().item<float>(), 1e15);
    }
  });
}

TEST(Adversary, NamesTheCollectiveWhoseInputWasWritten) {
  on_two_ranks([](RankContext& context) {
    const auto communicator = late(context);
    const auto input = mine(context, 4, 1), output = at::zeros({4});
    communicator->all_to_all(output, input)->wait();
    auto pending = communicator->all_to_all(output, input);
    input[3] = 5;
    EXPECT_THAT(error_of([&] { pending->wait(); }),
                AllOf(HasSubstr("all_to_all 2"), HasSubstr("its input was written to in flight")));
    // The peers got theirs, so all can go on.
    communicator->all_to_all(output, input)->wait();
  });
}

TEST(Adversary, SendsWhatTheBufferHoldsWhenItIsReused) {
  on_two_ranks([](RankContext& context) {
    const auto communicator = adversarial(context.group(), AdversaryOptions{1, false, true});
    const auto input = at::full({4}, 1.0F), output = at::zeros({4});
    auto pending = communicator->all_to_all(output, input);
    input.fill_(2);
    pending->wait();
    EXPECT_EQ(output.sum().item<float>(), 8);
  });
}

TEST(Adversary, SeesAnOutputThatIsWrittenAndMemoryThatIsFreed) {
  on_two_ranks([](RankContext& context) {
    const auto communicator = late(context);
    const auto input = mine(context, 4, 1), output = at::zeros({4});
    auto pending = communicator->all_to_all(output, input);
    output[0] = 1;
    EXPECT_THAT(error_of([&] { pending->wait(); }), HasSubstr("output was written to"));
    pending = communicator->all_to_all(output, mine(context, 4, 1));
    EXPECT_THAT(error_of([&] { pending->wait(); }), HasSubstr("input was freed"));
    pending = communicator->all_to_all(at::zeros({4}), input);
    EXPECT_THAT(error_of([&] { pending->wait(); }), HasSubstr("output was freed"));
    const auto tensor = at::ones({3});
    pending = communicator->all_reduce_sum(tensor);
    tensor.fill_(1);
    EXPECT_THAT(error_of([&] { pending->wait(); }), HasSubstr("all_reduce_sum"));
  });
}

TEST(Adversary, ACollectiveThatNobodyWaitsForStillReachesThePeers) {
  on_two_ranks([](RankContext& context) {
    const auto communicator = late(context);
    const auto input = mine(context, 4, 1), output = at::zeros({8});
    auto pending = communicator->all_gather(output, input);
    if (context.rank() == 0) pending.reset();
    if (context.rank() == 1) pending->wait();
    EXPECT_EQ(output.isfinite().all().item<bool>(), context.rank() == 1);
    communicator->all_gather(output, input)->wait();
    EXPECT_TRUE(output.isfinite().all().item<bool>());
  });
}

TEST(Adversary, UnderItTheEngineComputesTheSame) {
  at_every_stage(3, [](RankContext& context, int stage) {
    for (const int64_t accumulation : {1, 2}) {
      const SmallOptions options{
          .stage = stage, .accumulation = accumulation, .bf16 = accumulation == 2, .clipping = 0.1};
      const auto trained = [&](std::shared_ptr<comm::Communicator> communicator) {
        SmallRun run(context, options, std::move(communicator));
        for (int64_t micro_step = 0; micro_step < 3 * accumulation; ++micro_step)
          run.train(micro_step);
        return run.all();
      };
      const auto want = trained(context.group());
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        expect_equal(trained(adversarial(context.group(), seed)), want, std::to_string(seed));
      }
      expect_equal(trained(late(context)), want, "late");
    }
  });
}

TEST(Adversary, UnderItCasesOfTheMatrixHold) {
  RunOptions options;
  for (const int stage : {0, 1, 2, 3})
    options.cases.push_back({.stage = stage,
                             .precision = Precision::Bf16,
                             .style = Style::TensorBackward,
                             .world = 3,
                             .accumulation = 3,
                             .clip = Clip::Above,
                             .optimizer = Rule::AdamW,
                             .model = "irregular"});
  options.data = find_data("", false);
  options.quiet = true;
  options.slots = 1;
  options.serve = [](const nlohmann::json& request, RankContext& context) {
    auto under = request;
    if (request.at("do") == "case") under["adversary"] = 5;
    return serve(under, context);
  };
  for (const auto& record : run_matrix(options).cases)
    EXPECT_EQ(record.verdict, reports::Verdict::Equal) << record.id << "\n" << record.message;
}

}  // namespace
}  // namespace equigrad::conformance::faults
