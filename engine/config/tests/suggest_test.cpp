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

TEST(DidYouMean, KnowsWhatIsShortForWhat) {
  EXPECT_EQ(likely_name("warmup_steps", {"warmup_type", "warmup_num_steps"}), "warmup_num_steps");
  EXPECT_EQ(likely_name("learning_rate", {"eps", "lr"}), "lr");
  EXPECT_EQ(likely_name("wd", {"lr", "weight_decay"}), "weight_decay");
  EXPECT_EQ(likely_name("fusedadam", {"sgd", "adam", "adamw"}), "adam");
  EXPECT_EQ(likely_name("fusedadamw", {"sgd", "adam", "adamw"}), "adamw");
  EXPECT_EQ(likely_name("lin", {"log", "linear"}), "linear");
  EXPECT_EQ(likely_name("___", {"abcdefgh", "a_bcdefgh"}), "") << "which has no words";
  EXPECT_EQ(likely_name("num_training_steps", {"lr", "eps"}), "") << "eps is no word of it";
  EXPECT_EQ(likely_name("my_stage", {"stage"}), "stage");
  EXPECT_EQ(likely_name("cat", {"bat", "hat"}), "bat") << "as nearest_name()";
}

TEST(DidYouMean, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(did_you_mean("momentum", {"lr", "eps"}), "");
  EXPECT_EQ(did_you_mean("a", {}), "");
  EXPECT_EQ(nearest_name("abc", {"xyz"}), "");
  EXPECT_EQ(nearest_name("", {"a"}), "");
}

}  // namespace
}  // namespace equigrad
