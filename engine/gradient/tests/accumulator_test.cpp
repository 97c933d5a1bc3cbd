// The window's sum: order, rounding, weights, and the average that empties it.
#include "engine/gradient/accumulator.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/kernels/exact_tensor.hpp"

namespace equigrad::gradient {
namespace {

using conformance::sample;
using conformance::table_of;
using conformance::oracle::HasTheBitsOf;

struct Window {
  layout::ParameterTable table = table_of({5, 800, 3});
  layout::BucketPlan plan{table, 1, 800};  // buckets of p2, p1, p0: 3, 800 and 5 elements
  memory::Ledger ledger;
  Accumulator accumulator;
  explicit Window(at::ScalarType dtype) : accumulator(plan, at::TensorOptions(dtype), ledger) {}
};

TEST(Accumulator, AddsInOrderOfArrivalAndRoundsEachSumOnce) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Window window(dtype);
    std::vector<float> want(800);
    for (uint64_t pass = 0; pass < 5; ++pass) {
      const auto sum = sample(800, pass + 1);
      for (std::size_t i = 0; i < 800; ++i) {
        const float term = sum.const_data_ptr<float>()[i];
        const float next = pass == 0 ? term : want[i] + term;
        want[i] = dtype == at::kFloat ? next : static_cast<float>(c10::BFloat16(next));
      }
      window.accumulator.add(1, sum.clone(), 1.0);
      window.accumulator.commit();
    }
    EXPECT_THAT(window.accumulator.take_averaged(1.0).narrow(0, 3, 800),
                HasTheBitsOf(at::tensor(want)))
        << dtype;
  }
}

// Whatever came before, even passes without a sum: the next first sum is written into the window.
TEST(Accumulator, IsEmptyAfterTheAverageOfNothing) {
  Window window(at::kFloat);
  window.accumulator.commit();
  EXPECT_THAT(window.accumulator.take_averaged(1.0), HasTheBitsOf(at::zeros({808})));
  EXPECT_TRUE(window.accumulator.block(0).defined());
}

TEST(Accumulator, MergesExactSumsAndRoundsThemOnce) {
  const auto terms = sample(6 * 800, 5).view({6, 800});
  const auto want = kernels::exact_row_sum(terms, at::kFloat);
  const auto sums_of = [&](int64_t begin) {
    return kernels::exact_row_sum(terms.narrow(0, begin, 2), kernels::kExactSum);
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Window window(kernels::kExactSum);
    const auto begin = window.plan.buckets()[1].offset;
    EXPECT_THAT(window.accumulator.slice(begin, 800), HasTheBitsOf(at::zeros({800})));
    for (const int64_t pass : {4, 0, 2}) {
      window.accumulator.add(1, sums_of(pass), 1.0);
      if (pass == 0) window.accumulator.rollback();
      if (pass == 0) window.accumulator.add(1, sums_of(pass), 1.0);
      window.accumulator.commit();
    }
    EXPECT_EQ(window.ledger.peak_bytes(memory::Category::Gradients), (808 + 800) * 16);
    EXPECT_THAT(window.accumulator.slice(begin, 800), HasTheBitsOf(want));
    const float third = 1.0F / 3;
    const auto average = window.accumulator.take_averaged(static_cast<double>(third), dtype);
    EXPECT_THAT(average.narrow(0, begin, 800),
                HasTheBitsOf((want * at::full({}, third)).to(dtype)));
    EXPECT_THAT(average.narrow(0, 0, begin), HasTheBitsOf(at::zeros({begin}, dtype)));
    EXPECT_EQ(window.ledger.bytes(memory::Category::Gradients), 0);
  }
}

TEST(Accumulator, MultipliesTheAverageOnceInFp32) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Window window(dtype);
    const auto sum = sample(800, 3, dtype);
    window.accumulator.add(1, sum.clone(), 1.0);
    const float third = 1.0F / 3;
    const auto average = window.accumulator.take_averaged(static_cast<double>(third));
    EXPECT_EQ(average.scalar_type(), at::kFloat);
    const auto got = average.narrow(0, window.plan.buckets()[1].offset, 800);
    EXPECT_THAT(got, HasTheBitsOf(sum.to(at::kFloat) * at::full({}, third)));
  }
}

