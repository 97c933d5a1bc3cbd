#include "conformance/oracle/digest.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace equigrad::conformance::oracle {
namespace {

at::Tensor numbers(int64_t numel) { return at::arange(1, numel + 1, at::kFloat) * 0.37f; }

TEST(Digest, ShardsOfAnyWorldSumToTheWhole) {
  for (const int64_t numel : {1, 2, 7, 100, 1001}) {
    const auto whole = numbers(numel);
    const uint64_t want = digest("w", 2, 0, whole);
    for (int64_t world = 1; world <= 8; ++world) {
      const int64_t shard = (numel + world - 1) / world;
      uint64_t sum = 0;
      for (int64_t rank = world; rank-- > 0;) {
        const int64_t begin = std::min(rank * shard, numel);
        const int64_t end = std::min(begin + shard, numel);
        sum += digest("w", 2, begin, whole.slice(0, begin, end));
      }
      EXPECT_EQ(sum, want) << numel << " elements on " << world << " ranks";
    }
  }
}

TEST(Digest, NothingAddsNothing) { EXPECT_EQ(digest("w", 1, 5, at::empty({0})), 0u); }

TEST(Digest, EveryFaultChangesIt) {
  const auto values = numbers(64);
  std::set<uint64_t> seen{digest("w", 1, 0, values)};
  const auto is_new = [&](uint64_t value) { return seen.insert(value).second; };
  auto one_bit = values.clone();
  one_bit.view(at::kInt)[17].bitwise_xor_(1);
  auto swapped = values.clone();
  swapped[3] = values[4];
  swapped[4] = values[3];
  EXPECT_TRUE(is_new(digest("w", 1, 0, one_bit))) << "one bit";
  EXPECT_TRUE(is_new(digest("w", 1, 0, swapped))) << "two elements swapped";
  EXPECT_TRUE(is_new(digest("w", 1, 1, values))) << "shifted by one";
  EXPECT_TRUE(is_new(digest("w", 2, 0, values))) << "another step";
  EXPECT_TRUE(is_new(digest("v", 1, 0, values))) << "another name";
  EXPECT_TRUE(is_new(digest("w", 1, 0, values.slice(0, 0, 63)))) << "an element lost";
  EXPECT_TRUE(is_new(2 * digest("w", 1, 0, values))) << "counted twice";
  EXPECT_TRUE(is_new(digest("w", 1, 0, values.to(at::kDouble)))) << "another dtype";
  EXPECT_TRUE(is_new(digest("w", 1, 0, values.view(at::kInt)))) << "the same bits as integers";
}

TEST(Digest, BothZerosAreOneValue) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const auto zero = at::zeros({3}, dtype);
    EXPECT_EQ(digest("w", 1, 0, zero), digest("w", 1, 0, -zero)) << dtype;
  }
  const auto lowest = at::tensor({INT64_MIN}, at::kLong);
  EXPECT_NE(digest("w", 1, 0, lowest), digest("w", 1, 0, at::zeros({1}, at::kLong)));
}

TEST(Digest, NoTwoOfManyElementsCollide) {
  std::set<uint64_t> seen;
  for (int64_t i = 0; i < 2000; ++i) seen.insert(digest("w", 1, i, at::ones({1})));
  for (int64_t i = 0; i < 2000; ++i)
    seen.insert(digest("w", 1, 0, numbers(2000).slice(0, i, i + 1)));
  EXPECT_EQ(seen.size(), 4000u);
}

}  // namespace
}  // namespace equigrad::conformance::oracle
