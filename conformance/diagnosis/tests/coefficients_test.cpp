// Matrices of coefficients: fitted, read off a probe, and said in words.
#include "conformance/diagnosis/coefficients.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <stdexcept>

namespace equigrad::conformance::oracle {
namespace {

TEST(Coefficients, EveryPatternHasItsWords) {
  const std::vector<std::pair<Matrix, std::string>> patterns = {
      {{{1, 1, 1}, {1, 1, 1}}, ""},
      {{{1, 1, 1}, {1, 0, 1}}, "micro-batch 2 of rank 1 is missing"},
      {{{1, 1, 1}, {1, 0, 0}}, "micro-batches 2 and 3 of rank 1 are missing"},
      {{{0, 1, 1}, {1, 0, 1}}, "micro-batch 1 of rank 0, micro-batch 2 of rank 1 are missing"},
      {{{1, 2, 1}, {1, 1, 1}}, "micro-batch 2 of rank 0 is counted twice"},
      {{{1, 1, 1}, {0, 0, 0}}, "rank 1 is missing"},
      {{{1, 1, 1}, {2, 2, 2}}, "rank 1 is counted twice"},
      {{{0, 0, 0}, {2, 2, 2}}, "rank 1 alone, not reduced"},
      {{{1, 0, 1}, {1, 0, 1}}, "micro-batch 2 is missing"},
      {{{1, 3, 1}, {1, 3, 1}}, "micro-batch 2 is counted 3 times"},
      {{{0, 0, 1}, {0, 0, 1}}, "only the last micro-batch"},
      {{{1, 0, 0}, {1, 0, 0}}, "only the first micro-batch"},
      {{{0, 1, 0}, {0, 1, 0}}, "only micro-batch 2"},
      {{{0, 0, 3}, {0, 0, 3}}, "only the last micro-batch counts, not divided by 3 micro-batches"},
      {{{0, 1}, {0, 1}}, "only the last micro-batch"},
      {{{1, 0, 1, 0, 0}, {1, 0, 1, 0, 0}}, "only micro-batches 1 and 3"},
      {{{1}, {0}, {1}}, "rank 1 is missing"},
      {{{1}, {0}, {0}, {1}}, "ranks 1 and 2 are missing"},
      {{{1, 0, 1}}, "micro-batch 2 is missing"},
      {{{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}}, "averaged twice over 2 ranks"},
      {{{3, 3, 3}, {3, 3, 3}}, "summed, not averaged over 3 micro-batches"},
      {{{0, 0, 0}, {0, 0, 0}}, "lost: no contribution arrived"},
      {{{0.25, 1, 3}, {1, 1, 1}}, ""}};
  for (const auto& [matrix, words] : patterns) EXPECT_EQ(in_words(matrix), words);
}

TEST(Coefficients, TheTextHasFractions) {
  EXPECT_EQ(matrix_text({{1, 1, 1}, {1, 0, 2}}, 6), "rank 0: 1/6 1/6 1/6, rank 1: 1/6 0 1/3");
  EXPECT_EQ(matrix_text({{0.5}, {-1}}, 2), "rank 0: 1/4, rank 1: -1/2");
  EXPECT_EQ(matrix_text({{2}}, 1), "rank 0: 2");
}

TEST(Coefficients, TheCulpritIsTheOneThatIsWrong) {
  const auto of = [](const Matrix& matrix) {
    const auto culprit = culprit_of(matrix);
    return std::pair(culprit.micro_batch, culprit.rank);
  };
  EXPECT_EQ(of({{1, 1, 1}, {1, 0, 1}}), std::pair(1, 1));
  EXPECT_EQ(of({{1, 0, 1}, {1, 0, 1}}), std::pair(1, -1));
  EXPECT_EQ(of({{0, 0, 1}, {0, 0, 1}}), std::pair(-1, -1)) << "overwritten, nobody knows when";
  EXPECT_EQ(of({{1, 1, 1}, {0, 0, 0}}), std::pair(-1, 1));
  EXPECT_EQ(of({{0.5, 0.5}, {0.5, 0.5}}), std::pair(-1, -1));
  EXPECT_EQ(of({{1}, {0}}), std::pair(0, 1));
}

TEST(Coefficients, AFitFindsThemAndSaysWhenItCannot) {
  at::manual_seed(3);
  const Matrix want = {{1, 0, 1}, {0.5, 2, 1}};
  std::vector<std::vector<Values>> parts(2, std::vector<Values>(3, Values(40)));
  Values got(40, 0);
  for (std::size_t r = 0; r < 2; ++r)
    for (std::size_t m = 0; m < 3; ++m) {
      const auto values = at::randn({40}, at::kDouble);
      for (std::size_t i = 0; i < 40; ++i) {
        parts[r][m][i] = values[static_cast<int64_t>(i)].item<double>();
        got[i] += want[r][m] * parts[r][m][i];
      }
    }
  const auto fitted = fit_coefficients(got, parts);
  ASSERT_TRUE(fitted);
  EXPECT_EQ(nearest_simple(*fitted), want);
  parts[1][2] = parts[0][0];
  EXPECT_FALSE(fit_coefficients(got, parts)) << "two contributions that are the same";
  for (auto& row : parts)
    for (auto& values : row) values.resize(11);
  got.resize(11);
  EXPECT_FALSE(fit_coefficients(got, parts)) << "too few values";
}

// Every matrix that a probe was averaged with comes back exactly, from any rank's shard.
TEST(Coefficients, AProbeIsReadOffExactly) {
  const std::vector<double> possible = {0, 1, 2, 0.5, 1, 3, 1, -1};
  for (const int64_t world : {1, 2, 3, 4})
    for (int64_t steps = 1; steps <= 5; ++steps) {
      Matrix want;
      auto sum = at::zeros({world * world * steps});
      for (int64_t r = 0; r < world; ++r) {
        want.emplace_back();
        for (int64_t m = 0; m < steps; ++m) {
          const double c = possible[static_cast<std::size_t>(3 * r + 5 * m) % possible.size()];
          want.back().push_back(c);
          sum += probe(world, steps, r, m) * c;
        }
      }
      const auto mean = sum * at::full({}, 1.0 / static_cast<double>(world * steps), at::kFloat);
      const int64_t shard = world * steps;
      for (int64_t rank = 0; rank < world; ++rank)
        EXPECT_EQ(decode_probe(mean.slice(0, rank * shard, (rank + 1) * shard), rank * shard, world,
                               steps),
                  want);
      if (shard == 1) continue;
      EXPECT_NE(decode_probe(at::roll(mean, 1), 0, world, steps), want) << "moved";
      EXPECT_THROW(decode_probe(mean.slice(0, 0, shard - 1), 0, world, steps), std::runtime_error);
    }
}

}  // namespace
}  // namespace equigrad::conformance::oracle
