// The ledger's arithmetic: now, peaks, and the peak of the total.
#include "engine/memory/ledger.hpp"

#include <gtest/gtest.h>

namespace equigrad::memory {
namespace {

TEST(Ledger, KeepsWhatIsHeldAndTheMostThatWasHeld) {
  Ledger ledger;
  ledger.charge(Category::Buckets, 100);
  ledger.charge(Category::Buckets, 20);
  ledger.credit(Category::Buckets, 100);
  ledger.charge(Category::Buckets, 30);
  EXPECT_EQ(ledger.bytes(Category::Buckets), 50);
  EXPECT_EQ(ledger.peak_bytes(Category::Buckets), 120);
  EXPECT_EQ(ledger.bytes(Category::Gathered), 0);
}

TEST(Ledger, TheTotalsPeakIsNotTheSumOfThePeaks) {
  Ledger ledger;
  ledger.charge(Category::Gradients, 100);
  ledger.credit(Category::Gradients, 100);
  ledger.charge(Category::Gathered, 70);
  EXPECT_EQ(ledger.total_bytes(), 70);
  EXPECT_EQ(ledger.total_peak_bytes(), 100);
  EXPECT_EQ(ledger.peak_bytes(Category::Gathered), 70);
}

TEST(Ledger, TheTotalMayPeakWhereNoCategoryDoes) {
  Ledger ledger;
  ledger.charge(Category::Gradients, 100);
  ledger.credit(Category::Gradients, 100);
  ledger.charge(Category::Gathered, 90);
  ledger.credit(Category::Gathered, 20);
  ledger.charge(Category::Gradients, 80);
  EXPECT_EQ(ledger.total_peak_bytes(), 150);
}

TEST(Ledger, EveryCategoryHasAName) {
  EXPECT_STREQ(kCategoryNames[static_cast<std::size_t>(Category::Parameters)], "parameters");
  EXPECT_STREQ(kCategoryNames[static_cast<std::size_t>(Category::Gathered)], "gathered");
}

}  // namespace
}  // namespace equigrad::memory
