// Kernels on a CUDA device have the bits of the CPU's: every length up to 4,100, long ones, and
// views that begin anywhere. The label is `gpu`; without a device these tests fail and say so.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "conformance/testing/bits_matcher.hpp"
#include "engine/kernels/device_stream.hpp"
#include "engine/kernels/element_of.hpp"
#include "engine/kernels/largest.hpp"
#include "engine/kernels/square_sum.hpp"
#include "engine/kernels/tree_sum.hpp"

namespace equigrad::kernels {
namespace {

using conformance::oracle::HasTheBitsOf;

constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr int64_t kMost = 4'100, kLarge = (int64_t{1} << 25) + 13;

class GpuKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_GT(at::getNumGPUs(), 0U)
        << "expected a CUDA device, got none. The `gpu` preset is for machines that have one.";
  }
};

// Normal, subnormal and zero numbers of every type, of both signs.
at::Tensor numbers(int64_t numel, uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  const auto sizes = torch::randint(-30, 12, {numel}, generator).to(at::kFloat);
  auto values = torch::randn({numel}, generator) * sizes.exp2();
  return values.masked_fill_(torch::rand({numel}, generator).lt(0.05), 0);
}

Element type_of(const at::Tensor& tensor) { return element_of(tensor.scalar_type(), "test"); }

at::Tensor sum_on_cpu(const at::Tensor& rows, at::ScalarType to) {
  const auto sum = at::empty({rows.size(1)}, to);
  std::vector<const void*> inputs;
  for (int64_t row = 0; row < rows.size(0); ++row) inputs.push_back(rows[row].const_data_ptr());
  tree_sum(inputs.data(), type_of(rows), static_cast<int>(inputs.size()), rows.size(1),
           sum.mutable_data_ptr(), type_of(sum));
  return sum;
}

// Of rows that begin `offset` elements behind an aligned address.
at::Tensor sum_on_cuda(const at::Tensor& rows, at::ScalarType to, int64_t offset) {
  const auto flat = at::empty({rows.numel() + offset}, rows.options().device(at::kCUDA));
  const auto there = flat.slice(0, offset);
  there.copy_(rows.flatten());
  const auto room = at::zeros({rows.size(1) + offset}, there.options().dtype(to));
  const auto sum = room.slice(0, offset);
  tree_sum_cuda(there.const_data_ptr(), type_of(rows), static_cast<int>(rows.size(0)), rows.size(1),
                sum.mutable_data_ptr(), type_of(sum), current_stream(flat.device()));
  return sum.cpu();
}

TEST_F(GpuKernels, TreeSumsOfEveryLengthHaveTheBitsOfTheCpu) {
  const auto all = numbers(9 * kMost, 1);
  for (int64_t numel = 0; numel <= kMost; ++numel) {
    const int64_t rows = 1 + numel % 9, offset = numel % 8;
    const auto from = kTypes[static_cast<std::size_t>(numel % 3)];
    const auto to = kTypes[static_cast<std::size_t>(numel / 3 % 3)];
    const auto terms = all.slice(0, 0, rows * numel).to(from).view({rows, numel});
    ASSERT_THAT(sum_on_cuda(terms, to, offset), HasTheBitsOf(sum_on_cpu(terms, to)))
        << rows << " rows of " << numel << " at " << offset;
  }
}

