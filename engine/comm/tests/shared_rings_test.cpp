// Rows through shared memory: long ones, many at once, those that nobody waits for yet, and what
// the others hear of a call that is another, of a rank that is gone and of one that does not come.
#include "engine/comm/shared_rings.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::comm {
namespace {

using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;

// The text of whatever it throws.
template <class Function>
std::string thrown_by(Function&& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

at::Tensor row_of(int from, int to, int64_t numel, int call) {
  return sample(numel, static_cast<uint64_t>(from * 100 + to * 10 + call) + 1);
}

std::shared_ptr<SharedRings> rings_of(RankContext& context, milliseconds timeout) {
  const int w = context.world_size();
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::FileStore>(context.directory() + "/rings", w);
  const auto key = [](int of) { return "process/" + std::to_string(of); };
  store->set(key(context.rank()), introduction());
  std::vector<std::string> introductions;
  for (int of = 0; of < w; ++of) introductions.push_back(store->get_to_str(key(of)));
  return SharedRings::connect(
      {[&](const std::string& name, const std::string& value) { store->set(name, value); },
       [&](const std::string& name) { return store->get_to_str(name); }},
      context.rank(), w, std::make_shared<const Peers>(introductions), timeout);
}

// Rows of many ring's lengths and of one element, posted at once and waited for in another order.
TEST(SharedRings, EveryRowArrivesWholeWhateverItsLength) {
  for (const int world : {2, 3, 4})
    EXPECT_EQ(
        on_ranks(world,
                 [](RankContext& context) {
                   const auto rings = rings_of(context, seconds(30));
                   ASSERT_NE(rings, nullptr);
                   const int w = context.world_size(), me = context.rank();
                   const std::vector<int64_t> numels = {1, 3'000'001, 17, 0, 1'048'576, 5};
                   std::vector<std::shared_ptr<SharedRings::Exchange>> posted;
                   std::vector<std::vector<Row>> all;
                   for (std::size_t call = 0; call < numels.size(); ++call) {
                     std::vector<Row> rows;
                     for (int step = 1; step < w; ++step) {
                       const int peer = (me + step) % w;
                       rows.push_back({peer, row_of(me, peer, numels[call], static_cast<int>(call)),
                                       at::empty({numels[call]})});
                     }
                     all.push_back(rows);
                     posted.push_back(rings->post(rows));
                   }
                   for (std::size_t call = numels.size(); call-- > 0;) {
                     rings->wait(*posted[call]);
                     for (const auto& row : all[call])
                       if (numels[call] > 0)
                         EXPECT_THAT(row.receive, HasTheBitsOf(row_of(row.peer, me, numels[call],
                                                                      static_cast<int>(call))))
                             << call;
                   }
                 }),
        "");
}

// Rank 0 waits for a sum by Gloo with rank 1, which first waits for the whole of rank 0's rows; the
// helping thread has been idle so long that it sleeps.
TEST(SharedRings, WhatNobodyWaitsForGoesOn) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 const int64_t numel = 8 << 20;
                 auto group =
                     connect_gloo(context.rank(), 2, context.directory() + "/lazy", seconds(20));
                 const auto input = row_of(context.rank(), 0, 2 * numel, 0);
                 const auto output = at::empty({2 * numel}), word = at::ones({1});
                 std::this_thread::sleep_for(milliseconds(500));
                 auto rows = group->all_to_all(output, input);
                 if (context.rank() == 1) rows->wait();
                 group->all_reduce_sum(word)->wait();
                 if (context.rank() == 0) rows->wait();
                 for (const int from : {0, 1})
                   EXPECT_THAT(
                       output.narrow(0, from * numel, numel),
                       HasTheBitsOf(
                           row_of(from, 0, 2 * numel, 0).narrow(0, context.rank() * numel, numel)));
               }),
      "");
}

TEST(SharedRings, MemoryOfWhatIsThroughIsLetGo) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto rings = rings_of(context, seconds(30));
                       ASSERT_NE(rings, nullptr);
                       const auto sent = at::ones({100}), received = at::zeros({100});
                       const auto exchange = rings->post({{1 - context.rank(), sent, received}});
                       EXPECT_GT(sent.use_count(), 1);
                       rings->wait(*exchange);
                       EXPECT_EQ(sent.use_count(), 1);
                       EXPECT_EQ(received.use_count(), 1);
                     }),
            "");
}

TEST(SharedRings, AnotherCallThanThisOneIsAnErrorThatSaysSo) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 auto group =
                     connect_gloo(context.rank(), 2, context.directory() + "/other", seconds(20));
                 const int64_t numel = context.rank() == 0 ? 4 : 6;
                 EXPECT_THAT(error_of([&] {
                               group->all_gather(at::empty({2 * numel}), at::ones({numel}))->wait();
                             }),
                             AllOf(HasSubstr("comm.all_gather"),
                                   HasSubstr(context.rank() == 0 ? "message 1 of 24 bytes"
                                                                 : "message 1 of 16 bytes"),
                                   HasSubstr("bytes are due"), HasSubstr("other calls")));
                 std::this_thread::sleep_for(milliseconds(300));  // the other one reads it
               }),
      "");
}

