// Which parameters a window used, on which all ranks agree.
#include "engine/gradient/contributions.hpp"

#include <gmock/gmock.h>

#include "conformance/ranks/rank_test.hpp"
#include "conformance/sample.hpp"

namespace equigrad::gradient {
namespace {

using conformance::error_of;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using Used = std::vector<bool>;

TEST(Contributions, AParameterIsUsedIfAnyRankUsedIt) {
  EXPECT_EQ(
      on_ranks(
          3,
          [](RankContext& context) {
            Contributions contributions(4);
            contributions.use(static_cast<std::size_t>(context.rank()) + 1);
            if (context.rank() == 0) contributions.use(2);
            contributions.end_pass();
            EXPECT_EQ(contributions.agree(*context.group()), (Used{false, true, true, true}));
            EXPECT_EQ(contributions.agree(*context.group()), (Used{false, true, true, true}));
            contributions.clear();
            if (context.rank() == 2) contributions.use(0);
            EXPECT_EQ(contributions.agree(*context.group()), (Used{true, false, false, false}));
          }),
      "");
}

TEST(Contributions, RanksThatRanDifferentNumbersOfPassesAreAllTold) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Contributions contributions(1);
                       for (int pass = 0; pass < 4 - context.rank(); ++pass)
                         contributions.end_pass();
                       EXPECT_THAT(error_of([&] { contributions.agree(*context.group()); }),
                                   testing::HasSubstr("backward passes on every rank, got 2 to 4"));
                       contributions.clear();
                       EXPECT_EQ(contributions.agree(*context.group()), Used{false});
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::gradient
