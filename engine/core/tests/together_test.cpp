// What one rank could not do, no rank has done, and all of them know why.
#include "engine/core/together.hpp"

#include <gmock/gmock.h>

#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/error.hpp"

namespace equigrad::core {
namespace {

using conformance::error_of;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;

TEST(Together, TextsOfAnyLengthComeFromEveryRank) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         const auto text = [](int rank) {
                           return rank == 1 ? std::string()
                                            : std::string(rank == 0 ? 1U : 15U, '\0') + "é";
                         };
                         const auto all = together(*context.group(), "here",
                                                   [&] { return text(context.rank()); });
                         ASSERT_EQ(all.size(), static_cast<std::size_t>(context.world_size()));
                         for (int rank = 0; rank < context.world_size(); ++rank)
                           EXPECT_EQ(all[static_cast<std::size_t>(rank)], text(rank));
                       }),
              "");
  }
}

TEST(Together, AnErrorOnOneRankIsOneOnAll) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       const auto error = error_of([&] {
                         together(*context.group(), "here", [&]() -> std::string {
                           if (context.rank() == 1) throw Error("disk", "full of rank 1");
                           return "well";
                         });
                       });
                       if (context.rank() == 1)
                         EXPECT_EQ(error, "[disk] full of rank 1");
                       else
                         EXPECT_THAT(error, AllOf(HasSubstr("[here]"), HasSubstr("on rank 1"),
                                                  HasSubstr("full of rank 1")));
                       const auto all =
                           together(*context.group(), "here", [] { return std::string("again"); });
                       EXPECT_EQ(all.back(), "again");  // it may be called again
                     }),
            "");
}

// Of two hosts: python/tests/test_hosts.py, which has a name of its own for one.
TEST(Together, RanksThatAreForkedAreOnOneHost) {
  EXPECT_EQ(
      on_ranks(
          2, [](RankContext& context) { EXPECT_TRUE(are_on_one_host(*context.group(), "here")); }),
      "");
}

}  // namespace
}  // namespace equigrad::core