TEST_F(GpuKernels, TreeSumsOfManyRowsAndOfLongOnesHaveTheBitsOfTheCpu) {
  for (const auto& [rows, numel] : {std::pair<int64_t, int64_t>{2, kLarge},
                                    {3, kLarge / 2},
                                    {64, 10'007},
                                    {65, 10'007},
                                    {1'025, 333}}) {
    const auto terms = numbers(rows * numel, 2).view({rows, numel});
    EXPECT_THAT(sum_on_cuda(terms, at::kFloat, 0), HasTheBitsOf(sum_on_cpu(terms, at::kFloat)))
        << rows << " rows of " << numel;
  }
}

// Two calls add up.
template <class Sum, class Kernel>
void expect_words_of_the_cpu(const at::Tensor& values, int64_t offset, Kernel kernel) {
  Sum cpu;
  cpu.add(values.const_data_ptr(), type_of(values), values.numel());
  cpu.add(values.const_data_ptr(), type_of(values), values.numel() / 2);
  const auto flat = at::empty({values.numel() + offset}, values.options().device(at::kCUDA));
  const auto there = flat.slice(0, offset);
  there.copy_(values);
  Sum cuda;
  const auto count = static_cast<int64_t>(sizeof(Sum) / sizeof(int64_t));
  const auto words = at::zeros({count}, there.options().dtype(at::kLong));
  auto* const stream = current_stream(flat.device());
  kernel(there.const_data_ptr(), type_of(values), values.numel(),
         words.template mutable_data_ptr<int64_t>(), stream);
  kernel(there.const_data_ptr(), type_of(values), values.numel() / 2,
         words.template mutable_data_ptr<int64_t>(), stream);
  const auto arrived = words.cpu();
  std::copy_n(arrived.const_data_ptr<int64_t>(), count, cuda.words());
  ASSERT_EQ(cuda.value(), cpu.value()) << values.numel() << " at " << offset;
  ASSERT_EQ(cuda.non_finite_numel(), cpu.non_finite_numel()) << values.numel() << " at " << offset;
}

void expect_measures_of_the_cpu(const at::Tensor& values, int64_t offset) {
  expect_words_of_the_cpu<SquareSum>(values, offset, square_sum_cuda);
  expect_words_of_the_cpu<Largest>(values, offset, largest_cuda);
}

TEST_F(GpuKernels, SquaresAndLargestOfEveryLengthAreThoseOfTheCpu) {
  const auto all = numbers(kMost, 3);
  for (int64_t numel = 0; numel <= kMost; ++numel) {
    auto values = all.slice(0, 0, numel).to(kTypes[static_cast<std::size_t>(numel % 3)]);
    if (numel % 5 == 1) values[numel / 2] = std::numeric_limits<float>::infinity();
    if (numel % 7 == 1) values[numel / 3] = std::numeric_limits<float>::quiet_NaN();
    ASSERT_NO_FATAL_FAILURE(expect_measures_of_the_cpu(values, numel % 8));
  }
}

TEST_F(GpuKernels, SquaresAndLargestOfLongOnesAreThoseOfTheCpu) {
  for (const auto dtype : kTypes) {
    expect_measures_of_the_cpu(numbers(kLarge, 4).to(dtype), 1);
    // All of one exponent, and the largest mantissa: a block's counter at its largest.
    expect_measures_of_the_cpu(at::full({kLarge}, std::nextafter(2.0F, 0.0F)).to(dtype), 0);
  }
}

// What the engine leaves to torch: every pattern of 16 bits widens, and fp32 is rounded to nearest.
TEST_F(GpuKernels, ConversionsHaveTheBitsOfTheCpu) {
  const auto patterns = at::arange(0, 65'536, at::kInt).to(at::kShort);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    auto narrow = patterns.view(dtype);
    narrow = narrow.masked_select(narrow.isfinite());
    EXPECT_THAT(narrow.cuda().to(at::kFloat).cpu(), HasTheBitsOf(narrow.to(at::kFloat)));
    const auto wide = numbers(1'000'003, 5);
    EXPECT_THAT(wide.cuda().to(dtype).cpu(), HasTheBitsOf(wide.to(dtype)));
    // Half way between two neighbours, and one bit beside it.
    const int half = dtype == at::kBFloat16 ? 0x8000 : 0x1000;
    const auto bits = narrow.to(at::kFloat).view(at::kInt).bitwise_and(~(2 * half - 1));
    for (const int beside : {-1, 0, 1}) {
      const auto near = (bits + half + beside).view(at::kFloat);
      EXPECT_THAT(near.cuda().to(dtype).cpu(), HasTheBitsOf(near.to(dtype)));
    }
  }
}

}  // namespace
}  // namespace equigrad::kernels
