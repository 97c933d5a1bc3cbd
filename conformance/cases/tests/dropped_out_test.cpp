// What is dropped out is a function of the batch: of all of it, of nothing else, and of the part.
#include "conformance/cases/dropped_out.hpp"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>

#include "conformance/testing/bits_matcher.hpp"

namespace equigrad::conformance {
namespace {

using oracle::HasTheBitsOf;
using ::testing::Not;

at::Tensor tokens(int64_t changed = -1) {
  auto all = at::arange(16).view({2, 8});
  if (changed >= 0) all.view({-1})[changed] += 1;
  return all;
}

at::Tensor kept_whole(const at::Tensor& batch, at::ScalarType type = at::kFloat) {
  const DrawsOfBatch draws(batch);
  return dropped_out(at::ones({40}, type));
}

std::vector<at::Tensor> kept_in_parts(const at::Tensor& batch) {
  const DrawsOfBatch draws(batch);
  const auto part = at::ones({40});
  auto kept = dropped_out_in_parts({part, part, part});
  kept.push_back(dropped_out(part));
  return kept;
}

TEST(DroppedOut, IsAFunctionOfEveryTokenAndOfNothingElse) {
  const auto want = kept_whole(tokens());
  at::rand({3});
  EXPECT_THAT(kept_whole(tokens()), HasTheBitsOf(want));
  for (int64_t changed = 0; changed < 16; ++changed)
    EXPECT_THAT(kept_whole(tokens(changed)), Not(HasTheBitsOf(want))) << changed;
  for (const auto type : {at::kDouble, at::kBFloat16, at::kHalf})
    EXPECT_THAT(kept_whole(tokens(), type).to(at::kFloat), HasTheBitsOf(want));
}

TEST(DroppedOut, PartsHaveOtherNumbersAndNobodyBehindSeesIt) {
  const auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const auto before = generator.get_state();
  const auto kept = kept_in_parts(tokens());
  EXPECT_THAT(generator.get_state(), HasTheBitsOf(before));
  for (std::size_t a = 0; a < kept.size(); ++a) {
    EXPECT_THAT(kept_in_parts(tokens())[a], HasTheBitsOf(kept[a])) << a;
    for (std::size_t b = 0; b < a; ++b) EXPECT_THAT(kept[a], Not(HasTheBitsOf(kept[b]))) << a << b;
  }
}

}  // namespace
}  // namespace equigrad::conformance
