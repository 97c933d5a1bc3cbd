// A communicator that carries another device's tensors by way of the CPU: here the other device is
// the CPU, too, and copies are made all the same.
#include "engine/comm/staged.hpp"

#include <unistd.h>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/comm/mesh.hpp"
#include "engine/comm/reduction.hpp"

namespace equigrad::comm {
namespace {

using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::HasSubstr;

at::Tensor of_rank(int rank, int64_t numel) {
  return sample(numel, static_cast<uint64_t>(rank) + 1);
}

TEST(Staged, CollectivesMoveWhatThoseOfTheGivenOneDo) {
  for (const int world : {1, 2, 3, 4}) {
    EXPECT_EQ(
        on_ranks(world,
                 [](RankContext& context) {
                   const auto group = staged(context.group(), at::kCPU);
                   const int w = context.world_size(), rank = context.rank();
                   EXPECT_EQ(group->rank(), rank);
                   EXPECT_EQ(group->world_size(), w);
                   EXPECT_FALSE(group->trades());
                   std::vector<at::Tensor> wholes, pieces;
                   for (int r = 0; r < w; ++r) {
                     wholes.push_back(of_rank(r, 7));
                     pieces.push_back(of_rank(r, w * 5).narrow(0, rank * 5, 5));
                   }
                   const auto gathered = at::empty({w * 7});
                   group->all_gather(gathered, of_rank(rank, 7))->wait();
                   EXPECT_THAT(gathered, HasTheBitsOf(at::cat(wholes)));
                   const auto received = at::empty({w * 5});
                   group->all_to_all(received, of_rank(rank, w * 5))->wait();
                   EXPECT_THAT(received, HasTheBitsOf(at::cat(pieces)));
                   // One row for all, as a reduction sends it.
                   const auto rows = at::empty({w * 7});
                   group->all_to_all(rows, of_rank(rank, 7).expand({w, 7}))->wait();
                   EXPECT_THAT(rows, HasTheBitsOf(at::cat(wholes)));
                   const auto values = of_rank(rank, 9);
                   group->broadcast(values, w - 1)->wait();
                   EXPECT_THAT(values, HasTheBitsOf(of_rank(w - 1, 9)));
                   const auto whole_numbers = at::full({6}, static_cast<float>(rank + 1));
                   group->all_reduce_sum(whole_numbers)->wait();
                   EXPECT_THAT(whole_numbers,
                               HasTheBitsOf(at::full({6}, static_cast<float>(w * (w + 1) / 2))));
                   const auto own = at::empty({2});
                   group->reduce_scatter_sum(own, at::full({2 * w}, static_cast<float>(rank + 1)))
                       ->wait();
                   EXPECT_THAT(own,
                               HasTheBitsOf(at::full({2}, static_cast<float>(w * (w + 1) / 2))));
                   EXPECT_THAT(exchange(*group, at::full({1}, rank, at::kLong)),
                               HasTheBitsOf(at::arange(w).view({-1, 1})));
                 }),
        "");
  }
}

TEST(Staged, AnInputMayBeWrittenWhileItIsUnderWayAndAnOutputComesWithWait) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto group = staged(context.group(), at::kCPU);
                       const int rank = context.rank();
                       const auto mine = of_rank(rank, 5), got = at::zeros({10});
                       const auto pending = group->all_gather(got, mine);
                       mine.zero_();
                       EXPECT_THAT(got, HasTheBitsOf(at::zeros({10})));
                       pending->wait();
                       EXPECT_THAT(got, HasTheBitsOf(at::cat({of_rank(0, 5), of_rank(1, 5)})));
                       got.zero_();
                       pending->wait();
                       EXPECT_THAT(got, HasTheBitsOf(at::zeros({10})));
                     }),
            "");
}

TEST(Staged, MessagesGoFromOneRankToAnother) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const auto group = staged(context.group(), at::kCPU);
                       const int rank = context.rank(), other = 1 - rank;
                       const auto sent = group->send(of_rank(rank, 4), other, 3);
                       const auto got = at::empty({4});
                       group->receive(got, other, 3)->wait();
                       sent->wait();
                       EXPECT_THAT(got, HasTheBitsOf(of_rank(other, 4)));
                     }),
            "");
}

TEST(Staged, ReductionsHaveTheBitsOfTheGivenOne) {
  for (const int world : {1, 2, 3, 4}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      EXPECT_EQ(on_ranks(world,
                         [type](RankContext& context) {
                           const auto real = context.group();
                           const auto group = staged(real, at::kCPU);
                           const int64_t numel = context.world_size() * int64_t{1'003};
                           const auto sum = [&](Communicator& over, bool is_scattered) {
                             auto buffer = of_rank(context.rank(), numel).to(type);
                             return is_scattered
                                        ? Reduction::reduce_scatter_sum(
                                              over, ReductionOrder::Pinned, buffer, at::kFloat)
                                              .finish()
                                        : Reduction::all_reduce_sum(over, ReductionOrder::Pinned,
                                                                    buffer, at::kFloat)
                                              .finish();
                           };
                           for (const bool is_scattered : {true, false})
                             EXPECT_THAT(sum(*group, is_scattered),
                                         HasTheBitsOf(sum(*real, is_scattered)));
                         }),
                "");
    }
  }
}

TEST(Staged, ErrorsCallRanksByTheNamesThatTheyWereGiven) {
  const auto outcomes = conformance::ranks::run_ranks(
      2,
      [](RankContext& context) {
        const auto group = staged(context.group(), at::kCPU);
        group->call_ranks({4, 6});
        if (context.rank() == 0) _exit(0);
        const auto output = at::empty({2});
        return error_of([&] { group->all_gather(output, at::ones({1}))->wait(); });
      },
      {.timeout = std::chrono::milliseconds(20'000), .grace = std::chrono::milliseconds(10'000)});
  const auto text = outcomes[1].answer.dump();
  EXPECT_THAT(text, HasSubstr("rank 6 of ranks 4, 6"));
  EXPECT_THAT(text, HasSubstr("rank 4, which"));
}

}  // namespace
}  // namespace equigrad::comm
