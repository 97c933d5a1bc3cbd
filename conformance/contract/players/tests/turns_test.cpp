// Turns: ranks run one at a time, in order, and a rank that fails ends all of them.
#include "conformance/contract/players/turns.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace equigrad::conformance::contract {
namespace {

TEST(Turns, RanksRunInOrderAndTheLastToComeActs) {
  for (const int ranks : {1, 3}) {
    Turns turns(ranks);
    std::string order;
    turns.run([&](int rank) {
      order += std::to_string(rank);
      turns.meet(rank, "first", [&] { order += "!"; });
      order += std::to_string(rank);
      turns.meet(rank, "second", [&] { order += "?"; });
      order += std::to_string(rank);
    });
    EXPECT_EQ(order, ranks == 1 ? "0!0?0" : "012!012?012");
  }
}

TEST(Turns, CanBeRunAgain) {
  Turns turns(2);
  int visits = 0;
  for (int i = 0; i < 3; ++i) turns.run([&](int) { ++visits; });
  EXPECT_EQ(visits, 6);
}

TEST(Turns, DifferentMeetingsAreAnError) {
  Turns turns(2);
  const auto part = [&](int rank) { turns.meet(rank, rank == 0 ? "a step" : "a getter", [] {}); };
  EXPECT_THROW(turns.run(part), std::logic_error);
}

TEST(Turns, ARankThatEndsEarlyIsAnError) {
  Turns turns(3);
  EXPECT_THROW(turns.run([&](int rank) {
    if (rank != 1) turns.meet(rank, "a step", [] {});
  }),
               std::logic_error);
}

TEST(Turns, WhatARankThrowsReachesTheCaller) {
  Turns turns(3);
  int acted = 0;
  try {
    turns.run([&](int rank) {
      if (rank == 2) throw std::runtime_error("planted");
      turns.meet(rank, "a step", [&] { ++acted; });
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "planted");
  }
  EXPECT_EQ(acted, 0);
}

}  // namespace
}  // namespace equigrad::conformance::contract
