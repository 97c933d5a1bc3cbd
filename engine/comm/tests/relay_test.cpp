// All-gathers that are passed on: the bits of the direct one, messages counted, and nobody held up.
#include "engine/comm/relay.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "conformance/faults/forwarding_communicator.hpp"
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/counting_communicator.hpp"
#include "conformance/testing/error_of.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/agreement/coordinator.hpp"

namespace equigrad::comm {
namespace {

using conformance::CountingCommunicator;
using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::HasSubstr;

constexpr int kTag = 1000;

at::Tensor of_rank(int rank, int64_t numel) {
  return sample(numel, static_cast<uint64_t>(rank) + 1);
}

TEST(Relay, TakesTheRoundsOfALogarithm) {
  const std::vector<int> worlds{1, 2, 3, 4, 5, 8, 9, 4096};
  std::vector<int> rounds;
  for (const int world : worlds) rounds.push_back(relay_rounds(world));
  EXPECT_THAT(rounds, testing::ElementsAre(0, 1, 2, 2, 3, 3, 4, 12));
}

TEST(Relay, GathersWhatTheDirectOneDoesInRoundsMessages) {
  for (const int world : {1, 2, 3, 4, 5, 6, 8})
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         const int w = context.world_size();
                         CountingCommunicator counting(context.group());
                         Relay relay(counting, kTag);
                         for (const int64_t numel : {1, 7, 1000}) {
                           const auto mine = of_rank(context.rank(), numel);
                           const auto relayed = at::empty({w * numel}), direct = relayed.clone();
                           counting.reset();
                           relay.all_gather(relayed, mine)->wait();
                           const auto counts = counting.counts();
                           context.group()->all_gather(direct, mine)->wait();
                           EXPECT_THAT(relayed, HasTheBitsOf(direct));
                           EXPECT_EQ(counts.bytes, (w - 1) * numel * 4);
                           EXPECT_EQ(w == 1 ? 0 : counts.collectives.at("send"), relay_rounds(w));
                         }
                       }),
              "");
}

TEST(Relay, CarriesOutManyInTheirOrderWhateverIsWaitedForFirst) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Relay relay(*context.group(), kTag);
                       std::vector<at::Tensor> heard;
                       std::vector<PendingPtr> pending;
                       for (int i = 0; i < 20; ++i) {
                         heard.push_back(at::empty({3 * (i + 1)}));
                         const auto mine = at::full({i + 1}, 100.0 * i + context.rank());
                         pending.push_back(relay.all_gather(heard.back(), mine));
                       }
                       for (int i = 19; i >= 0; --i) pending[static_cast<std::size_t>(i)]->wait();
                       for (int i = 0; i < 20; ++i)
                         for (int rank = 0; rank < 3; ++rank)
                           EXPECT_TRUE(heard[static_cast<std::size_t>(i)]
                                           .view({3, -1})[rank]
                                           .eq(100.0 * i + rank)
                                           .all()
                                           .item<bool>());
                     }),
            "");
}

bool wait_for_file(const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!std::filesystem::exists(path) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return std::filesystem::exists(path);
}

// Rank 0 has said what it has to say and does something else until the others have heard all.
TEST(Relay, HoldsNobodyUpWhileARankDoesSomethingElse) {
  EXPECT_EQ(on_ranks(4,
                     [](RankContext& context) {
                       Relay relay(*context.group(), kTag);
                       const auto heard = at::empty({4}, at::kLong);
                       const auto mine = at::full({1}, context.rank(), at::kLong);
                       const auto pending = relay.all_gather(heard, mine);
                       const auto done = [&](int rank) {
                         return context.directory() + "/heard" + std::to_string(rank);
                       };
                       if (context.rank() == 0)
                         for (int rank = 1; rank < 4; ++rank)
                           EXPECT_TRUE(wait_for_file(done(rank)));
                       pending->wait();
                       std::ofstream(done(context.rank())) << "1";
                       EXPECT_TRUE(at::equal(heard, at::arange(4, at::kLong)));
                     }),
            "");
}

// Its words are relayed, whatever the number of ranks.
class Relayed final : public conformance::faults::ForwardingCommunicator {
 public:
  explicit Relayed(std::shared_ptr<Communicator> real)
      : ForwardingCommunicator(std::move(real)), relay_(*this, kTag) {}
  PendingPtr gather_words(const at::Tensor& output, const at::Tensor& input) override {
    return relay_.all_gather(output, input);
  }

 private:
  Relay relay_;
};

TEST(Relay, AgreementsAreTheSame) {
  for (const int world : {2, 3, 4})
    EXPECT_EQ(
        on_ranks(world,
                 [](RankContext& context) {
                   Relayed relayed(context.group());
                   agreement::Participant one(relayed, 3), other(relayed, 3);
                   // Rank 0 announces a full bucket, the others come to it later.
                   std::vector<bool> answers;
                   one.announce(
                       agreement::LaunchBucket{.bucket = 1},
                       [&](const agreement::Agreement& said) { answers.push_back(said.together); });
                   one.settle();
                   const auto step = one.meet(agreement::Step{.passes = 2},
                                              {context.rank() == 0, false, context.rank() == 1});
                   EXPECT_THAT(answers, testing::ElementsAre(true));
                   EXPECT_THAT(step.marks, testing::ElementsAre(true, false, true));
                   const auto error = error_of([&] {
                     if (context.rank() == 0)
                       one.meet(agreement::Step{.passes = 3});
                     else
                       one.meet(agreement::SaveCheckpoint{});
                   });
                   EXPECT_THAT(error, HasSubstr("expected every rank at the same place"));
                 }),
        "");
}

}  // namespace
}  // namespace equigrad::comm
