// The norm of a sharded gradient, clipping, and finding what is not finite.
#include "engine/shard/gradient_shard.hpp"

#include <array>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "reference/norm.hpp"

namespace equigrad::shard {
namespace {

using conformance::sample;
using conformance::table_of;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr std::array kNorms = {NormType::Two, NormType::Infinity};

double norm_by_the_reference(const at::Tensor& gradient, NormType type = NormType::Two) {
  reference::ExactSum sum;
  double most = 0;
  const auto values = gradient.to(at::kDouble);
  for (int64_t i = 0; i < values.numel(); ++i) {
    sum.add_square(values.const_data_ptr<double>()[i]);
    most = std::max(most, std::fabs(values.const_data_ptr<double>()[i]));
  }
  return type == NormType::Two ? std::sqrt(sum.value()) : most;
}

void the_norm_is_the_wholes(RankContext& context, at::ScalarType dtype, NormType type) {
  const auto whole = sample(1201, 5, dtype);
  const double want = norm_by_the_reference(whole, type);
  auto* group = context.group().get();
  EXPECT_EQ(measure(whole, nullptr, type).norm, want);
  const int w = context.world_size(), rank = context.rank();
  const auto slice = whole.tensor_split(w)[static_cast<std::size_t>(rank)];
  EXPECT_EQ(measure(slice.contiguous(), group, type).norm, want);
  // One rank has nearly all, another nothing.
  const int64_t cut = rank == 0 ? 0 : rank == 1 ? 1 : 1201;
  const int64_t end = rank == 0 ? (w == 1 ? 1201 : 1) : 1201;
  EXPECT_EQ(measure(whole.slice(0, cut, end).contiguous(), group, type).norm, want);
}

TEST(GradientShard, TheNormDoesNotDependOnThePartition) {
  for (const int world : {1, 2, 3, 4}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         for (const auto dtype : kTypes) {
                           for (const auto type : kNorms) {
                             the_norm_is_the_wholes(context, dtype, type);
                           }
                         }
                       }),
              "");
  }
}

TEST(GradientShard, NumbersThatAreNotFiniteAreCountedOverAllRanks) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       for (const auto dtype : kTypes) {
                         auto slice = at::full({4}, 2.0F, dtype);
                         for (int64_t i = 0; i < context.rank(); ++i)
                           slice[i] = i == 0 ? INFINITY : NAN;
                         auto* group = context.group().get();
                         const auto length = measure(slice, group);
                         EXPECT_EQ(length.non_finite_numel, 3);
                         EXPECT_EQ(length.norm, 6.0) << "of nine twos";
                         slice[3] = -2 - context.rank();
                         const auto largest = measure(slice, group, NormType::Infinity);
                         EXPECT_EQ(largest.non_finite_numel, 3);
                         EXPECT_EQ(largest.norm, 4.0);
                       }
                     }),
            "");
}

TEST(GradientShard, AnotherDtypeIsAnError) {
  for (const auto type : kNorms) {
    EXPECT_THAT(conformance::error_of([&] { measure(at::ones({2}, at::kDouble), nullptr, type); }),
                testing::HasSubstr("expected dtype Float, BFloat16 or Half, got Double"));
  }
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

// M(float(g) factor), the factor rounded once to fp32.
at::Tensor clipped_plainly(const at::Tensor& gradient, double factor) {
  const auto wide = gradient.to(at::kFloat);
  for (int64_t i = 0; i < wide.numel(); ++i) {
    wide.mutable_data_ptr<float>()[i] *= static_cast<float>(factor);
  }
  return wide.to(gradient.scalar_type());
}

TEST(GradientShard, AboveTheThresholdEveryElementIsMultipliedOnceInFp32) {
  for (const auto dtype : kTypes) {
    for (const int64_t numel : {1, 2, 31, 64, 130, 1033}) {
      const auto gradient = sample(numel, 2, dtype);
      const double norm = measure(gradient, nullptr).norm;
      for (const double threshold : {norm * 0.9999999, norm / 3, 1e-3}) {
        const auto clipped = gradient.clone();
        const double factor = clip_(clipped, norm, threshold);
        EXPECT_EQ(factor, reference::clip_factor(norm, threshold));
        EXPECT_THAT(clipped, HasTheBitsOf(clipped_plainly(gradient, factor)))
            << c10::toString(dtype) << ", " << numel;
      }
    }
  }
}

// A factor rounded to 16 bits, or a product in them, would end elsewhere.
TEST(GradientShard, TheFactorOfA16BitGradientIsNotRoundedTo16Bits) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto gradient = sample(1033, 2, dtype);
    const double norm = measure(gradient, nullptr).norm;
    const auto clipped = gradient.clone();
    const double factor = clip_(clipped, norm, norm / 3);
    const auto rounded = at::full({1}, factor, dtype).item<double>();
    EXPECT_THAT(clipped, testing::Not(HasTheBitsOf(clipped_plainly(gradient, rounded))));
  }
}

void the_first_one_is_named(RankContext& context, at::ScalarType dtype) {
  const auto table = table_of({6, 7, 8, 9});
  const layout::BucketPlan plan(table, context.world_size(), 10);
  const auto clean = at::ones({plan.shard_numel()}, dtype);
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
}

TEST(GradientShard, TheFirstParameterInRegistrationOrderIsNamedWhicheverRankHasIt) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         for (const auto dtype : kTypes) the_first_one_is_named(context, dtype);
                       }),
              "");
  }
}

}  // namespace
}  // namespace equigrad::shard
