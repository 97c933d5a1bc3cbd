// Ranks that want different pages all gather the union; who waits at a collective serves; all hear
// of a rank whose pass threw.
#include "engine/agreement/coordinator.hpp"

#include <gmock/gmock.h>

#include <thread>

#include "conformance/faults/forwarding_communicator.hpp"
#include "conformance/testing/counting_communicator.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::agreement {
namespace {

using conformance::error_of;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;
using Pages = std::vector<std::size_t>;

// More pages than one word of the message holds.
constexpr std::size_t kPages = 130;

struct TestParticipant {
  std::shared_ptr<comm::Communicator> group;
  std::vector<Pages> gathered;
  Participant participant;

  explicit TestParticipant(RankContext& context, std::size_t pages = kPages)
      : group(context.group()), participant(*group, pages) {
    participant.serve([this](const Pages& wanted) { gathered.push_back(wanted); });
  }
};

TEST(Coordinator, AllRanksGatherTheUnionOfWhatTheyWant) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       TestParticipant it(context);
                       const std::vector<Pages> wanted{{129, 5}, {62, 63}, {5, 0}};
                       it.participant.want(wanted[static_cast<std::size_t>(context.rank())]);
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{0, 5, 62, 63, 129}}));
                     }),
            "");
}

TEST(Coordinator, WhoHasComeToACollectiveServesUntilAllHave) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       TestParticipant it(context);
                       for (int want = 0; want < context.rank(); ++want) it.participant.want({7});
                       it.participant.meet(LaunchBucket{.bucket = 2, .rounds = 0});
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{7}, {7}}));
                     }),
            "");
}

TEST(Coordinator, TellsTheLeastAndTheGreatestFlagAndWhatAnyRankMarks) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       TestParticipant it(context);
                       const auto agreement = it.participant.meet(
                           LaunchBucket{.bucket = 0, .rounds = context.rank() + 1});
                       EXPECT_TRUE(agreement.together);
                       EXPECT_EQ(agreement.least_flag, 1);
                       EXPECT_EQ(agreement.greatest_flag, 3);
                       std::vector<bool> marks(kPages), want(kPages);
                       marks[static_cast<std::size_t>(60 * context.rank())] = true;
                       want[0] = want[60] = want[120] = true;
                       EXPECT_EQ(it.participant.meet(Step{.passes = 4}, marks).marks, want);
                     }),
            "");
}

TEST(Coordinator, RanksAtDifferentCollectivesAllGetAnErrorThatSaysWhere) {
  EXPECT_EQ(
      on_ranks(
          3,
          [](RankContext& context) {
            TestParticipant it(context);
            const bool last = context.rank() == 2;
            const auto at = static_cast<std::size_t>(context.rank());
            EXPECT_THAT(error_of([&] {
                          it.participant.meet(last ? SyncPoint(Step{.passes = 6})
                                                   : LaunchBucket{.bucket = 4, .rounds = 1});
                        }),
                        AllOf(HasSubstr("rank 0 at the reduction of bucket 4"),
                              HasSubstr("rank 2 at step()"), HasSubstr("after 6 backward passes")));
            EXPECT_THAT(error_of([&] { it.participant.meet(Step{.passes = context.rank()}); }),
                        HasSubstr("after 1 backward passes"));
            EXPECT_THAT(error_of([&] { it.participant.meet(WriteGradient{.parameter = at}); }),
                        HasSubstr("rank 1 at the setter of a gradient of engine 0, parameter 1"));
            // Nothing is left over: they can still meet.
            EXPECT_TRUE(it.participant.meet(Step{}).together);
            EXPECT_EQ(it.gathered, std::vector<Pages>{});
          }),
      "");
}

TEST(Coordinator, ARankWhosePassThrewIsHeardByAllOthersOnce) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       TestParticipant it(context);
                       if (context.rank() == 1) {
                         it.participant.abandon();
                       } else {
                         const auto said = error_of([&] {
                           // One still computes, and is served; the other waits.
                           if (context.rank() == 0) it.participant.want({3});
                           it.participant.meet(LaunchBucket{.bucket = 0, .rounds = 1});
                         });
                         EXPECT_THAT(said, HasSubstr("got an exception on rank 1"));
                         it.participant.abandon();  // they know already: says nothing
                       }
                       EXPECT_TRUE(it.participant.meet(Step{}).together);
                       it.participant.abandon();  // all at the same time
                       EXPECT_TRUE(it.participant.meet(Step{}).together);
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{3}}));
                     }),
            "");
}

// A full bucket, and what the others say of it: nothing before this rank settles or speaks.
struct Heard {
  int count = 0;
  bool together = false;
  Participant::Then then() {
    return [this](const Agreement& agreement) {
      ++count;
      together = agreement.together;
    };
  }
};

TEST(Coordinator, WhatIsAnnouncedIsHeardWhenARankSettlesOrSpeaks) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       TestParticipant it(context);
                       Heard heard;
                       it.participant.announce(LaunchBucket{.bucket = 2}, heard.then());
                       EXPECT_EQ(heard.count, 0);
                       if (context.rank() != 1) it.participant.settle();
                       it.participant.meet(Step{});
                       EXPECT_EQ(heard.count, 1);
                       EXPECT_TRUE(heard.together);
                       it.participant.settle();
                       EXPECT_EQ(heard.count, 1) << "once";
                     }),
            "");
}

