// A communicator in front of another one takes the same path as that one, and an override sees all
// of it.
#include "conformance/faults/forwarding_communicator.hpp"

#include <gmock/gmock.h>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "engine/comm/reduction.hpp"

namespace equigrad::conformance::faults {
namespace {

using oracle::HasTheBitsOf;
using ranks::on_ranks;
using ranks::RankContext;

class Doubling final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  int traded = 0, sent = 0;

 private:
  PendingPtr carry(Carrier by, const at::Tensor& output, const at::Tensor& input) override {
    ++(by == &comm::Communicator::trade ? traded : sent);
    return send(by, output, input * 2);
  }
};

TEST(ForwardingCommunicator, OfTwoRanksTradesAndAnOverrideMeetsWhatIsTraded) {
  for (const int ranks : {1, 2, 3}) {
    const auto on_rank = [](RankContext& context) {
      const int world = context.world_size();
      Doubling doubling(context.group());
      EXPECT_EQ(doubling.trades(), context.group()->trades());
      EXPECT_EQ(doubling.trades(), world == 2);
      const auto ones = at::ones({4 * world});
      const auto sum =
          comm::Reduction::reduce_scatter_sum(doubling, ReductionOrder::Pinned, ones, at::kFloat)
              .finish();
      const double own = world == 2 ? 1 : 2;  // what is traded leaves a rank's own row as it is
      EXPECT_THAT(sum, HasTheBitsOf(at::full({4}, own + 2.0 * (world - 1))));
      EXPECT_EQ(doubling.traded, world == 2 ? 1 : 0);
      EXPECT_EQ(doubling.sent, world == 2 ? 0 : 1);
    };
    EXPECT_EQ(on_ranks(ranks, on_rank), "");
  }
}

// As beside NCCL, where words have a group of their own.
class WordsElsewhere final : public ForwardingCommunicator {
 public:
  WordsElsewhere(std::shared_ptr<comm::Communicator> group, comm::Communicator& of_words)
      : ForwardingCommunicator(std::move(group)), of_words_(of_words) {}
  comm::Communicator& words() override { return of_words_; }

 private:
  comm::Communicator& of_words_;
};

TEST(ForwardingCommunicator, WordsPassItUnlessTheyHaveAGroupOfTheirOwn) {
  const auto on_rank = [](RankContext& context) {
    ForwardingCommunicator plain(context.group());
    EXPECT_EQ(&plain.words(), &plain);
    ForwardingCommunicator other(context.group());
    ForwardingCommunicator around(std::make_shared<WordsElsewhere>(context.group(), other));
    EXPECT_EQ(&around.words(), &other);
  };
  EXPECT_EQ(on_ranks(1, on_rank), "");
}

}  // namespace
}  // namespace equigrad::conformance::faults
