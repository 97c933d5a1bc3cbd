// Exact sums as tensors: rows, copies, views and zeros keep their meaning.
#include "engine/kernels/exact_tensor.hpp"

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/sample.hpp"
#include "reference/sum.hpp"

namespace equigrad::kernels {
namespace {

using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using ::testing::HasSubstr;

// By the reference, which adds whole numbers.
at::Tensor grid_sum(const at::Tensor& rows) {
  return reference::sum_contributions({rows.unbind(0)}, reference::SumOrder::ExactGrid, at::kFloat);
}

TEST(ExactTensor, RowsSumToTheReferencesRounded) {
  for (const int64_t rows : {1, 2, 3, 5}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto all = sample(rows * 700, 11, dtype).view({rows, 700});
      const auto want = grid_sum(all);
      EXPECT_THAT(exact_row_sum(all, at::kFloat), HasTheBitsOf(want));
      EXPECT_THAT(exact_row_sum(all, at::kBFloat16), HasTheBitsOf(want.to(at::kBFloat16)));
      const auto sums = exact_row_sum(all, kExactSum);
      EXPECT_THAT(exact_rounded(sums), HasTheBitsOf(want));
      EXPECT_THAT(exact_rounded(sums.slice(0, 3, 600, 2)), HasTheBitsOf(want.slice(0, 3, 600, 2)));
    }
  }
}

TEST(ExactTensor, SumsOfSumsAreTheSumOfAllTerms) {
  const auto all = sample(6 * 300, 3).view({6, 300});
  auto sums = at::zeros({300}, kExactSum);  // of nothing
  exact_add_(sums, all[0]);
  exact_add_(sums, exact_row_sum(all.narrow(0, 1, 3), kExactSum));
  exact_add_(sums, at::zeros({300}, kExactSum));
  const auto rest = at::stack({exact_of(all[4]), exact_of(all[5]), sums});
  EXPECT_THAT(exact_row_sum(rest, at::kFloat), HasTheBitsOf(grid_sum(all)));
  exact_add_(sums, rest[0], /*is_first=*/true);
  EXPECT_THAT(exact_rounded(sums), HasTheBitsOf(all[4]));
}

TEST(ExactTensor, SumsTravelAsPairsOfDoubles) {
  const auto sums = exact_of(sample(9, 1));
  EXPECT_EQ(as_sent(sums).scalar_type(), at::kDouble);
  EXPECT_EQ(as_sent(sums).numel(), 18);
  EXPECT_TRUE(as_sent(sums).is_alias_of(sums));
  const auto plain = sample(9, 1);
  EXPECT_TRUE(as_sent(plain).is_same(plain));
}

TEST(ExactTensor, ATypeWithoutASumIsNamed) {
  const auto wrong = at::zeros({2, 3}, at::kLong);
  EXPECT_THAT(error_of([&] { exact_row_sum(wrong, at::kFloat); }),
              HasSubstr("expected dtype Float, BFloat16 or Half, got Long"));
  EXPECT_THAT(
      error_of([&] { exact_rounded(at::empty({3}, at::device(at::kMeta).dtype(kExactSum))); }),
      HasSubstr("expected tensors on the CPU, got one on meta"));
}

}  // namespace
}  // namespace equigrad::kernels
