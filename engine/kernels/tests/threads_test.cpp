// No bit of a sum, a norm or an update depends on the number of threads, which do take part.
#include "conformance/testing/threads.hpp"

#include <array>

#include "conformance/testing/numbers.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/kernels/element_of.hpp"
#include "engine/kernels/exact_tensor.hpp"
#include "engine/kernels/largest.hpp"
#include "engine/kernels/square_sum.hpp"
#include "engine/kernels/tree_sum.hpp"

namespace equigrad::kernels {
namespace {

using conformance::expect_the_bits_of_one_thread;
using conformance::kManyNumel;
using conformance::numels_for_threads;
using conformance::sample;
using conformance::ThreadsGuard;
using conformance::kernels::kElements;
using conformance::kernels::name_of;
using conformance::kernels::Numbers;

constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr int64_t kRows = 6;

// The first columns of one matrix, made once.   [rows, numel]
at::Tensor rows_of(int64_t rows, int64_t numel, at::ScalarType dtype) {
  static const auto all = sample(kRows * kManyNumel, 5).view({kRows, kManyNumel});
  return all.narrow(0, 0, rows).narrow(1, 0, numel).to(dtype).contiguous();
}

at::Tensor tree_of(const at::Tensor& rows, at::ScalarType dtype) {
  auto output = at::full({rows.size(1)}, NAN, dtype);
  std::vector<const void*> begins;
  for (const auto& row : rows.unbind(0)) begins.push_back(row.const_data_ptr());
  tree_sum(begins.data(), element_of(rows.scalar_type(), "test"), static_cast<int>(rows.size(0)),
           rows.size(1), output.mutable_data_ptr(), element_of(dtype, "test"));
  return output;
}

std::string named(const std::string& what, int64_t rows, at::ScalarType dtype) {
  return what + " of " + std::to_string(rows) + " rows, " + c10::toString(dtype);
}

TEST(Threads, ChangeNoBitOfATreeSum) {
  for (const int64_t numel : numels_for_threads())
    for (const int64_t rows : {2, 5})
      for (const auto from : kTypes) {
        const auto given = rows_of(rows, numel, from);
        for (const auto to : kTypes)
          expect_the_bits_of_one_thread(named("the tree", rows, from), numel, 1, [&](int threads) {
            const ThreadsGuard guard(threads);
            return std::vector{tree_of(given, to)};
          });
      }
}

TEST(Threads, ChangeNoBitOfAnExactSum) {
  for (const int64_t numel : numels_for_threads())
    for (const int64_t rows : {1, 2, 3, 4, 6})
      for (const auto dtype : kTypes) {
        if (rows > 2 && dtype == at::kHalf) continue;
        const auto given = rows_of(rows, numel, dtype);
        const auto sum = [&](int threads) {
          const ThreadsGuard guard(threads);
          return std::vector{exact_row_sum(given, at::kFloat)};
        };
        expect_the_bits_of_one_thread(named("the exact sum", rows, dtype), numel, 1, sum);
      }
}

TEST(Threads, ChangeNoBitOfARunningSum) {
  for (const int64_t numel : numels_for_threads())
    for (const auto dtype : kTypes) {
      const auto given = rows_of(3, numel, dtype);
      const auto others = exact_of(rows_of(4, numel, at::kFloat)[3]);
      expect_the_bits_of_one_thread(named("running sums", 3, dtype), numel, 4, [&](int threads) {
        const ThreadsGuard guard(threads);
        const auto sums = exact_row_sum(given, kExactSum);
        const auto first = at::view_as_real(sums).clone();
        exact_add_(sums, given[1]);
        exact_add_(sums, others);
        return std::vector{first, at::view_as_real(sums), exact_rounded(sums)};
      });
    }
}

// The exact sum of squares, rounded, and the count.
template <class Norm>
at::Tensor norm_of(const Numbers& numbers, const std::vector<char>& memory) {
  Norm norm;
  for (int times = 0; times < 2; ++times)
    norm.add(memory.data() + element_bytes(numbers.type()), numbers.type(), numbers.numel());
  return at::tensor({norm.value(), static_cast<double>(norm.non_finite_numel())}, at::kDouble);
}

TEST(Threads, ChangeNoBitOfANorm) {
  for (const int64_t numel : numels_for_threads())
    for (const auto type : kElements) {
      auto wild = Numbers::wild(type, numel, 3), tame = Numbers(type, numel);
      const auto values = rows_of(1, numel, at::kFloat).flatten();
      const auto* from = values.const_data_ptr<float>();
      for (int64_t i = 0; i < numel; ++i) tame.set(i, from[i]);
      for (const auto* numbers : {&wild, &tame}) {
        const auto memory = numbers->packed();
        expect_the_bits_of_one_thread("the norms, " + name_of(type), numel, 4, [&](int threads) {
          const ThreadsGuard guard(threads);
          return std::vector{norm_of<SquareSum>(*numbers, memory),
                             norm_of<Largest>(*numbers, memory)};
        });
      }
    }
}

}  // namespace
}  // namespace equigrad::kernels