TEST(Accumulator, AnAverageIn16BitsIsRoundedOnce) {
  const int64_t numel = (int64_t{1} << 16) + 77;  // more than one chunk
  for (const auto from : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto to : {at::kBFloat16, at::kHalf}) {
      const auto values = sample(numel, 5, from);
      std::vector<float> want;
      const auto wide = values.to(at::kFloat);
      for (int64_t i = 0; i < numel; ++i) {
        const float product = wide.const_data_ptr<float>()[i] * (1.0F / 3);
        want.push_back(to == at::kHalf ? static_cast<float>(c10::Half(product))
                                       : static_cast<float>(c10::BFloat16(product)));
      }
      const auto got = multiplied(values.clone(), static_cast<double>(1.0F / 3), to);
      EXPECT_EQ(got.scalar_type(), to);
      EXPECT_THAT(got.to(at::kFloat), HasTheBitsOf(at::tensor(want))) << from << " " << to;
    }
  }
}

TEST(Accumulator, AWeightCountsForItsOwnSumOnly) {
  Window window(at::kFloat);
  window.accumulator.add(0, sample(3, 1), 1.0);
  window.accumulator.add(0, sample(3, 2), 3.0);
  window.accumulator.add(0, sample(3, 4), 1.0);
  const auto want = (sample(3, 1) + sample(3, 2) * 3) + sample(3, 4);
  EXPECT_THAT(window.accumulator.take_averaged(1.0).narrow(0, 0, 3), HasTheBitsOf(want));
}

TEST(Accumulator, BucketsThatGotNothingAreZero) {
  Window window(at::kBFloat16);
  at::full({window.plan.shard_numel()}, std::nan(""), at::kBFloat16);  // the window's memory, soon
  window.accumulator.add(1, sample(800, 1, at::kBFloat16), 1.0);
  const auto average = window.accumulator.take_averaged(1.0);
  const auto& place = window.plan.buckets()[1];
  EXPECT_THAT(average.narrow(0, 0, place.offset), HasTheBitsOf(at::zeros({3})));
  EXPECT_THAT(average.narrow(0, place.offset + 800, 5), HasTheBitsOf(at::zeros({5})));
}

TEST(Accumulator, ASumOfEverythingIsTheWindow) {
  const auto table = table_of({5, 3});
  const layout::BucketPlan plan(table, 2, 1000);
  memory::Ledger ledger;
  Accumulator accumulator(plan, at::kFloat, ledger);
  for (const int64_t passes : {1, 2}) {
    auto sum = sample(plan.shard_numel(), 1);
    const auto* memory = sum.const_data_ptr();
    const auto want = passes == 1 ? sum * 0.5 : (sum + sample(plan.shard_numel(), 2)) * 0.5;
    accumulator.add(0, std::move(sum), 1.0);
    accumulator.commit();
    EXPECT_EQ(ledger.bytes(memory::Category::Gradients), 4 * plan.shard_numel());
    if (passes == 2) accumulator.add(0, sample(plan.shard_numel(), 2), 1.0);
    accumulator.commit();
    const auto average = accumulator.take_averaged(0.5);
    EXPECT_THAT(average, HasTheBitsOf(want));
    EXPECT_EQ(average.const_data_ptr(), memory);
  }
}

