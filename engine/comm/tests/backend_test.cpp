// The communicator's collectives, and what the others hear when a rank is lost.
#include "engine/comm/backend.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "conformance/faults/forwarding_communicator.hpp"
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/agreement/coordinator.hpp"
#include "engine/comm/communication_error.hpp"

namespace equigrad::comm {
namespace {

using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;

at::Tensor of_rank(int rank, int64_t numel) {
  return sample(numel, static_cast<uint64_t>(rank) + 1);
}

TEST(Communicator, CollectivesMoveWhatTheySay) {
  for (const int world : {1, 2, 3, 4}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         auto& group = *context.group();
                         const int w = context.world_size(), rank = context.rank();
                         EXPECT_EQ(group.rank(), rank);
                         EXPECT_EQ(group.world_size(), w);
                         EXPECT_EQ(group.device(), c10::Device(c10::kCPU));
                         std::vector<at::Tensor> wholes, pieces;
                         for (int r = 0; r < w; ++r) {
                           wholes.push_back(of_rank(r, 7));
                           pieces.push_back(of_rank(r, w * 5).narrow(0, rank * 5, 5));
                         }
                         const auto gathered = at::empty({w * 7});
                         group.all_gather(gathered, of_rank(rank, 7))->wait();
                         EXPECT_THAT(gathered, HasTheBitsOf(at::cat(wholes)));
                         const auto received = at::empty({w * 5});
                         group.all_to_all(received, of_rank(rank, w * 5))->wait();
                         EXPECT_THAT(received, HasTheBitsOf(at::cat(pieces)));
                         const auto values = of_rank(rank, 9);
                         group.broadcast(values, w - 1)->wait();
                         EXPECT_THAT(values, HasTheBitsOf(of_rank(w - 1, 9)));
                       }),
              "");
  }
}

// In another order than they were sent, past a collective, and each way.
TEST(Communicator, MessagesGoFromOneRankToAnotherByTheirTags) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       conformance::faults::ForwardingCommunicator group(context.group());
                       const int rank = context.rank(), to = (rank + 1) % 3, from = (rank + 2) % 3;
                       std::vector<at::Tensor> kept;
                       std::vector<PendingPtr> sent;
                       for (const int tag : {0, 5, 0, (1 << 30) + 7}) {
                         kept.push_back(of_rank(10 * rank + static_cast<int>(kept.size()), 9));
                         sent.push_back(group.send(kept.back(), to, tag));
                       }
                       exchange(group, at::zeros({1}, at::kLong));
                       const auto arrives = [&](int tag, int number) {
                         const auto tensor = at::empty({9});
                         group.receive(tensor, from, tag)->wait();
                         EXPECT_THAT(tensor, HasTheBitsOf(of_rank(10 * from + number, 9)));
                       };
                       arrives((1 << 30) + 7, 3);
                       arrives(0, 0);
                       arrives(5, 1);
                       arrives(0, 2);
                       for (const auto& pending : sent) pending->wait();
                     }),
            "");
}

TEST(Communicator, ExchangeTellsEveryRankWhatEachSaid) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       const int64_t rank = context.rank();
                       const auto said = exchange(*context.group(), at::tensor({rank * 10, -rank}));
                       EXPECT_TRUE(at::equal(
                           said, at::tensor({0, 0, 10, -1, 20, -2}, at::kLong).view({3, 2})));
                     }),
            "");
}

bool wait_for_file(const std::string& path) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(30);
  while (!std::filesystem::exists(path) && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  return std::filesystem::exists(path);
}

// As beside NCCL: what ranks tell each other goes another way than their tensors.
class TwoWays final : public conformance::faults::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  Communicator& words() override { return *real_; }
  PendingPtr all_gather(const at::Tensor&, const at::Tensor&) override {
    throw std::runtime_error("a word among the tensors");
  }
};

TEST(Communicator, WordsGoTheirOwnWay) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       TwoWays two_ways(context.group());
                       const auto said = exchange(two_ways, at::tensor({context.rank() + 7L}));
                       EXPECT_THAT(said, HasTheBitsOf(at::tensor({7L, 8L}).view({2, 1})));
                       agreement::coordinator_of(two_ways).meet_to_initialize();
                     }),
            "");
}

