// Ranks that want different pages all gather the union; who waits at a collective serves; all hear
// of a rank whose pass threw.
#include "engine/agreement/coordinator.hpp"

#include <gmock/gmock.h>

#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::comm {
namespace {

using conformance::error_of;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;
using Pages = std::vector<std::size_t>;

// More pages than one word of the message holds.
constexpr std::size_t kPages = 130;

struct Meetings {
  std::shared_ptr<Communicator> group;
  std::vector<Pages> gathered;
  Seat seat;

  explicit Meetings(RankContext& context, std::size_t pages = kPages)
      : group(context.group()), seat(*group, pages) {
    seat.serve([this](const Pages& wanted) { gathered.push_back(wanted); });
  }
};

TEST(Rendezvous, AllRanksGatherTheUnionOfWhatTheyWant) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       const std::vector<Pages> wanted{{129, 5}, {62, 63}, {5, 0}};
                       it.seat.want(wanted[static_cast<std::size_t>(context.rank())]);
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{0, 5, 62, 63, 129}}));
                     }),
            "");
}

TEST(Rendezvous, WhoHasComeToACollectiveServesUntilAllHave) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       for (int want = 0; want < context.rank(); ++want) it.seat.want({7});
                       it.seat.meet({Meeting::Bucket, 2, 0});
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{7}, {7}}));
                     }),
            "");
}

TEST(Rendezvous, TellsTheLeastAndTheGreatestFlagAndWhatAnyRankMarks) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       const auto met = it.seat.meet({Meeting::Bucket, 0, context.rank() + 1});
                       EXPECT_TRUE(met.together);
                       EXPECT_EQ(met.least_flag, 1);
                       EXPECT_EQ(met.greatest_flag, 3);
                       std::vector<bool> marks(kPages), want(kPages);
                       marks[static_cast<std::size_t>(60 * context.rank())] = true;
                       want[0] = want[60] = want[120] = true;
                       EXPECT_EQ(it.seat.meet({Meeting::Step, 4}, marks).marks, want);
                     }),
            "");
}

TEST(Rendezvous, RanksAtDifferentCollectivesAreAllToldWhere) {
  EXPECT_EQ(
      on_ranks(
          3,
          [](RankContext& context) {
            Meetings it(context);
            const bool last = context.rank() == 2;
            EXPECT_THAT(
                error_of([&] {
                  it.seat.meet(last ? Place{Meeting::Step, 6, 0} : Place{Meeting::Bucket, 4, 1});
                }),
                AllOf(HasSubstr("rank 0 at the reduction of bucket 4"),
                      HasSubstr("rank 2 at step()"), HasSubstr("after 6 backward passes")));
            EXPECT_THAT(error_of([&] {
                          it.seat.meet({Meeting::Step, context.rank(), 0});
                        }),
                        HasSubstr("after 1 backward passes"));
            EXPECT_THAT(error_of([&] {
                          const int64_t call = int64_t{3} << 40;
                          it.seat.meet({Meeting::Access, call + context.rank(), 0});
                        }),
                        HasSubstr("getter or setter 3 of engine 0, parameter 1"));
            // Nothing is left over: they can still meet.
            EXPECT_TRUE(it.seat.meet({Meeting::Step}).together);
            EXPECT_EQ(it.gathered, std::vector<Pages>{});
          }),
      "");
}

TEST(Rendezvous, ARankWhosePassThrewIsHeardByAllOthersOnce) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       if (context.rank() == 1) {
                         it.seat.abandon();
                       } else {
                         const auto said = error_of([&] {
                           // One still computes, and is served; the other waits.
                           if (context.rank() == 0) it.seat.want({3});
                           it.seat.meet({Meeting::Bucket, 0, 1});
                         });
                         EXPECT_THAT(said, HasSubstr("got an exception on rank 1"));
                         it.seat.abandon();  // they know already: says nothing
                       }
                       EXPECT_TRUE(it.seat.meet({Meeting::Step}).together);
                       it.seat.abandon();  // all at the same time
                       EXPECT_TRUE(it.seat.meet({Meeting::Step}).together);
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{3}}));
                     }),
            "");
}

// A full bucket, and what the others say of it: nothing before this rank settles or speaks.
struct Heard {
  int count = 0;
  bool together = false;
  Seat::Then then() {
    return [this](const Met& met) {
      ++count;
      together = met.together;
    };
  }
};

TEST(Rendezvous, WhatIsAnnouncedIsHeardWhenARankSettlesOrSpeaks) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       Heard heard;
                       it.seat.announce({Meeting::Bucket, 2}, heard.then());
                       EXPECT_EQ(heard.count, 0);
                       if (context.rank() != 1) it.seat.settle();
                       it.seat.meet({Meeting::Step});
                       EXPECT_EQ(heard.count, 1);
                       EXPECT_TRUE(heard.together);
                       it.seat.settle();
                       EXPECT_EQ(heard.count, 1) << "once";
                     }),
            "");
}

