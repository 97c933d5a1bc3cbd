// Regions of random numbers: other numbers on every rank within, the same ones behind, no trace of
// a region without draws, and the same numbers again where a state is restored. A dropout of parts
// beside its twin, which computes all parts on one process from seeds of its own arithmetic.
#include "engine/parallel/split_random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <torch/utils.h>

#include <filesystem>
#include <set>
#include <stdexcept>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/error_of.hpp"
#include "conformance/testing/group_test.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "engine/comm/mesh.hpp"
#include "engine/parallel/layers.hpp"

namespace equigrad::parallel {
namespace {

using conformance::error_of;
using conformance::on_groups;
using conformance::sample;
using conformance::sum_of_tree;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kTensor = RandomParts::Tensor, kSequence = RandomParts::Sequence;

at::Generator generator() { return at::globalContext().defaultGenerator(at::kCPU); }
at::Tensor state() { return generator().get_state(); }
uint64_t draw() { return generator().get<at::CPUGeneratorImpl>()->random64(); }
at::Tensor drawn() { return at::rand({5}); }

// What every rank of the group gives, by rank.
std::vector<at::Tensor> of_all(const at::Tensor& own, const Group& group) {
  return gather_from(own.unsqueeze(0), 0, group).unbind(0);
}

TEST(SplitRandom, ASeedNamesItsKindAndHasALowHalfOfItsOwnOnEveryRank) {
  EXPECT_EQ(split_seed(1, 0, kTensor), 0x9d3a6b1db425d5dc);
  EXPECT_EQ(split_seed(1, 1, kTensor), 0x9d3a6b1d939d580b);
  EXPECT_EQ(split_seed(0xfedcba9876543210, 3, kSequence), 0x9d3a6c82c0e0ac8d);
  std::set<uint32_t> low;
  for (int64_t rank = 0; rank < 4096; ++rank)
    low.insert(static_cast<uint32_t>(split_seed(77, rank, kTensor)));
  EXPECT_EQ(low.size(), 4096);
  EXPECT_NE(split_seed(1, 0, kTensor), split_seed(1, 0, kSequence));
}

TEST(SplitRandom, RanksDrawOtherNumbersWithinAndTheSameBehind) {
  on_groups([](const Group& group) {
    torch::manual_seed(3);
    const auto before = drawn();
    at::Tensor within;
    {
      const SplitRandom random(group);
      within = drawn();
    }
    const auto behind = drawn();
    const auto parts = of_all(within, group);
    for (std::size_t one = 0; one < parts.size(); ++one)
      for (std::size_t other = 0; other < one; ++other)
        EXPECT_THAT(parts[one], Not(HasTheBitsOf(parts[other])));
    for (const auto& each : of_all(behind, group)) EXPECT_THAT(each, HasTheBitsOf(behind));

    torch::manual_seed(3);
    EXPECT_THAT(drawn(), HasTheBitsOf(before));
    const uint64_t k = draw();
    EXPECT_THAT(drawn(), HasTheBitsOf(behind)) << "as if k alone had been drawn";
    torch::manual_seed(split_seed(k, group->rank(), kTensor));
    EXPECT_THAT(drawn(), HasTheBitsOf(within));
  });
}

TEST(SplitRandom, ARegionWithoutDrawsLeavesNoTrace) {
  on_groups([](const Group& group) {
    torch::manual_seed(3);
    at::randn({3});  // one more is kept for the next call
    const auto before = state();
    { const SplitRandom random(group); }
    EXPECT_THAT(state(), HasTheBitsOf(before));
    { const SplitRandom random(nullptr); }
    EXPECT_FALSE(enter_split_random(group, c10::kMeta, kTensor));
    EXPECT_FALSE(leave_split_random(kTensor)) << "there is none";
    EXPECT_THAT(state(), HasTheBitsOf(before));
    const auto next = at::randn({3});
    generator().set_state(before);
    {
      const SplitRandom random(group);
      at::randn({3});
    }
    EXPECT_THAT(at::randn({3}), Not(HasTheBitsOf(next)));
  });
}

// So many numbers are one filling of the generator's table, which looks as if none was taken.
TEST(SplitRandom, ARegionOfAWholeTableOfDrawsHasDrawn) {
  on_groups([](const Group& group) {
    torch::manual_seed(3);
    draw();
    const auto behind = state();
    for (const int64_t draws : {1, 623, 624, 625, 1248}) {
      torch::manual_seed(3);
      {
        const SplitRandom random(group);
        at::rand({draws});
      }
      EXPECT_THAT(state(), HasTheBitsOf(behind)) << draws;
    }
  });
}

TEST(SplitRandom, EnteringTwiceIsOneRegion) {
  on_groups([](const Group& group) {
    torch::manual_seed(3);
    EXPECT_TRUE(enter_split_random(group, c10::kCPU, kTensor));
    const auto first = drawn();
    EXPECT_FALSE(enter_split_random(group, c10::kCPU, kTensor));
    const auto second = drawn();
    EXPECT_TRUE(leave_split_random(kTensor));
    EXPECT_FALSE(leave_split_random(kTensor));
    torch::manual_seed(3);
    const SplitRandom random(group);
    EXPECT_THAT(drawn(), HasTheBitsOf(first));
    EXPECT_THAT(drawn(), HasTheBitsOf(second));
  });
}

TEST(SplitRandom, WhatIsDrawnBehindARegionIsSeen) {
  on_groups([](const Group& group) {
    for (const bool draws : {false, true}) {
      { const SplitRandom random(group), same(group); }
      EXPECT_FALSE(has_drawn_since_split_random(kTensor));
      {
        const SplitRandom random(group);
        if (draws) drawn();
      }
      EXPECT_FALSE(has_drawn_since_split_random(kTensor));
      drawn();
      EXPECT_TRUE(has_drawn_since_split_random(kTensor));
    }
  });
}

TEST(SplitRandom, AnExceptionPutsTheStateBack) {
  on_groups([](const Group& group) {
    torch::manual_seed(3);
    draw();
    const auto behind = state();
    torch::manual_seed(3);
    try {
      const SplitRandom random(group);
      drawn();
      throw std::runtime_error("of the caller");
    } catch (const std::runtime_error&) {
    }
    EXPECT_THAT(state(), HasTheBitsOf(behind));
  });
}

// What torch.utils.checkpoint does before it computes again.
TEST(SplitRandom, WhereAStateIsRestoredTheNumbersAreTheSame) {
  on_groups([](const Group& group) {
    torch::manual_seed(3);
    const auto outside = state();
    enter_split_random(group, c10::kCPU, kTensor);
    const auto first = drawn();
    const auto inside = state();
    const auto second = drawn();
    leave_split_random(kTensor);
    for (int other = 0; other < 2; ++other) {
      const SplitRandom random(group);
      drawn();
    }
    const auto now = state();

    generator().set_state(outside);
    enter_split_random(group, c10::kCPU, kTensor);
    EXPECT_THAT(drawn(), HasTheBitsOf(first));
    leave_split_random(kTensor);

    { const SplitRandom another(group); }
    generator().set_state(inside);
    EXPECT_FALSE(enter_split_random(group, c10::kCPU, kTensor)) << "it is in one already";
    EXPECT_THAT(drawn(), HasTheBitsOf(second));
    EXPECT_THAT(error_of([] { leave_split_random(kTensor); }), HasSubstr("of an earlier one"));
    EXPECT_FALSE(abandon_split_random(kTensor));
    generator().set_state(now);
    EXPECT_FALSE(leave_split_random(kTensor));
  });
}

TEST(SplitRandom, ATensorRegionWithinASequenceRegion) {
  on_groups([](const Group& group) {
    torch::manual_seed(3);
    EXPECT_TRUE(enter_split_random(group, c10::kCPU, kSequence));
    const auto of_sequence = state();
    const uint64_t k = draw();
    const auto rest = drawn();
    generator().set_state(of_sequence);
    EXPECT_TRUE(enter_split_random(group, c10::kCPU, kTensor));
    const auto within = drawn();
    EXPECT_TRUE(leave_split_random(kTensor));
    EXPECT_THAT(drawn(), HasTheBitsOf(rest)) << "back in the region of the sequence";
    EXPECT_TRUE(enter_split_random(group, c10::kCPU, kTensor));
    EXPECT_TRUE(leave_split_random(kSequence)) << "both";
    const auto behind = state();
    torch::manual_seed(split_seed(k, group->rank(), kTensor));
    EXPECT_THAT(drawn(), HasTheBitsOf(within));
    torch::manual_seed(3);
    draw();
    EXPECT_THAT(state(), HasTheBitsOf(behind));
  });
}

// ---- A dropout of parts, and one of the whole ---------------------------------------------------

constexpr int64_t kRows = 6, kWidth = 8, kInner = 32;

at::Tensor numbers(at::IntArrayRef shape, uint64_t seed) {
  return sample(c10::multiply_integers(shape), seed, at::kFloat).view(shape);
}

struct Net {
  at::Tensor up = numbers({kInner, kWidth}, 1), down = numbers({kWidth, kInner}, 2);
  at::Tensor input = numbers({kRows, kWidth}, 3);
  Split cut_up = unpacked({kInner, kWidth}, 0), cut_down = unpacked({kWidth, kInner}, 1);
};

struct Trained {
  at::Tensor output, up, down;  // and gradients of the weights
};

Trained on_this_rank(const Net& net, const Group& group) {
  const auto rank = group->rank(), size = group->world_size();
  const auto up = part_of(net.up, net.cut_up, rank, size).clone().requires_grad_();
  const auto down = part_of(net.down, net.cut_down, rank, size).clone().requires_grad_();
  const auto input = at::dropout(net.input, 0.25, true);
  auto part = column_linear(input, up, {}, group);
  {
    const SplitRandom random(group);
    part = at::dropout(part, 0.5, true);
  }
  const auto output = at::dropout(row_linear(part, down, {}, group), 0.25, true);
  output.backward(numbers({kRows, kWidth}, 4));
  return {output.detach(), up.grad(), down.grad()};
}

// All parts on one process; the seeds by arithmetic of its own.
Trained twin_of(const Net& net, int64_t rank, int64_t size) {
  const auto input = at::dropout(net.input, 0.25, true);
  const uint64_t k = draw();
  const auto whole_state = state();
  std::vector<at::Tensor> ups, downs, sums;
  for (int64_t part = 0; part < size; ++part) {
    ups.push_back(part_of(net.up, net.cut_up, part, size).clone().requires_grad_());
    downs.push_back(part_of(net.down, net.cut_down, part, size).clone().requires_grad_());
    uint64_t mixed = (k ^ (k >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
    auto low = static_cast<uint32_t>(mixed + static_cast<uint64_t>(part));
    low = (low ^ (low >> 16)) * 0x85ebca6bU;
    low = (low ^ (low >> 13)) * 0xc2b2ae35U;
    torch::manual_seed(low ^ (low >> 16));  // the low half is all that the CPU's generator takes
    const auto masked = at::dropout(at::linear(input, ups.back()), 0.5, true);
    sums.push_back(at::linear(masked, downs.back()).view({-1}));
  }
  generator().set_state(whole_state);
  const auto total = sum_of_tree(sums).view({kRows, kWidth});
  const auto output = at::dropout(total, 0.25, true);
  output.backward(numbers({kRows, kWidth}, 4));
  const auto own = static_cast<std::size_t>(rank);
  return {output.detach(), ups[own].grad(), downs[own].grad()};
}

TEST(SplitRandom, DropoutOfPartsAndOfTheWholeHaveTheBitsOfTheTwin) {
  on_groups([](const Group& group) {
    const Net net;
    torch::manual_seed(9);
    for (int step = 0; step < 3; ++step) {
      const auto before = state();
      const auto got = on_this_rank(net, group);
      const auto after = state();
      generator().set_state(before);
      const auto want = twin_of(net, group->rank(), group->world_size());
      EXPECT_THAT(got.output, HasTheBitsOf(want.output));
      EXPECT_THAT(got.up, HasTheBitsOf(want.up));
      EXPECT_THAT(got.down, HasTheBitsOf(want.down));
      EXPECT_THAT(state(), HasTheBitsOf(after));
    }
  });
}

// ---- What a forward pass draws ------------------------------------------------------------------

TEST(RandomWatch, SeesDrawsButThoseOfRegions) {
  on_groups([](const Group& group) {
    torch::manual_seed(3);
    drawn();
    const RandomWatch watch(c10::kCPU);
    EXPECT_FALSE(watch.has_drawn());
    for (int region = 0; region < 3; ++region) {
      const SplitRandom random(group);
      drawn();
    }
    EXPECT_FALSE(watch.has_drawn());
    EXPECT_FALSE(watch.check_same(group));
    drawn();
    EXPECT_TRUE(watch.has_drawn());
    EXPECT_TRUE(watch.check_same(group));
    EXPECT_TRUE(watch.check_same(nullptr));
  });
}

TEST(RandomWatch, RanksOfOtherStatesAreNamedIfTheyDrew) {
  EXPECT_EQ(on_ranks(4,
                     [](RankContext& context) {
                       const auto group = context.group();
                       const auto said = [&](uint64_t seed, bool draws, bool in_region) {
                         torch::manual_seed(seed);
                         const RandomWatch watch(c10::kCPU);
                         if (in_region) {
                           const SplitRandom random(group);
                           drawn();
                         }
                         if (draws) drawn();
                         return error_of([&] { watch.check_same(group); });
                       };
                       const auto rank = static_cast<uint64_t>(context.rank());
                       EXPECT_EQ(said(7, true, true), "");
                       EXPECT_EQ(said(rank, false, false), "") << "nothing was drawn";
                       EXPECT_EQ(said(rank, false, true), "") << "nothing that all have";
                       EXPECT_THAT(said(rank % 2, true, false),
                                   HasSubstr("on ranks 0, 1, 2, 3, which are one tensor group"));
                       EXPECT_THAT(said(rank % 2, true, true),
                                   HasSubstr("got another one on ranks 1, 3 than on 0"));
                       EXPECT_THAT(said(rank / 3, context.rank() == 0, false),
                                   HasSubstr("got another one on rank 3 than on 0"));
                     }),
            "");
}

TEST(RandomWatch, RanksAreNamedByTheirNumbersAmongAll) {
  const conformance::ScratchFolder folder;
  std::filesystem::create_directories(folder.path());
  EXPECT_EQ(on_ranks(4,
                     [&folder](RankContext& context) {
                       const auto mesh =
                           comm::connect_gloo_mesh(context.rank(), {.data = 2, .tensor = 2},
                                                   folder.path("mesh"), std::chrono::seconds(60));
                       torch::manual_seed(static_cast<uint64_t>(context.rank()));
                       const RandomWatch watch(c10::kCPU);
                       drawn();
                       EXPECT_THAT(error_of([&] { watch.check_same(mesh.tensor()); }),
                                   HasSubstr(context.rank() < 2 ? "on rank 1 than on 0"
                                                                : "on rank 3 than on 2"));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::parallel
