// The norm of a sharded gradient, clipping, and finding what is not finite.
#include "engine/shard/gradient_shard.hpp"

#include "conformance/oracle/bits_matcher.hpp"
#include "conformance/ranks/rank_test.hpp"
#include "conformance/sample.hpp"
#include "reference/norm.hpp"

namespace equigrad::shard {
namespace {

using conformance::sample;
using conformance::table_of;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

double norm_by_the_reference(const at::Tensor& values) {
  reference::ExactSum sum;
  for (int64_t i = 0; i < values.numel(); ++i) {
    sum.add_square(static_cast<double>(values.const_data_ptr<float>()[i]));
  }
  return std::sqrt(sum.value());
}

TEST(GradientShard, TheNormDoesNotDependOnThePartition) {
  for (const int world : {1, 2, 3, 4}) {
    EXPECT_EQ(
        on_ranks(world,
                 [](RankContext& context) {
                   const auto whole = sample(1201, 5);
                   const double want = norm_by_the_reference(whole);
                   EXPECT_EQ(measure(whole, nullptr).norm, want);
                   const int w = context.world_size(), rank = context.rank();
                   const auto slice = whole.tensor_split(w)[static_cast<std::size_t>(rank)];
                   EXPECT_EQ(measure(slice.contiguous(), context.group().get()).norm, want);
                   // One rank has nearly all, another nothing.
                   const int64_t cut = rank == 0 ? 0 : rank == 1 ? 1 : 1201;
                   const int64_t end = rank == 0 ? (w == 1 ? 1201 : 1) : 1201;
                   EXPECT_EQ(
                       measure(whole.slice(0, cut, end).contiguous(), context.group().get()).norm,
                       want);
                 }),
        "");
  }
}

TEST(GradientShard, NumbersThatAreNotFiniteAreCountedOverAllRanks) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       auto slice = at::full({4}, 2.0F);
                       for (int64_t i = 0; i < context.rank(); ++i)
                         slice[i] = i == 0 ? INFINITY : NAN;
                       const auto found = measure(slice, context.group().get());
                       EXPECT_EQ(found.non_finite_numel, 3);
                       EXPECT_EQ(found.norm, 6.0) << "of nine twos";
                     }),
            "");
}

TEST(GradientShard, BelowTheThresholdClippingChangesNoBit) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       const auto gradient = sample(33, 2);
                       const double norm = measure(gradient, nullptr).norm;
                       for (const double threshold : {norm, norm * 2}) {
                         const auto clipped = gradient.clone();
                         EXPECT_EQ(clip_(clipped, norm, threshold), 1.0);
                         EXPECT_THAT(clipped, HasTheBitsOf(gradient));
                       }
                     }),
            "");
}

TEST(GradientShard, AboveTheThresholdEveryElementIsMultipliedOnceInFp32) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       const auto gradient = sample(1033, 2);
                       const double norm = measure(gradient, nullptr).norm;
                       for (const double threshold : {norm * 0.9999999, norm / 3, 1e-3}) {
                         const auto clipped = gradient.clone();
                         const double factor = clip_(clipped, norm, threshold);
                         EXPECT_EQ(factor, reference::clip_factor(norm, threshold));
                         auto want = at::empty_like(gradient);
                         for (int64_t i = 0; i < gradient.numel(); ++i) {
                           want.mutable_data_ptr<float>()[i] =
                               gradient.const_data_ptr<float>()[i] * static_cast<float>(factor);
                         }
                         EXPECT_THAT(clipped, HasTheBitsOf(want));
                       }
                     }),
            "");
}

TEST(GradientShard, TheFirstParameterInRegistrationOrderIsNamedWhicheverRankHasIt) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         const auto table = table_of({6, 7, 8, 9});
                         const layout::BucketPlan plan(table, context.world_size(), 10);
                         const auto clean = at::ones({plan.shard_numel()});
                         auto& group = *context.group();
                         EXPECT_EQ(first_non_finite(clean, plan, 4, group), std::nullopt);
                         for (const std::size_t bad : std::vector<std::size_t>{0, 1, 2, 3}) {
                           auto gradient = clean.clone();
                           const auto place = [&](std::size_t parameter) {
                             const auto where = *plan.slot_of(parameter);
                             return plan.buckets()[where.bucket].offset + plan.slot(where).offset;
                           };
                           gradient[place(3)] = INFINITY;
                           if (context.rank() == static_cast<int>(bad) % context.world_size()) {
                             gradient[place(bad)] = NAN;
                           }
                           EXPECT_EQ(first_non_finite(gradient, plan, 4, group), bad);
                         }
                       }),
              "");
  }
}

}  // namespace
}  // namespace equigrad::shard