TEST(Communicator, TwoRanksOnACpuTrade) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         auto& group = *context.group();
                         const auto of = [](int rank) {
                           return sample(7, static_cast<uint64_t>(rank));
                         };
                         const auto output = at::zeros({7});
                         ASSERT_EQ(group.trades(), context.world_size() == 2);
                         if (!group.trades()) return;
                         group.trade(output, of(context.rank()))->wait();
                         EXPECT_THAT(output, HasTheBitsOf(of(1 - context.rank())));
                       }),
              "");
  }
}

// Neither overrides what a communicator that does not trade has.
class WithoutTrades final : public Communicator {
 public:
  explicit WithoutTrades(std::shared_ptr<Communicator> real) : real_(std::move(real)) {}
  int rank() const override { return real_->rank(); }
  int world_size() const override { return real_->world_size(); }
  c10::Device device() const override { return real_->device(); }
  PendingPtr all_to_all(const at::Tensor& output, const at::Tensor& input) override {
    return real_->all_to_all(output, input);
  }
  PendingPtr all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return real_->all_gather(output, input);
  }
  PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    return real_->all_reduce_sum(tensor);
  }
  PendingPtr reduce_scatter_sum(const at::Tensor& output, const at::Tensor& input) override {
    return real_->reduce_scatter_sum(output, input);
  }
  PendingPtr broadcast(const at::Tensor& tensor, int root) override {
    return real_->broadcast(tensor, root);
  }

 private:
  std::shared_ptr<Communicator> real_;
};

TEST(Communicator, OneThatDoesNotTradeSaysSo) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       WithoutTrades plain(context.group());
                       EXPECT_FALSE(plain.trades());
                       const auto one = at::zeros({1});
                       EXPECT_EQ(error_of([&] { plain.trade(one, one); }),
                                 "[comm.trade] expected a communicator that trades, got one that "
                                 "does not. Ask trades() before, and use all_to_all.");
                       EXPECT_THAT(error_of([&] { plain.send(one, 1, 0); }),
                                   HasSubstr("[comm.send] expected a communicator that sends"));
                       EXPECT_THAT(error_of([&] { plain.receive(one, 1, 0); }),
                                   HasSubstr("[comm.receive] expected a communicator"));
                     }),
            "");
}

// Two ranks' rows are sent from where they lie, others' from a copy.
TEST(Communicator, RowsMayLieApartOrBeTheSame) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         auto& group = *context.group();
                         const int64_t w = context.world_size(), r = context.rank();
                         const auto of = [w](int64_t rank) {
                           return sample(w * 10, static_cast<uint64_t>(rank)).view({w, 10});
                         };
                         const at::Tensor apart = at::zeros({w * 3}), same = at::zeros({w * 4});
                         group.all_to_all(apart, of(r).narrow(1, 2, 3))->wait();
                         group.all_to_all(same, of(r)[0].narrow(0, 5, 4).expand({w, 4}))->wait();
                         for (int64_t rank = 0; rank < w; ++rank) {
                           EXPECT_THAT(apart.narrow(0, rank * 3, 3),
                                       HasTheBitsOf(of(rank)[r].narrow(0, 2, 3).clone()));
                           EXPECT_THAT(same.narrow(0, rank * 4, 4),
                                       HasTheBitsOf(of(rank)[0].narrow(0, 5, 4).clone()));
                         }
                       }),
              "");
  }
}

TEST(Communicator, ARankThatDoesNotComeIsAnErrorWithinTheTimeOut) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const std::string done = context.directory() + "/done";
                       const auto group = connect_gloo(
                           context.rank(), 2, context.directory() + "/late", milliseconds(5'000));
                       if (context.rank() == 1) {
                         EXPECT_TRUE(wait_for_file(done));
                         return;
                       }
                       const auto start = steady_clock::now();
                       const auto output = at::empty({2});
                       EXPECT_THAT(
                           error_of([&] { group->all_to_all(output, at::zeros({2}))->wait(); }),
                           AllOf(HasSubstr("rank 0/2"), HasSubstr("comm.all_to_all"),
                                 HasSubstr("2 ranks")));
                       EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(30));
                       std::ofstream(done) << "done";
                     }),
            "");
}

