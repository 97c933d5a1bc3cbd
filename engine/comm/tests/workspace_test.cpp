// The workspace: memory comes back when it was given back, and only then.
#include "engine/comm/workspace.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

namespace equigrad::comm {
namespace {

TEST(Workspace, GivesTheSameMemoryAgainOnceItWasGivenBack) {
  Workspace workspace;
  auto first = workspace.take(10'000, at::kFloat);
  const at::Tensor alive = first.tensor();  // or malloc itself might give the same memory again
  const void* memory = alive.data_ptr();
  EXPECT_EQ(first.tensor().numel(), 10'000);
  EXPECT_EQ(first.tensor().scalar_type(), at::kFloat);
  first.give_back();
  const auto second = workspace.take(20'000, at::kBFloat16);
  EXPECT_EQ(second.tensor().data_ptr(), memory);
  EXPECT_EQ(second.tensor().scalar_type(), at::kBFloat16);
}

// Of two copies each would give the block back, and two collectives receive into it.
TEST(Workspace, ABlockIsGivenBackOnce) {
  EXPECT_FALSE(std::is_copy_constructible_v<Workspace::Block>);
  EXPECT_FALSE(std::is_copy_assignable_v<Workspace::Block>);
  Workspace workspace;
  auto first = workspace.take(10'000, at::kFloat);
  auto other = std::move(first);
  other.give_back();
  other.give_back();
  first.give_back();  // NOLINT(bugprone-use-after-move): nothing is left in it
  const auto second = workspace.take(10'000, at::kFloat);
  const auto third = workspace.take(10'000, at::kFloat);
  EXPECT_NE(third.tensor().data_ptr(), second.tensor().data_ptr());
}

TEST(Workspace, BlocksInUseDoNotOverlap) {
  Workspace workspace;
  const auto first = workspace.take(1000, at::kFloat);
  const auto second = workspace.take(1000, at::kFloat);
  first.tensor().fill_(1);
  second.tensor().fill_(2);
  EXPECT_TRUE(first.tensor().eq(1).all().item<bool>());
}

TEST(Workspace, ABlockThatIsUsedAgainIsInUse) {
  Workspace workspace;
  auto first = workspace.take(10'000, at::kFloat);
  first.give_back();
  const auto second = workspace.take(10'000, at::kFloat);
  const auto third = workspace.take(10'000, at::kFloat);
  EXPECT_NE(third.tensor().data_ptr(), second.tensor().data_ptr());
}

TEST(Workspace, WhatWasNotGivenBackIsNotUsedAgain) {
  Workspace workspace;
  at::Tensor in_flight;
  {
    const auto block = workspace.take(10'000, at::kFloat);
    in_flight = block.tensor();
  }
  const auto next = workspace.take(10'000, at::kFloat);
  EXPECT_NE(next.tensor().data_ptr(), in_flight.data_ptr());
}

TEST(Workspace, TheSmallestBlockThatIsLargeEnoughIsUsed) {
  Workspace workspace;
  auto large = workspace.take(1'000'000, at::kFloat), small = workspace.take(100, at::kFloat);
  const at::Tensor larger = large.tensor(), smaller = small.tensor();
  large.give_back();
  small.give_back();
  EXPECT_EQ(workspace.take(90, at::kFloat).tensor().data_ptr(), smaller.data_ptr());
  EXPECT_EQ(workspace.take(90, at::kFloat).tensor().data_ptr(), larger.data_ptr());
}

TEST(Workspace, KeepsNoMoreBlocksThanWereInUseAtOnce) {
  Workspace workspace;
  std::vector<at::Tensor> alive;  // or malloc itself might give the same memory again
  for (const int64_t numel : {1000, 3000, 9000}) {
    auto block = workspace.take(numel, at::kFloat);
    alive.push_back(block.tensor());
    block.give_back();
  }
  const auto block = workspace.take(10, at::kFloat), other = workspace.take(10, at::kFloat);
  EXPECT_EQ(block.tensor().data_ptr(), alive[2].data_ptr());
  for (const auto& before : alive) EXPECT_NE(other.tensor().data_ptr(), before.data_ptr());
}

TEST(Workspace, KeepsNoMoreThanItSays) {
  Workspace workspace;
  auto block = workspace.take(Workspace::kKeptBytes + 1, at::kByte);
  at::Tensor alive = block.tensor();
  block.give_back();
  EXPECT_NE(workspace.take(Workspace::kKeptBytes + 1, at::kByte).tensor().data_ptr(),
            alive.data_ptr());
}

TEST(Workspace, CountsWhatIsKeptTogetherAndNotWhatIsInUse) {
  constexpr int64_t kHalf = Workspace::kKeptBytes / 2 + 1;
  Workspace workspace;
  auto first = workspace.take(kHalf, at::kByte);
  auto second = workspace.take(kHalf, at::kByte);
  const at::Tensor kept = first.tensor(), freed = second.tensor();
  first.give_back();
  second.give_back();  // no room beside the first
  auto again = workspace.take(kHalf, at::kByte);
  EXPECT_EQ(again.tensor().data_ptr(), kept.data_ptr());
  EXPECT_NE(workspace.take(kHalf, at::kByte).tensor().data_ptr(), freed.data_ptr());
  again.give_back();  // what was in use did not count, so there is room for it
  EXPECT_EQ(workspace.take(kHalf, at::kByte).tensor().data_ptr(), kept.data_ptr());
}

}  // namespace
}  // namespace equigrad::comm