TEST(Rendezvous, WhoHasAnnouncedServesAndIsPostponedLikeWhoWaits) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       Heard heard;
                       if (context.rank() == 0) {
                         it.seat.want({7});
                         it.seat.meet({Meeting::Step});
                       } else {
                         it.seat.announce({Meeting::Bucket, 2}, heard.then());
                         EXPECT_EQ(it.gathered, std::vector<Pages>{});
                         it.seat.meet({Meeting::Step});
                         EXPECT_EQ(heard.count, 1);
                         EXPECT_FALSE(heard.together) << "rank 0 is at its step";
                       }
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{7}}));
                     }),
            "");
}

TEST(Rendezvous, WhoHasAnnouncedHearsTheAnswerBeforeItSaysMore) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       Heard heard;
                       if (context.rank() == 0) it.seat.want({7});
                       it.seat.announce({Meeting::Bucket, 2}, heard.then());
                       if (context.rank() == 1) it.seat.want({3});
                       it.seat.meet({Meeting::Step});
                       EXPECT_TRUE(heard.together);
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{7}, {3}})) << "on every rank";

                       if (context.rank() == 0)
                         it.seat.announce({Meeting::Bucket, -1}, heard.then());
                       if (context.rank() == 1) it.seat.want({9});
                       it.group->rendezvous().meet_to_initialize();
                       EXPECT_EQ(it.gathered.size(), 3U) << "rank 0 has served";
                     }),
            "");
}

TEST(Rendezvous, ARankThatThrowsAfterItAnnouncedHearsTheAnswerAndTellsTheOthers) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Meetings it(context);
                       Heard heard;
                       it.seat.announce({Meeting::Bucket, 0}, heard.then());
                       if (context.rank() == 1) {
                         it.seat.abandon();
                       } else {
                         const auto said = error_of([&] {
                           it.seat.announce({Meeting::Bucket, 1}, heard.then());
                           it.seat.settle();
                         });
                         EXPECT_THAT(said, HasSubstr("got an exception on rank 1"));
                         it.seat.abandon();  // they know already: says nothing
                       }
                       EXPECT_EQ(heard.count, 1);
                       EXPECT_TRUE(heard.together) << "all of them launch it";
                       EXPECT_TRUE(it.seat.meet({Meeting::Step}).together);
                       // Who throws with a word under way hears that another threw, and is silent.
                       if (context.rank() != 1)
                         it.seat.announce({Meeting::Bucket, 5}, heard.then());
                       it.seat.abandon();
                       EXPECT_EQ(heard.count, 1);
                       EXPECT_TRUE(it.seat.meet({Meeting::Step}).together);
                     }),
            "");
}

TEST(Rendezvous, EnginesOfOneCommunicatorServeEachOthersPages) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       Meetings one(context, 3), two(context, 100);
                       if (context.rank() == 0) {
                         one.seat.want({2});
                         one.seat.meet({Meeting::Bucket, 0, 1});
                       } else {
                         two.seat.want({99});
                         two.seat.want({98});
                         one.seat.meet({Meeting::Bucket, 0, 1});
                       }
                       EXPECT_EQ(one.gathered, (std::vector<Pages>{{2}}));
                       EXPECT_EQ(two.gathered, (std::vector<Pages>{{99}, {98}}));
                     }),
            "");
}

TEST(Rendezvous, FullBucketsOfDifferentEnginesArePostponed) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       Meetings one(context), two(context);
                       auto& full = context.rank() == 0 ? one : two;
                       EXPECT_FALSE(full.seat.meet({Meeting::Bucket, 0, 0}).together);
                       for (auto* each : {&one, &two}) {
                         EXPECT_TRUE(each->seat.meet({Meeting::Bucket, 0, 1}).together);
                       }
                     }),
            "");
}

// Rank 2 has destroyed it; rank 1 reads, rank 0 has it and waits elsewhere.
TEST(Rendezvous, APageOfAnEngineThatARankHasDestroyedIsAnErrorOnEveryRankAtOnce) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       std::vector<std::unique_ptr<Meetings>> all;
                       for (int i = 0; i < 70; ++i)  // more than one word of the message holds
                         all.push_back(std::make_unique<Meetings>(context));
                       Meetings& last = *all[69];
                       for (const std::size_t one : {std::size_t{0}, std::size_t{65}}) {
                         if (context.rank() == 2) all[one].reset();
                         EXPECT_THAT(error_of([&] {
                                       context.rank() == 1 ? all[one]->seat.want({1})
                                                           : void(last.seat.meet({Meeting::Step}));
                                     }),
                                     AllOf(HasSubstr("expected engine " + std::to_string(one)),
                                           HasSubstr("got rank 2, which has destroyed it"),
                                           HasSubstr("while rank 1 reads")));
                         EXPECT_TRUE(last.seat.meet({Meeting::Step}).together);
                         if (context.rank() != 2) {
                           EXPECT_EQ(all[one]->gathered, std::vector<Pages>{});
                         }
                       }
                     }),
            "");
}

TEST(Rendezvous, OneRankAloneAsksNobody) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       Meetings it(context);
                       it.seat.want({3, 1});
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{3, 1}}));
                       EXPECT_EQ(it.seat.meet({Meeting::Bucket, 0, 2}).greatest_flag, 2);
                       it.seat.abandon();
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::comm