// The rank that a collective's error says is lost; -1: it does not know; -2: another error or none.
template <class Function>
int lost_in(Function&& function) {
  try {
    function();
  } catch (const CommunicationError& error) {
    return error.lost_rank().value_or(-1);
  } catch (const std::exception&) {
  }
  return -2;
}

TEST(Communicator, ALostPeerIsAnErrorOfItsOwnTypeThatNamesIt) {
  for (const int world : {2, 3}) {
    EXPECT_EQ(
        on_ranks(world,
                 [](RankContext& context) {
                   const int w = context.world_size();
                   auto group = connect_gloo(context.rank(), w, context.directory() + "/lost",
                                             std::chrono::seconds(6));
                   exchange(*group, at::zeros({1}, at::kLong));
                   if (context.rank() == 1) return group.reset();
                   const auto output = at::empty({w}), values = at::zeros({w});
                   EXPECT_EQ(lost_in([&] { group->all_to_all(output, values)->wait(); }), 1);
                   EXPECT_EQ(
                       lost_in([&] { group->all_gather(output, output[0].view({1}))->wait(); }), 1);
                 }),
        "");
  }
}

// In a group that is a part of all ranks, by its number among these.
TEST(Communicator, ALostPeerOfAPartIsNamedByItsNumberAmongAll) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       auto group = connect_gloo(context.rank(), 2, context.directory() + "/part",
                                                 std::chrono::seconds(20));
                       group->call_ranks({4, 9});
                       exchange(*group, at::zeros({1}, at::kLong));
                       if (context.rank() == 1) return group.reset();
                       EXPECT_EQ(lost_in([&] { exchange(*group, at::zeros({1}, at::kLong)); }), 9);
                     }),
            "");
}

// What the system does with a write whose reader is gone: its number, if it is an error.
int error_of_a_broken_pipe() {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  close(ends[0]);
  const bool is_error = write(ends[1], "x", 1) < 0;
  const int number = is_error ? errno : 0;
  close(ends[1]);
  return number;
}

TEST(Communicator, AWriteToALostPeerIsAnErrorAndEndsNoProcess) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       std::signal(SIGPIPE, SIG_DFL);
                       connect_gloo(0, 1, context.directory() + "/pipe", std::chrono::seconds(6));
                       EXPECT_EQ(error_of_a_broken_pipe(), EPIPE);
                     }),
            "");
}

TEST(Communicator, WhatAUserDoesAboutBrokenPipesStands) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       static volatile std::sig_atomic_t told = 0;
                       std::signal(SIGPIPE, [](int) { told = 1; });
                       connect_gloo(0, 1, context.directory() + "/own", std::chrono::seconds(6));
                       EXPECT_EQ(error_of_a_broken_pipe(), EPIPE);
                       EXPECT_EQ(told, 1);
                     }),
            "");
}

TEST(Communicator, ARankThatIsGoneIsAnErrorAtOnce) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       auto group = connect_gloo(context.rank(), 2, context.directory() + "/gone",
                                                 std::chrono::seconds(50));
                       exchange(*group, at::zeros({1}, at::kLong));
                       if (context.rank() == 1) {
                         group.reset();
                         return;
                       }
                       const auto start = steady_clock::now();
                       const auto output = at::empty({2});
                       EXPECT_THAT(
                           error_of([&] { group->all_gather(output, at::zeros({1}))->wait(); }),
                           AllOf(HasSubstr("rank 0/2"), HasSubstr("comm.all_gather")));
                       EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(25));
                     }),
            "");
}

TEST(Communicator, NcclWithoutADeviceSaysWhatIsMissing) {
  EXPECT_EQ(
      on_ranks(1,
               [](RankContext& context) {
                 EXPECT_THAT(
                     error_of([&] {
                       connect_nccl(0, 1, 1000, context.directory() + "/nccl", milliseconds(1000));
                     }),
                     AllOf(HasSubstr("expected CUDA device 1000"), HasSubstr("one device a rank")));
               }),
      "");
}

}  // namespace
}  // namespace equigrad::comm
