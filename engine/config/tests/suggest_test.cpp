// The nearest known name: distances by hand, and names that are too far for a suggestion.
#include "engine/config/suggest.hpp"

#include <gtest/gtest.h>

namespace equigrad {
namespace {

TEST(EditDistance, CountsInsertionsRemovalsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("stage", "stage"), 0u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("sitting", "kitten"), 3u);
  EXPECT_EQ(edit_distance("ab", "ba"), 1u);
  EXPECT_EQ(edit_distance("admaw", "adamw"), 1u);
}

TEST(DidYouMean, SuggestsTheNearestAndTheFirstOfATie) {
  EXPECT_EQ(nearest_name("stge", {"state", "stage"}), "stage");
  EXPECT_EQ(nearest_name("cat", {"bat", "hat"}), "bat");
  EXPECT_EQ(did_you_mean("stge", {"stage"}), " Did you mean \"stage\"?");
}

TEST(DidYouMean, SuggestsTheRestOfABeginning) {
  EXPECT_EQ(nearest_name("reduce_bucket", {"stage", "reduce_bucket_size"}), "reduce_bucket_size");
}

TEST(DidYouMean, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(did_you_mean("momentum", {"lr", "eps"}), "");
  EXPECT_EQ(did_you_mean("a", {}), "");
  EXPECT_EQ(nearest_name("abc", {"xyz"}), "");
  EXPECT_EQ(nearest_name("", {"a"}), "");
}

}  // namespace
}  // namespace equigrad
