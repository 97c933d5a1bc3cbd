// Where a parameter's elements lie in a bucket, and what a second contribution does.
#include "engine/bucket/bucket.hpp"

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/kernels/exact_tensor.hpp"

namespace equigrad::bucket {
namespace {

using conformance::sample;
using conformance::table_of;
using conformance::oracle::HasTheBitsOf;

TEST(Bucket, AnElementLiesInItsOwnersRow) {
  const auto table = table_of({1, 2, 7, 12, 3});
  for (const int shards : {1, 2, 3, 4}) {
    for (const int multiple : {1, 3, 4}) {
      const layout::BucketPlan plan(table, shards, 1000);
      ASSERT_EQ(plan.buckets().size(), 1U);
      const auto& place = plan.buckets()[0];
      const int64_t numel = shards * place.shard_numel;
      auto want = at::zeros({(numel + multiple - 1) / multiple * multiple});
      at::full_like(want, std::nan(""));  // whoever gets this memory next clears what he leaves out
      Bucket bucket(place, shards, multiple, at::kFloat);
      for (std::size_t i = 0; i < place.slots.size(); ++i) {
        EXPECT_FALSE(bucket.full());
        const auto& slot = place.slots[i];
        const auto gradient = sample(slot.numel, i + 1);
        bucket.copy_in(i, gradient.view({1, slot.numel}), 1.0);
        for (int64_t element = 0; element < slot.numel; ++element) {
          const int64_t row = element / slot.shard_numel;
          const int64_t column = slot.offset + element % slot.shard_numel;
          want[row * place.shard_numel + column] = gradient[element];
        }
      }
      EXPECT_TRUE(bucket.full());
      EXPECT_THAT(bucket.buffer(), HasTheBitsOf(want)) << shards << " shards";
    }
  }
}

// Small ones are copied as bytes.
TEST(Bucket, SizeLayoutAndTypeOfAGradientDoNotMatter) {
  for (const int64_t numel : {5, 20'000}) {
    const auto table = table_of({numel, 4});
    const layout::BucketPlan plan(table, 3, 100'000);
    const auto& place = plan.buckets()[0];
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto gradient = sample(numel, 3, dtype);
      const int64_t columns = (numel + 2) / 3;
      const auto want = at::cat({gradient, at::zeros({3 * columns - numel}, dtype)});
      for (const auto& given :
           {gradient, at::stack({gradient, gradient}, 1).select(1, 0), gradient.to(at::kFloat)}) {
        at::full({3 * place.shard_numel}, std::nan(""), dtype);
        Bucket bucket(place, 3, 1, dtype);
        bucket.copy_in(1, given, 1.0);
        EXPECT_TRUE(bucket.holds(1) && !bucket.full());
        EXPECT_THAT(bucket.columns_of(1).contiguous(), HasTheBitsOf(want.view({3, columns})));
        bucket.copy_in(0, sample(4, 9, dtype), 1.0);
        EXPECT_TRUE(bucket.full());
        EXPECT_THAT(bucket.columns_of(1).contiguous(), HasTheBitsOf(want.view({3, columns})));
      }
    }
  }
}

TEST(Bucket, TheGradientOfABucketOfOneIsTheBufferIfNobodyElseHasIt) {
  const auto table = table_of({6, 5});
  const layout::BucketPlan plan(table, 2, 1);
  const auto& even = plan.buckets()[1];
  const auto& odd = plan.buckets()[0];  // its last row has padding
  const auto want = sample(6, 1);
  const auto taken = [&](const layout::Bucket& place, at::Tensor gradient, double weight,
                         at::ScalarType dtype = at::kFloat) {
    const auto* memory = gradient.const_data_ptr();
    Bucket bucket(place, 2, 2, dtype);
    EXPECT_EQ(bucket.bytes(), 6 * static_cast<int64_t>(c10::elementSize(dtype)));
    bucket.copy_in(0, std::move(gradient), weight);
    EXPECT_TRUE(bucket.full() && bucket.holds(0));
    if (place == even) EXPECT_THAT(bucket.buffer(), HasTheBitsOf((want * weight).to(dtype)));
    return bucket.buffer().const_data_ptr() == memory;
  };
  EXPECT_TRUE(taken(even, sample(6, 1), 1.0));
  EXPECT_TRUE(taken(even, sample(6, 1).view({3, 2}), 1.0));
  EXPECT_FALSE(taken(odd, sample(5, 1), 1.0));
  EXPECT_FALSE(taken(even, sample(6, 1), 2.0));
  EXPECT_FALSE(taken(even, sample(6, 1), 1.0, at::kBFloat16));
  EXPECT_FALSE(taken(even, at::cat({sample(6, 1), sample(6, 2)}).narrow(0, 0, 6), 1.0));
  EXPECT_FALSE(taken(even, at::stack({sample(6, 1), sample(6, 2)}, 1).select(1, 0), 1.0));
  auto seen = sample(6, 1);
  EXPECT_FALSE(taken(even, seen, 1.0)) << "its caller has it still";
  const auto view = seen.variable_data(), other = seen.variable_data();
  EXPECT_FALSE(taken(even, std::move(seen), 1.0)) << "its memory is theirs";
  EXPECT_THAT(view, HasTheBitsOf(want));
}

TEST(Bucket, ABucketOfOneAddsToWhatItHasTaken) {
  const auto table = table_of({6});
  const layout::BucketPlan plan(table, 2, 100);
  Bucket bucket(plan.buckets()[0], 2, 1, at::kFloat);
  const auto second = sample(6, 2);
  bucket.copy_in(0, sample(6, 1), 1.0);
  bucket.copy_in(0, second, 1.0);
  EXPECT_THAT(bucket.buffer(), HasTheBitsOf(sample(6, 1) + sample(6, 2)));
  EXPECT_THAT(second, HasTheBitsOf(sample(6, 2)));
  Bucket nothing(plan.buckets()[0], 2, 1, at::kFloat), read(plan.buckets()[0], 2, 1, at::kFloat);
  at::full({6}, std::nan(""));
  EXPECT_THAT(nothing.buffer(), HasTheBitsOf(at::zeros({6})));
  EXPECT_THAT(read.columns_of(0), HasTheBitsOf(at::zeros({2, 3})));
}

TEST(Bucket, WhatContributedNothingIsZero) {
  const auto table = table_of({5, 7, 2});
  const layout::BucketPlan plan(table, 3, 100);
  const auto& place = plan.buckets()[0];
  const auto empty_bucket = [&] {
    at::full({3 * place.shard_numel}, std::nan(""));
    return Bucket(place, 3, 1, at::kFloat);
  };
  EXPECT_THAT(empty_bucket().buffer(), HasTheBitsOf(at::zeros({3 * place.shard_numel})));
  EXPECT_THAT(empty_bucket().columns_of(1), HasTheBitsOf(at::zeros({3, 3})));
  auto bucket = empty_bucket();
  bucket.columns_of(1);
  bucket.copy_in(1, sample(7, 4), 1.0);
  EXPECT_THAT(bucket.columns_of(1),
              HasTheBitsOf(at::cat({sample(7, 4), at::zeros({2})}).view({3, 3})));
  EXPECT_THAT(bucket.columns_of(0), HasTheBitsOf(at::zeros({3, 1})));
}

TEST(Bucket, ASecondContributionIsAddedAndRoundedToTheBuffer) {
  const auto table = table_of({5, 7});
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const layout::BucketPlan plan(table, 2, 100);
    const auto& place = plan.buckets()[0];
    Bucket bucket(place, 2, 2, dtype);
    const auto first = sample(7, 1, dtype), second = sample(7, 2, dtype);
    bucket.copy_in(0, first, 1.0);
    bucket.copy_in(0, second, 1.0);
    EXPECT_FALSE(bucket.full()) << "the same slot twice is one slot";
    Bucket once(place, 2, 2, dtype);
    once.copy_in(0, (first.to(at::kFloat) + second.to(at::kFloat)).to(dtype), 1.0);
    EXPECT_THAT(bucket.buffer(), HasTheBitsOf(once.buffer()));
  }
}

TEST(Bucket, ExactSumsRoundNothing) {
  const auto table = table_of({5, 7});
  const layout::BucketPlan plan(table, 2, 100);
  const auto& place = plan.buckets()[0];
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> terms;
    for (uint64_t i = 0; i < 4; ++i) terms.push_back(sample(7, i, dtype));
    Bucket wide(place, 2, 4, kernels::kExactSum), converted(place, 2, 4, dtype);
    for (const auto& term : terms) wide.copy_in(0, term, 1.0);
    converted.copy_in(0, terms[3], 1.0);
    EXPECT_TRUE(converted.holds(0) && !converted.holds(1) && !converted.holds_exact_sums());
    converted.to_exact_sums();
    EXPECT_TRUE(converted.holds(0) && converted.holds_exact_sums());
    for (int i = 0; i < 3; ++i) converted.copy_in(0, terms[static_cast<std::size_t>(i)], 1.0);
    Bucket sums(place, 2, 4, at::kFloat);
    sums.copy_in(0, kernels::exact_row_sum(at::stack(terms), at::kFloat), 1.0);
    EXPECT_THAT(kernels::exact_rounded(wide.buffer()), HasTheBitsOf(sums.buffer()));
    EXPECT_THAT(kernels::exact_rounded(converted.buffer()), HasTheBitsOf(sums.buffer()));
    EXPECT_THAT(kernels::exact_rounded(converted.columns_of(0)), HasTheBitsOf(sums.columns_of(0)));
  }
}

TEST(Bucket, AWeightIsMultipliedInFp32) {
  const auto table = table_of({700});
  const layout::BucketPlan plan(table, 1, 1000);
  Bucket bucket(plan.buckets()[0], 1, 1, at::kBFloat16);
  const auto gradient = sample(700, 1, at::kBFloat16), other = sample(700, 2, at::kBFloat16);
  bucket.copy_in(0, gradient, 1.0);
  bucket.copy_in(0, other, 3.0);
  const auto tripled = other.to(at::kFloat) * 3;
  EXPECT_THAT(bucket.buffer(), HasTheBitsOf((gradient.to(at::kFloat) + tripled).to(at::kBFloat16)));
}

TEST(Bucket, AGradientThatIsNotContiguousIsReadInItsOwnOrder) {
  const auto table = table_of({6});
  const layout::BucketPlan plan(table, 4, 100);
  Bucket bucket(plan.buckets()[0], 4, 1, at::kFloat);
  Bucket plain(plan.buckets()[0], 4, 1, at::kFloat);
  const auto gradient = sample(6, 1).view({2, 3}).t();
  bucket.copy_in(0, gradient, 1.0);
  plain.copy_in(0, gradient.contiguous(), 1.0);
  EXPECT_THAT(bucket.buffer(), HasTheBitsOf(plain.buffer()));
}

}  // namespace
}  // namespace equigrad::bucket
