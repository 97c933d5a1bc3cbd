// Points are told apart by their kind and by what they are about, and not by their flags.
#include "engine/agreement/sync_point.hpp"

#include <gmock/gmock.h>

namespace equigrad::agreement {
namespace {

bool same(const SyncPoint& a, const SyncPoint& b) { return words_of(a).is_same_point(words_of(b)); }

TEST(SyncPoint, IsTheSameWhateverItsFlag) {
  EXPECT_TRUE(same(LaunchBucket{.bucket = 2, .rounds = 0}, LaunchBucket{.bucket = 2, .rounds = 3}));
  EXPECT_TRUE(same(Step{.passes = 2}, Step{.passes = 2, .is_observed = true}));
  EXPECT_TRUE(same(ReadGradient{.parameter = 1, .passes = 0}, ReadGradient{1, 2}));
  EXPECT_TRUE(same(WriteState{.parameter = 1, .digest = 4}, WriteState{1, 5}));
  EXPECT_TRUE(same(WriteLocal{.parameter = 1, .is_master = false}, WriteLocal{1, true}));
  EXPECT_TRUE(same(SetRates{.digest = 1}, SetRates{.digest = 2}));
  EXPECT_TRUE(same(GatherEnds{.has_written = true}, GatherEnds{}));
  EXPECT_TRUE(same(Initialize{.oldest = 3}, Initialize{}));
  EXPECT_FALSE(same(LaunchBucket{.bucket = 2}, LaunchBucket{.bucket = 3}));
  EXPECT_FALSE(same(Step{.passes = 2}, Step{.passes = 3}));
  EXPECT_FALSE(same(ReadMaster{.parameter = 0}, ReadMaster{.parameter = 1}));
  EXPECT_FALSE(same(HessianProduct{.number = 0}, HessianProduct{.number = 1}));
  EXPECT_FALSE(same(ReadMaster{.parameter = 1}, WriteMaster{.parameter = 1}));
}

TEST(SyncPoint, FlagsTravel) {
  EXPECT_EQ(words_of(LaunchBucket{.bucket = 2, .rounds = 3}).flag, 3);
  EXPECT_EQ(words_of(Step{.passes = 2, .eager_buckets = 2, .is_observed = true}).flag, 5);
  EXPECT_EQ(words_of(ReadGradient{.parameter = 1, .passes = 7}).flag, 7);
  EXPECT_EQ(words_of(ReadState{.parameter = 1, .state = 2}).flag, 2);
  EXPECT_EQ(words_of(WriteMaster{.parameter = 1, .digest = 9}).flag, 9);
  EXPECT_EQ(words_of(WriteLocal{.parameter = 1, .is_master = true}).flag, 1);
  EXPECT_EQ(words_of(SetRates{.digest = 5}).flag, 5);
  EXPECT_EQ(words_of(GatherBegins{.digest = 6}).flag, 6);
  EXPECT_EQ(words_of(GatherEnds{.has_written = true}).flag, 1);
  EXPECT_EQ(words_of(Initialize{.oldest = 3}).flag, 3);
}

TEST(SyncPoint, SaysWhatItIs) {
  const auto text = [](const SyncPoint& point) { return describe(words_of(point), 4); };
  EXPECT_EQ(text(Step{.passes = 2}), "step() of engine 4 after 2 backward passes");
  EXPECT_EQ(text(LaunchBucket{.bucket = 3}), "the reduction of bucket 3 of engine 4");
  EXPECT_EQ(text(WriteMaster{.parameter = 1}), "the setter of a master of engine 4, parameter 1");
  EXPECT_EQ(text(Initialize{}), "initialize()");
}

TEST(SyncPoint, KnowsWhatMayBePostponedAndWhatIsAnAccess) {
  EXPECT_TRUE(words_of(LaunchBucket{}).is_full_bucket());
  EXPECT_TRUE(words_of(NoFullBucket{}).is_full_bucket());
  EXPECT_FALSE(words_of(LaunchBucket{.bucket = 0, .rounds = 1}).is_full_bucket());
  EXPECT_FALSE(words_of(Step{}).is_full_bucket());
  for (const SyncPoint& point :
       {SyncPoint(ReadParameter{}), SyncPoint(WriteLocal{}), SyncPoint(SetRates{}),
        SyncPoint(GatherStands{}), SyncPoint(HessianProduct{})})
    EXPECT_TRUE(words_of(point).is_access()) << describe(words_of(point), 0);
  for (const SyncPoint& point : {SyncPoint(WantPages{}), SyncPoint(ObservedUpdate{}),
                                 SyncPoint(Initialize{}), SyncPoint(Abandoned{})})
    EXPECT_FALSE(words_of(point).is_access()) << describe(words_of(point), 0);
}

}  // namespace
}  // namespace equigrad::agreement
