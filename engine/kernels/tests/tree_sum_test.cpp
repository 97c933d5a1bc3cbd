// The tree sum is the level-by-level sum of whole rows, whatever the number of rows and columns.
#include "engine/kernels/tree_sum.hpp"

#include <array>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/kernels/element_of.hpp"

namespace equigrad::kernels {
namespace {

using conformance::sample;
using conformance::sum_of_tree;
using conformance::oracle::HasTheBitsOf;

constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

Element type_of(at::ScalarType dtype) { return element_of(dtype, "test"); }

at::Tensor kernel(const at::Tensor& rows, at::ScalarType output_type) {
  auto output = at::full({rows.size(1)}, NAN, output_type);
  std::vector<const void*> begins;
  for (const auto& row : rows.unbind(0)) begins.push_back(row.const_data_ptr());
  tree_sum(begins.data(), type_of(rows.scalar_type()), static_cast<int>(rows.size(0)), rows.size(1),
           output.mutable_data_ptr(), type_of(output_type));
  return output;
}

TEST(TreeSum, IsTheLevelByLevelSumOfRows) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    for (const int64_t n : {1, 3, 2047, 2048, 2049, 5001}) {
      for (const auto input_type : kTypes) {
        const auto input = sample(rows * n, 7, input_type).view({rows, n});
        const auto want = sum_of_tree(input.unbind(0));
        for (const auto output_type : kTypes) {
          EXPECT_THAT(kernel(input, output_type), HasTheBitsOf(want.to(output_type)))
              << rows << " rows of " << n << " " << input_type << " to " << output_type;
        }
      }
    }
  }
}

TEST(TreeSum, IsNotTheSumFromTheFirstRowToTheLast) {
  const auto input = sample(4 * 100, 3).view({4, 100});
  auto running = input[0].clone();
  for (int64_t row = 1; row < 4; ++row) running = running + input[row];
  EXPECT_THAT(kernel(input, at::kFloat), testing::Not(HasTheBitsOf(running)));
}

TEST(TreeSum, AColumnDoesNotDependOnItsNeighbours) {
  const auto input = sample(5 * 3000, 9).view({5, 3000});
  const auto whole = kernel(input, at::kFloat);
  EXPECT_THAT(whole.slice(0, 1500, 2600),
              HasTheBitsOf(kernel(input.slice(1, 1500, 2600).contiguous(), at::kFloat)));
}

TEST(TreeSum, SubnormalAndOverflowingSumsOfFp16) {
  const float tiny = 0x1p-24F, infinity = INFINITY;
  const auto rows = at::tensor({tiny, 3 * tiny, 0x1p-14F, 65504.0F, 65504.0F, infinity,  //
                                tiny, -tiny, -tiny, 15.0F, 16.0F, -1.0F})
                        .view({2, 6});
  const auto want = at::tensor({2 * tiny, 2 * tiny, 0x1.FF8p-15F, 65504.0F, infinity, infinity});
  EXPECT_THAT(kernel(rows.to(at::kHalf), at::kFloat).narrow(0, 0, 3),
              HasTheBitsOf(want.narrow(0, 0, 3)));
  EXPECT_THAT(kernel(rows.to(at::kHalf), at::kHalf), HasTheBitsOf(want.to(at::kHalf)));
  EXPECT_THAT(kernel(rows, at::kHalf), HasTheBitsOf(want.to(at::kHalf)));
}

}  // namespace
}  // namespace equigrad::kernels
