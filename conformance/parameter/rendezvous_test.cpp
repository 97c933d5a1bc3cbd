// Ranks that want different pages all gather the union; who waits at a collective serves.
#include "engine/parameter/rendezvous.hpp"

#include <gmock/gmock.h>

#include "conformance/ranks/rank_test.hpp"
#include "conformance/sample.hpp"

namespace equigrad::parameter {
namespace {

using conformance::error_of;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using Pages = std::vector<std::size_t>;

// More pages than one word of the message holds.
constexpr std::size_t kPages = 130;

struct Meetings {
  std::shared_ptr<comm::Communicator> group;
  std::vector<Pages> gathered;
  Rendezvous rendezvous;

  explicit Meetings(RankContext& context)
      : group(context.group()),
        rendezvous(*group, kPages, [this](const Pages& pages) { gathered.push_back(pages); }) {}
};

TEST(Rendezvous, AllRanksGatherTheUnionOfWhatTheyWant) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       const std::vector<Pages> wanted{{129, 5}, {62, 63}, {5, 0}};
                       it.rendezvous.want(wanted[static_cast<std::size_t>(context.rank())]);
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{0, 5, 62, 63, 129}}));
                     }),
            "");
}

TEST(Rendezvous, WhoHasComeToACollectiveServesUntilAllHave) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       for (int want = 0; want < context.rank(); ++want) it.rendezvous.want({7});
                       it.rendezvous.come_to(Meeting::Bucket, 2, false);
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{7}, {7}}));
                     }),
            "");
}

TEST(Rendezvous, AllFlushOnlyIfEachDoes) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       Meetings it(context);
                       EXPECT_FALSE(it.rendezvous.come_to(Meeting::Bucket, 0, context.rank() == 0));
                       EXPECT_FALSE(it.rendezvous.come_to(Meeting::Bucket, 1, context.rank() == 1));
                       EXPECT_TRUE(it.rendezvous.come_to(Meeting::Bucket, 2, true));
                       EXPECT_FALSE(it.rendezvous.come_to(Meeting::Step, 0, false));
                     }),
            "");
}

TEST(Rendezvous, RanksAtDifferentCollectivesAreAllToldWhere) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       const auto here = [&] {
                         if (context.rank() == 2) {
                           it.rendezvous.come_to(Meeting::Step, 0, false);
                         } else {
                           it.rendezvous.come_to(Meeting::Bucket, 4, false);
                         }
                       };
                       EXPECT_THAT(error_of(here),
                                   testing::AllOf(testing::HasSubstr("rank 0 at the "
                                                                     "reduction of bucket 4"),
                                                  testing::HasSubstr("rank 2 at step()")));
                       const auto number = [&] {
                         it.rendezvous.come_to(Meeting::Bucket, context.rank(), false);
                       };
                       EXPECT_THAT(error_of(number),
                                   testing::HasSubstr("rank 1 at the reduction of bucket 1"));
                       // Nothing is left over: they can still meet.
                       EXPECT_TRUE(it.rendezvous.come_to(Meeting::Step, 0, true));
                       EXPECT_EQ(it.gathered, std::vector<Pages>{});
                     }),
            "");
}

TEST(Rendezvous, OneRankAloneAsksNobody) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       Meetings it(context);
                       it.rendezvous.want({3, 1});
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{3, 1}}));
                       EXPECT_FALSE(it.rendezvous.come_to(Meeting::Bucket, 0, false));
                       EXPECT_TRUE(it.rendezvous.come_to(Meeting::Bucket, 0, true));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::parameter