TEST(Coordinator, WhoHasAnnouncedServesAndIsPostponedLikeWhoWaits) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       TestParticipant it(context);
                       Heard heard;
                       if (context.rank() == 0) {
                         it.participant.want({7});
                         it.participant.meet(Step{});
                       } else {
                         it.participant.announce(LaunchBucket{.bucket = 2}, heard.then());
                         EXPECT_EQ(it.gathered, std::vector<Pages>{});
                         it.participant.meet(Step{});
                         EXPECT_EQ(heard.count, 1);
                         EXPECT_FALSE(heard.together) << "rank 0 is at its step";
                       }
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{7}}));
                     }),
            "");
}

TEST(Coordinator, WhoHasAnnouncedHearsTheAnswerBeforeItSaysMore) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       TestParticipant it(context);
                       Heard heard;
                       if (context.rank() == 0) it.participant.want({7});
                       it.participant.announce(LaunchBucket{.bucket = 2}, heard.then());
                       if (context.rank() == 1) it.participant.want({3});
                       it.participant.meet(Step{});
                       EXPECT_TRUE(heard.together);
                       EXPECT_EQ(it.gathered, (std::vector<Pages>{{7}, {3}})) << "on every rank";

                       if (context.rank() == 0)
                         it.participant.announce(NoFullBucket{}, heard.then());
                       if (context.rank() == 1) it.participant.want({9});
                       coordinator_of(*it.group).meet_to_initialize();
                       EXPECT_EQ(it.gathered.size(), 3U) << "rank 0 has served";
                     }),
            "");
}

TEST(Coordinator, ARankThatThrowsAfterItAnnouncedHearsTheAnswerAndTellsTheOthers) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       TestParticipant it(context);
                       Heard heard;
                       it.participant.announce(LaunchBucket{.bucket = 0}, heard.then());
                       if (context.rank() == 1) {
                         it.participant.abandon();
                       } else {
                         const auto said = error_of([&] {
                           it.participant.announce(LaunchBucket{.bucket = 1}, heard.then());
                           it.participant.settle();
                         });
                         EXPECT_THAT(said, HasSubstr("got an exception on rank 1"));
                         it.participant.abandon();  // they know already: says nothing
                       }
                       EXPECT_EQ(heard.count, 1);
                       EXPECT_TRUE(heard.together) << "all of them launch it";
                       EXPECT_TRUE(it.participant.meet(Step{}).together);
                       // Who throws with a word under way hears that another threw, and is silent.
                       if (context.rank() != 1)
                         it.participant.announce(LaunchBucket{.bucket = 5}, heard.then());
                       it.participant.abandon();
                       EXPECT_EQ(heard.count, 1);
                       EXPECT_TRUE(it.participant.meet(Step{}).together);
                     }),
            "");
}

TEST(Coordinator, EnginesOfOneCommunicatorServeEachOthersPages) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       TestParticipant one(context, 3), two(context, 100);
                       if (context.rank() == 0) {
                         one.participant.want({2});
                         one.participant.meet(LaunchBucket{.bucket = 0, .rounds = 1});
                       } else {
                         two.participant.want({99});
                         two.participant.want({98});
                         one.participant.meet(LaunchBucket{.bucket = 0, .rounds = 1});
                       }
                       EXPECT_EQ(one.gathered, (std::vector<Pages>{{2}}));
                       EXPECT_EQ(two.gathered, (std::vector<Pages>{{99}, {98}}));
                     }),
            "");
}

TEST(Coordinator, FullBucketsOfDifferentEnginesArePostponed) {
  EXPECT_EQ(
      on_ranks(
          2,
          [](RankContext& context) {
            TestParticipant one(context), two(context);
            auto& full = context.rank() == 0 ? one : two;
            EXPECT_FALSE(full.participant.meet(LaunchBucket{.bucket = 0, .rounds = 0}).together);
            for (auto* each : {&one, &two}) {
              EXPECT_TRUE(each->participant.meet(LaunchBucket{.bucket = 0, .rounds = 1}).together);
            }
          }),
      "");
}

// Rank 2 has destroyed it; rank 1 reads, rank 0 has it and waits elsewhere.
TEST(Coordinator, APageOfAnEngineThatARankHasDestroyedIsAnErrorOnEveryRankAtOnce) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       std::vector<std::unique_ptr<TestParticipant>> all;
                       for (int i = 0; i < 70; ++i)  // more than one word of the message holds
                         all.push_back(std::make_unique<TestParticipant>(context));
                       TestParticipant& last = *all[69];
                       for (const std::size_t one : {std::size_t{0}, std::size_t{65}}) {
                         if (context.rank() == 2) all[one].reset();
                         EXPECT_THAT(error_of([&] {
                                       context.rank() == 1 ? all[one]->participant.want({1})
                                                           : void(last.participant.meet(Step{}));
                                     }),
                                     AllOf(HasSubstr("expected engine " + std::to_string(one)),
                                           HasSubstr("got rank 2, which has destroyed it"),
                                           HasSubstr("while rank 1 reads")));
                         EXPECT_TRUE(last.participant.meet(Step{}).together);
                         if (context.rank() != 2) {
                           EXPECT_EQ(all[one]->gathered, std::vector<Pages>{});
                         }
                       }
                     }),
            "");
}

