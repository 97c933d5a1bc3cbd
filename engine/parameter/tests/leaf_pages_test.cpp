// Which pages come together, and what counts as one use of them.
#include "engine/parameter/leaf_pages.hpp"

#include <gmock/gmock.h>

namespace equigrad::parameter {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Parameters 1, 3 and 4 are a leaf, 5 and 6 another; 2 is empty and has no page.
LeafPages two_leaves() {
  return LeafPages({{1, 3, 4}, {2, 5, 6}}, {0, 1, std::nullopt, 2, 3, 4, 5}, 6);
}

TEST(LeafPages, AreWholeInTheOrderOfTheFirst) {
  const auto leaves = two_leaves();
  EXPECT_THAT(leaves.whole({0}), ElementsAre(0));
  EXPECT_THAT(leaves.whole({2}), ElementsAre(2, 1, 3));
  EXPECT_THAT(leaves.whole({5, 0, 3}), ElementsAre(5, 4, 0, 3, 1, 2));
  EXPECT_EQ(leaves.leaf_of(0), std::nullopt);
  EXPECT_EQ(leaves.leaf_of(3), leaves.leaf_of(1));
  EXPECT_NE(leaves.leaf_of(3), leaves.leaf_of(5));
}

TEST(LeafPages, WithoutLeavesAndOfOnePageChangeNothing) {
  LeafPages none({}, {0, 1}, 2), one({{1}, {}}, {0, 1}, 2);
  for (auto* leaves : {&none, &one}) {
    EXPECT_THAT(leaves->whole({1, 0}), ElementsAre(1, 0));
    EXPECT_EQ(leaves->leaf_of(1), std::nullopt);
    EXPECT_THAT(leaves->next({1}).uses, ElementsAre(1));
    EXPECT_THAT(leaves->next({1}).left, IsEmpty());
  }
}

TEST(LeafPages, OperatorsOfALeafInARowAreOneUse) {
  auto leaves = two_leaves();
  EXPECT_THAT(leaves.next({1, 2, 3}).uses, ElementsAre(1, 2, 3));
  for (int again = 0; again < 3; ++again) {
    const auto next = leaves.next({2, 1, 3});
    EXPECT_THAT(next.uses, IsEmpty());
    EXPECT_THAT(next.left, IsEmpty());
  }
  auto next = leaves.next({0});
  EXPECT_THAT(next.uses, ElementsAre(0));
  EXPECT_THAT(next.left, ElementsAre(1, 2, 3));
  EXPECT_THAT(leaves.next({0}).left, IsEmpty());
  leaves.next({4, 5});
  next = leaves.next({1, 2, 3});
  EXPECT_THAT(next.uses, ElementsAre(1, 2, 3));
  EXPECT_THAT(next.left, ElementsAre(4, 5));
  leaves.end_cycle();
  EXPECT_THAT(leaves.next({1, 2, 3}).uses, ElementsAre(1, 2, 3)) << "a new cycle";
}

}  // namespace
}  // namespace equigrad::parameter