// After an error nothing is sent and nothing is written, whatever comes.
TEST(SharedRings, WhatIsPostedBehindAnErrorIsNotBegun) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 const int me = context.rank();
                 const auto rings = rings_of(context, milliseconds(me == 0 ? 300 : 20'000));
                 ASSERT_NE(rings, nullptr);
                 const auto flag = context.directory() + "/posted";
                 const auto end = steady_clock::now() + seconds(20);
                 while (me == 1 && steady_clock::now() < end && !std::filesystem::exists(flag))
                   std::this_thread::sleep_for(milliseconds(10));
                 const auto first = rings->post({{1 - me, at::ones({4}), at::empty({4})}});
                 if (me == 1) {
                   EXPECT_THAT(
                       thrown_by([&] {
                         rings->wait(*first);
                         rings->wait(*rings->post({{0, at::full({4}, 2.0F), at::empty({4})}}));
                       }),
                       HasSubstr("rank 0 has given up"));
                   return;
                 }
                 EXPECT_THAT(thrown_by([&] { rings->wait(*first); }), HasSubstr("Timed out"));
                 const auto output = at::zeros({4});
                 const auto second = rings->post({{1, at::full({4}, 3.0F), output}});
                 std::ofstream(flag) << "posted";
                 std::this_thread::sleep_for(milliseconds(500));
                 EXPECT_THAT(thrown_by([&] { rings->wait(*second); }), HasSubstr("Timed out"));
                 EXPECT_THAT(output, HasTheBitsOf(at::zeros({4})));
               }),
      "");
}

// Rank 1 leaves; rank 0 sees it, says so and leaves, before rank 2 looks: it hears of rank 1.
TEST(SharedRings, WhoLeavesBecauseOfALostRankNamesIt) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       auto rings = rings_of(context, seconds(50));
                       ASSERT_NE(rings, nullptr);
                       const int me = context.rank();
                       const auto lost_of = [&](int peer) {
                         try {
                           rings->wait(*rings->post({{peer, at::ones({8}), at::empty({8})}}));
                         } catch (const LostRank& error) {
                           return error.rank();
                         }
                         return -1;
                       };
                       const auto flag = context.directory() + "/left";
                       if (me == 1) return rings.reset();
                       if (me == 0) {
                         EXPECT_EQ(lost_of(1), 1);
                         rings.reset();
                         std::ofstream(flag) << "left";
                         return;
                       }
                       const auto end = steady_clock::now() + seconds(20);
                       while (steady_clock::now() < end && !std::filesystem::exists(flag))
                         std::this_thread::sleep_for(milliseconds(10));
                       EXPECT_EQ(lost_of(0), 1);
                     }),
            "");
}

// Rank 0 posts more than a ring holds, waits for nothing and leaves. What it would receive is of no
// interest: rank 1 sends one number.
TEST(SharedRings, WhoLeavesSendsFirstWhatItHasPosted) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const int me = context.rank();
                       const int64_t numel = 5 << 20;
                       auto rings = rings_of(context, seconds(30));
                       ASSERT_NE(rings, nullptr);
                       const auto got = at::empty({me == 0 ? 1 : numel});
                       const auto sent = row_of(me, 1 - me, me == 0 ? numel : 1, 7);
                       auto exchange = rings->post({{1 - me, sent, got}});
                       if (me == 0) return rings.reset();
                       std::this_thread::sleep_for(milliseconds(100));
                       rings->wait(*exchange);
                       EXPECT_THAT(got, HasTheBitsOf(row_of(0, 1, numel, 7)));
                     }),
            "");
}

// Its process lives on.
TEST(SharedRings, WhoLeavesWithMoreToReceiveHasLeft) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const int me = context.rank();
                       auto rings = rings_of(context, seconds(50));
                       ASSERT_NE(rings, nullptr);
                       const auto flag = context.directory() + "/heard";
                       if (me == 1) {
                         rings->post({{0, at::ones({4}), at::empty({4})}});
                         rings.reset();
                         const auto end = steady_clock::now() + seconds(40);
                         while (steady_clock::now() < end && !std::filesystem::exists(flag))
                           std::this_thread::sleep_for(milliseconds(10));
                         return;
                       }
                       std::this_thread::sleep_for(milliseconds(200));
                       const auto start = steady_clock::now();
                       rings->wait(*rings->post({{1, at::ones({4}), at::empty({4})}}));
                       EXPECT_THAT(
                           thrown_by([&] {
                             rings->wait(*rings->post({{1, at::ones({4}), at::empty({4})}}));
                           }),
                           HasSubstr("it has left"));
                       EXPECT_LT(steady_clock::now() - start, seconds(20));
                       std::ofstream(flag) << "heard";
                     }),
            "");
}