TEST(Coordinator, ACommunicatorHasOneCoordinatorForAsLongAsItLives) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto group = context.group();
                       auto& coordinator = coordinator_of(*group);
                       EXPECT_EQ(&coordinator_of(*group), &coordinator);
                       for (int64_t made = 0; made < 3; ++made) {
                         // The ranks count alike, whenever one of them destroys its engines.
                         EXPECT_EQ(Participant(*group, 1).number(), made);
                       }
                       EXPECT_EQ(&coordinator_of(*group), &coordinator) << "nobody is left";
                       auto other =
                           std::make_unique<conformance::faults::ForwardingCommunicator>(group);
                       EXPECT_NE(&coordinator_of(*other), &coordinator);
                       EXPECT_EQ(Participant(*other, 1).number(), 0);
                       const std::weak_ptr<void> of_other = other->companion();
                       other.reset();
                       EXPECT_TRUE(of_other.expired());
                     }),
            "");
}

// A message has a bit of every engine since the oldest that any rank still has.
TEST(Coordinator, EnginesThatAllRanksHaveDestroyedTakeNoRoomInMessages) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       const auto group =
                           std::make_shared<conformance::CountingCommunicator>(context.group());
                       const auto make = [&] {
                         coordinator_of(*group).meet_to_initialize();
                         return std::make_unique<Participant>(*group, 2);
                       };
                       const auto bytes_of_a_meeting = [&](Participant& participant) {
                         group->reset();
                         EXPECT_TRUE(participant.meet(Step{}).together);
                         return group->counts().bytes;
                       };
                       auto kept = make();
                       const auto bytes = bytes_of_a_meeting(*kept);
                       for (int i = 0; i < 200; ++i) kept = make();
                       EXPECT_EQ(kept->number(), 200);
                       EXPECT_EQ(bytes_of_a_meeting(*kept), bytes);
                       // One rank has an old one for longer than the others, and reads of it.
                       std::vector<std::unique_ptr<Participant>> later;
                       for (int i = 0; i < 70; ++i) later.push_back(make());
                       if (context.rank() == 1) kept.reset();
                       later.push_back(make());
                       EXPECT_GT(bytes_of_a_meeting(*later.back()), bytes);
                       const auto said = error_of([&] {
                         context.rank() == 0 ? kept->want({1}) : void(later.back()->meet(Step{}));
                       });
                       EXPECT_THAT(said, AllOf(HasSubstr("expected engine 200 on every rank"),
                                               HasSubstr("got rank 1")));
                       kept.reset();
                       later.clear();
                       EXPECT_EQ(bytes_of_a_meeting(*make()), bytes);
                     }),
            "");
}

// Another thread speaks while the first waits for rank 1, and serves it.
TEST(Coordinator, ASecondThreadThatSpeaksMeanwhileGetsAnErrorAndSaysNothing) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 TestParticipant it(context);
                 std::vector<std::string> said;
                 if (context.rank() == 0) {
                   it.participant.serve([&](const Pages&) {
                     const auto speak = [&](const std::function<void()>& call) {
                       std::thread([&] { said.push_back(error_of(call)); }).join();
                     };
                     speak([&] { it.participant.meet(ObservedUpdate{}); });
                     speak([&] { it.participant.want({1}); });
                     speak(
                         [&] { it.participant.announce(LaunchBucket{}, [](const Agreement&) {}); });
                     speak([&] { it.participant.settle(); });
                     speak([&] { it.participant.abandon(); });
                     speak([&] { coordinator_of(*it.group).meet_to_initialize(); });
                     it.participant.settle();  // the same thread may
                   });
                 } else {
                   it.participant.want({7});
                 }
                 EXPECT_TRUE(it.participant.meet(Step{}).together);
                 EXPECT_THAT(said, testing::SizeIs(context.rank() == 0 ? 6 : 0));
                 EXPECT_THAT(said, testing::Each(HasSubstr("expected one thread of a rank")));
                 // It is over: any thread may.
                 std::thread([&] { EXPECT_TRUE(it.participant.meet(Step{}).together); }).join();
               }),
      "");
}

TEST(Coordinator, OneRankAloneAsksNobody) {
  EXPECT_EQ(
      on_ranks(1,
               [](RankContext& context) {
                 TestParticipant it(context);
                 it.participant.want({3, 1});
                 EXPECT_EQ(it.gathered, (std::vector<Pages>{{3, 1}}));
                 EXPECT_EQ(
                     it.participant.meet(LaunchBucket{.bucket = 0, .rounds = 2}).greatest_flag, 2);
                 it.participant.abandon();
               }),
      "");
}

}  // namespace
}  // namespace equigrad::agreement