TEST(Accumulator, TheFirstSumOfABucketMayBeWrittenWhereItStays) {
  Window window(at::kFloat);
  const auto give = [&](std::size_t bucket, uint64_t seed, double weight) {
    const auto block = window.accumulator.block(bucket);
    ASSERT_EQ(block.numel(), window.plan.buckets()[bucket].shard_numel);
    block.copy_(sample(block.numel(), seed));
    window.accumulator.add(bucket, block, weight);
  };
  give(1, 1, 1.0);
  EXPECT_EQ(window.ledger.bytes(memory::Category::Gradients), 4 * 808);
  EXPECT_FALSE(window.accumulator.block(1).defined());
  window.accumulator.rollback();
  EXPECT_EQ(window.ledger.bytes(memory::Category::Gradients), 0);
  give(1, 1, 1.0);
  give(2, 2, 3.0);
  window.accumulator.add(1, sample(800, 3), 1.0);
  window.accumulator.block(0).fill_(7);  // and never added
  window.accumulator.commit();
  EXPECT_FALSE(window.accumulator.block(0).defined());
  const auto average = window.accumulator.take_averaged(1.0);
  const auto want = at::cat({at::zeros({3}), sample(800, 1) + sample(800, 3), sample(5, 2) * 3});
  EXPECT_THAT(average, HasTheBitsOf(want));
}

TEST(Accumulator, APassThatIsRolledBackLeavesTheWindowAsItWas) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool first : {true, false}) {
      Window window(dtype);
      auto& accumulator = window.accumulator;
      const auto pass = [&](uint64_t seed) {
        accumulator.add(1, sample(800, seed), 1.0);
        accumulator.add(0, sample(3, seed), 3.0);
      };
      Window plain(dtype);
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        if (seed > 1 || first) {
          const auto before = accumulator.slice(0, 808);
          pass(9 + seed);
          EXPECT_THAT(accumulator.slice(0, 808), HasTheBitsOf(before)) << "not committed";
          accumulator.rollback();
          EXPECT_THAT(accumulator.slice(0, 808), HasTheBitsOf(before)) << "rolled back";
        }
        pass(seed);
        accumulator.commit();
        plain.accumulator.add(1, sample(800, seed), 1.0);
        plain.accumulator.add(0, sample(3, seed), 3.0);
        plain.accumulator.commit();
      }
      EXPECT_THAT(accumulator.take_averaged(0.5),
                  HasTheBitsOf(plain.accumulator.take_averaged(0.5)));
      EXPECT_EQ(window.ledger.bytes(memory::Category::Gradients), 0);
    }
  }
}

TEST(Accumulator, OneSliceCanBeReadAndForgotten) {
  Window window(at::kFloat);
  window.accumulator.add(1, sample(800, 1), 1.0);
  EXPECT_THAT(window.accumulator.slice(3, 800), HasTheBitsOf(at::zeros({800})));
  window.accumulator.commit();
  EXPECT_THAT(window.accumulator.slice(5, 2), HasTheBitsOf(sample(800, 1).narrow(0, 2, 2)));
  window.accumulator.forget(4, 4);
  EXPECT_THAT(window.accumulator.slice(4, 4), HasTheBitsOf(at::zeros({4})));
  EXPECT_THAT(window.accumulator.slice(8, 5), HasTheBitsOf(sample(800, 1).narrow(0, 5, 5)));
}

TEST(Accumulator, TakingTheAverageOrClearingEmptiesTheWindow) {
  for (const bool take : {true, false}) {
    Window window(at::kFloat);
    window.accumulator.add(0, sample(3, 1), 1.0);
    EXPECT_EQ(window.ledger.bytes(memory::Category::Gradients), 4 * 808);
    if (take) {
      window.accumulator.take_averaged(1.0);
    } else {
      window.accumulator.clear();
    }
    EXPECT_EQ(window.ledger.bytes(memory::Category::Gradients), 0);
    EXPECT_THAT(window.accumulator.take_averaged(1.0), HasTheBitsOf(at::zeros({808})));
    // A first sum is stored as it is: -0.0 keeps its sign.
    window.accumulator.add(0, at::full({3}, -0.0F), 1.0);
    const auto average = window.accumulator.take_averaged(1.0).narrow(0, 0, 3);
    EXPECT_TRUE(average.signbit().all().item<bool>());
  }
}

}  // namespace
}  // namespace equigrad::gradient
