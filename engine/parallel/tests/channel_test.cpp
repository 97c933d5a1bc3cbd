// Parcels by number, whole, refused and unanswered; and a word for each form.
#include "engine/parallel/channel.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/counting_communicator.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"

namespace equigrad::parallel {
namespace {

using conformance::CountingCommunicator;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

const std::vector<Transfer> kPlan{{.from = 0, .to = 1, .rows = {0, 4}}};
const Form kForm{.dtype = at::kFloat, .row_sizes = {3}};

at::Tensor message(uint64_t number) { return sample(12, number).view({4, 3}); }

TEST(Channel, NumbersMayBeReceivedInAnyOrder) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       Channel channel(context.group(), kPlan, kForm, {0, 4}, 7);
                       if (context.rank() == 0) {
                         // A view whose elements lie apart.
                         const auto apart = message(1).t().contiguous().t();
                         channel.send(1, State::Whole, apart);
                         channel.send(Channel::kNumbers + 2, State::Whole, message(2));
                         channel.send(3, State::Whole, message(3));
                         channel.settle(3 + Channel::kNumbers);
                       } else {
                         for (const int64_t number : {int64_t{3}, int64_t{1}})
                           EXPECT_THAT(channel.receive(number).rows,
                                       HasTheBitsOf(message(static_cast<uint64_t>(number))));
                         EXPECT_THAT(channel.receive(Channel::kNumbers + 2).rows,
                                     HasTheBitsOf(message(2)));
                       }
                     }),
            "");
}

TEST(Channel, WhatIsNotOfTheFormIsToldByWhatCame) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 Channel channel(context.group(), kPlan, kForm, {0, 4}, 0);
                 EXPECT_EQ(channel.refusal_of(message(1)), "");
                 EXPECT_EQ(channel.refusal_of(message(1).to(at::kHalf)),
                           "expected Float [4, 3], got Half [4, 3]");
                 EXPECT_EQ(channel.refusal_of({}), "expected Float [4, 3], got no tensor");
                 const auto deep = at::zeros(std::vector<int64_t>(12, 1));
                 if (context.rank() == 0) {
                   channel.send(0, State::Refused, deep);
                   channel.send(1, State::Unanswered, {});
                   channel.send(2, State::Whole, message(2));
                   channel.settle(2);
                 } else {
                   const auto refused = channel.receive(0);
                   EXPECT_FALSE(refused.rows.defined());
                   EXPECT_EQ(refused.refusal,
                             "expected rank 0 to send Float [4, 3], got Float [1, 1, 1, 1, 1, 1, "
                             "1, 1, 1, 1, 1] and more dimensions");
                   EXPECT_EQ(channel.receive(1).refusal,
                             "expected rank 0 to send Float [4, 3], got none, for it was refused "
                             "what it answers");
                   EXPECT_EQ(channel.receive(2).refusal, "");
                 }
               }),
      "");
}

// 128 bytes of header and the rows, once to each receiver: replicas cost, others do not.
TEST(Channel, SendsWhatThePlanSaysAndNoMore) {
  EXPECT_EQ(
      on_ranks(3,
               [](RankContext& context) {
                 const auto counting = std::make_shared<CountingCommunicator>(context.group());
                 const auto plan = plan_rows(4, {.first = 0, .data = 2}, {.first = 2});
                 const auto mine = context.rank() == 2 ? Rows{0, 4} : rows_of(4, context.rank(), 2);
                 Channel channel(counting, plan, kForm, mine, 1);
                 if (context.rank() == 2)
                   EXPECT_THAT(channel.receive(0).rows, HasTheBitsOf(message(5)));
                 else
                   channel.send(0, State::Whole, message(5).narrow(0, mine.begin, 2));
                 channel.settle(0);
                 EXPECT_EQ(counting->counts().bytes, context.rank() == 2 ? 0 : 128 + 2 * 3 * 4);
               }),
      "");
}

}  // namespace
}  // namespace equigrad::parallel