// Rank 1 has ended its part of the first exchange and owes the second; rank 2 is late with the
// first one, which rank 0 gets all the same.
TEST(SharedRings, ALostRankSpoilsNothingThatItHasDone) {
  EXPECT_EQ(
      on_ranks(
          3,
          [](RankContext& context) {
            auto rings = rings_of(context, seconds(30));
            ASSERT_NE(rings, nullptr);
            const int me = context.rank();
            const auto rows = [&] {
              std::vector<Row> all;
              for (const int step : {1, 2})
                all.push_back({(me + step) % 3, at::full({8}, me, at::kFloat), at::empty({8})});
              return all;
            };
            if (me == 2) std::this_thread::sleep_for(milliseconds(400));
            const auto mine = rows();
            auto first = rings->post(mine);
            if (me == 1) return rings.reset();
            if (me == 0) rings->post(rows());
            rings->wait(*first);
            for (const auto& row : mine)
              EXPECT_EQ(row.receive[0].item<float>(), static_cast<float>(row.peer));
          }),
      "");
}

// What it had written before can still be read; what it owes cannot.
TEST(SharedRings, ARankThatLeavesIsNamedAtOnceAndWhatItSentIsThere) {
  EXPECT_EQ(
      on_ranks(
          3,
          [](RankContext& context) {
            auto rings = rings_of(context, seconds(50));
            ASSERT_NE(rings, nullptr);
            const int me = context.rank();
            const auto all_rows = [&] {
              std::vector<Row> rows;
              for (const int step : {1, 2})
                rows.push_back({(me + step) % 3, at::full({8}, me, at::kFloat), at::empty({8})});
              return rows;
            };
            const auto first = all_rows();
            rings->wait(*rings->post(first));
            for (const auto& row : first)
              EXPECT_EQ(row.receive[7].item<float>(), static_cast<float>(row.peer));
            if (me == 1) return rings.reset();
            const auto start = steady_clock::now();
            int lost = -1;
            try {
              rings->wait(*rings->post(all_rows()));
            } catch (const LostRank& error) {
              lost = error.rank();
            }
            EXPECT_EQ(lost, 1);
            EXPECT_LT(steady_clock::now() - start, seconds(20));
            EXPECT_NE(thrown_by([&] { rings->wait(*rings->post(all_rows())); }), "");
            std::this_thread::sleep_for(milliseconds(300));  // the other one hears of 1
          }),
      "");
}

TEST(SharedRings, ARankThatDoesNotComeIsAnErrorWithinTheTimeOut) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto rings = rings_of(context, milliseconds(600));
                       ASSERT_NE(rings, nullptr);
                       const auto done = context.directory() + "/done";
                       const auto end = steady_clock::now() + seconds(20);
                       while (context.rank() == 1 && steady_clock::now() < end &&
                              !std::filesystem::exists(done))
                         std::this_thread::sleep_for(milliseconds(10));
                       if (context.rank() == 1) return;
                       EXPECT_THAT(
                           thrown_by([&] {
                             rings->wait(*rings->post({{1, at::ones({4}), at::empty({4})}}));
                           }),
                           HasSubstr("Timed out waiting 600ms"));
                       std::ofstream(done) << "done";
                     }),
            "");
}

TEST(SharedRings, ThereAreNoneWhereOneRankDoesNotWantThem) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       if (context.rank() == 1) setenv("EQUIGRAD_SHARED_MEMORY", "0", 1);
                       EXPECT_EQ(rings_of(context, seconds(30)), nullptr);
                       auto group = connect_gloo(context.rank(), 3, context.directory() + "/tcp",
                                                 seconds(30));
                       const auto all = at::empty({3});
                       group->all_gather(all, at::full({1}, context.rank(), at::kFloat))->wait();
                       EXPECT_THAT(all, HasTheBitsOf(at::arange(3, at::kFloat)));
                     }),
            "");
}

// More than eight then pass on what is small (comm/relay.hpp).
TEST(SharedRings, WithoutThemNineRanksRelayTheirWords) {
  EXPECT_EQ(on_ranks(9,
                     [](RankContext& context) {
                       setenv("EQUIGRAD_SHARED_MEMORY", "0", 1);
                       auto group = connect_gloo(context.rank(), 9, context.directory() + "/nine",
                                                 seconds(60));
                       const auto said =
                           exchange(*group, at::full({2}, 10 * context.rank(), at::kLong));
                       EXPECT_THAT(said.select(1, 1), HasTheBitsOf(at::arange(9) * 10));
                     }),
            "");
}

TEST(SharedRings, AProcessThatIsForkedLeavesThemToItsParent) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       auto rings = rings_of(context, seconds(30));
                       ASSERT_NE(rings, nullptr);
                       const pid_t child = fork();
                       if (child == 0) {
                         const auto error = thrown_by([&] {
                           rings->post({{1 - context.rank(), at::ones({1}), at::empty({1})}});
                         });
                         rings.reset();
                         _exit(error.find("forked") == std::string::npos ? 1 : 0);
                       }
                       int status = -1;
                       waitpid(child, &status, 0);
                       EXPECT_EQ(status, 0);
                       const auto got = at::empty({1});
                       rings->wait(*rings->post(
                           {{1 - context.rank(), at::full({1}, context.rank(), at::kFloat), got}}));
                       EXPECT_EQ(got.item<float>(), 1.0F - static_cast<float>(context.rank()));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::comm
