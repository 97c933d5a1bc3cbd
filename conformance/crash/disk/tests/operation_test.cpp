// Which cuts through a save are possible, and what a log is when it was written and read.
#include "conformance/crash/disk/operation.hpp"

#include <gmock/gmock.h>

#include <set>

#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

using Kind = Operation::Kind;
using ::testing::ElementsAre;

Operation at(Kind kind, const std::string& path, std::int64_t calls) {
  return {.kind = kind, .path = path, .entered = calls, .left = calls};
}

// Each rank writes and syncs; all meet in call 0; rank 0 renames.
Log two_ranks() {
  Log log;
  for (const char* file : {"a", "b"})
    log.by_rank.push_back({at(Kind::Create, file, 0), at(Kind::Sync, file, 0)});
  log.by_rank[0].push_back(at(Kind::Rename, "a", 1));
  log.calls = {kAllWait};
  return log;
}

TEST(Operation, WhatRanksDoSideBySideIsCutAtAnyTwoPlaces) {
  const auto log = two_ranks();
  for (std::size_t a = 0; a <= 2; ++a)
    for (std::size_t b = 0; b <= 2; ++b) EXPECT_TRUE(is_possible(log, {a, b})) << a << "-" << b;
}

TEST(Operation, BehindACallThatAllWaitInAllIsDoneThatWasBeforeIt) {
  const auto log = two_ranks();
  EXPECT_TRUE(is_possible(log, {3, 2}));
  EXPECT_FALSE(is_possible(log, {3, 1}));
  EXPECT_FALSE(is_possible(log, {3, 0}));
  EXPECT_FALSE(is_possible(log, {4, 2})) << "more than there is";
  EXPECT_FALSE(is_possible(log, {2})) << "a rank is missing";
}

// Rank 0 sends and goes on: who received waits for it, it waits for nobody.
TEST(Operation, ABroadcastIsWaitedForByThoseWhoReceive) {
  auto log = two_ranks();
  log.calls = {0};
  EXPECT_TRUE(is_possible(log, {3, 0}));
  log.by_rank[1].push_back(at(Kind::Remove, "b", 1));
  EXPECT_TRUE(is_possible(log, {2, 3}));
  EXPECT_FALSE(is_possible(log, {1, 3}));
}

// What was done between entering a call and leaving it is not waited for.
TEST(Operation, WhatIsDoneWhileACallIsUnderWayIsNotWaitedFor) {
  auto log = two_ranks();
  log.by_rank[1][1].entered = 1;
  EXPECT_TRUE(is_possible(log, {3, 1}));
  EXPECT_FALSE(is_possible(log, {3, 0}));
}

TEST(Operation, TheOrderHoldsWhatComesFirstAndEveryPartOfItIsPossible) {
  const auto log = two_ranks();
  const auto places = in_order(log);
  ASSERT_EQ(places.size(), operations_of(log));
  EXPECT_EQ(places.back().rank, 0u);
  EXPECT_EQ(places.back().number, 2u);
  for (std::size_t count = 0; count <= places.size(); ++count)
    EXPECT_TRUE(is_possible(log, first_of(log, count))) << count;
  EXPECT_THAT(first_of(log, 3), ElementsAre(2, 1));
}

TEST(Operation, CutsAtRandomArePossibleAndReachWhatNoOrderHas) {
  const auto log = two_ranks();
  std::set<Cut> seen;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto cut = some_cut(log, seed);
    EXPECT_TRUE(is_possible(log, cut));
    EXPECT_EQ(cut, some_cut(log, seed));
    seen.insert(cut);
  }
  EXPECT_EQ(seen.size(), 10u) << "nine side by side, and the end";
}

TEST(Operation, ACutIsWrittenAsNumbersAndReadFromNothingElse) {
  EXPECT_EQ(to_text(Cut{7, 0, 12}), "7-0-12");
  EXPECT_THAT(cut_from("7-0-12"), ElementsAre(7, 0, 12));
  for (const char* text : {"", "-", "7-", "a", "7--1", "7 1", "12345678901"})
    EXPECT_THROW(cut_from(text), Error) << text;
}

TEST(Operation, ALogIsReadAsItWasWrittenWithAnyBytes) {
  std::vector<Operation> all;
  for (int kind = 0; kind < 7; ++kind)
    all.push_back({.kind = static_cast<Kind>(kind),
                   .path = "tag/a",
                   .to = "tag/b",
                   .bytes = std::string("\0\xFF\n\x80", 4),
                   .file = kind,
                   .failed = kind == 3,
                   .entered = 5,
                   .left = 4});
  const auto read = read_operations(write_operations(all));
  ASSERT_EQ(read.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(to_text(read[i]), to_text(all[i]));
    EXPECT_EQ(read[i].bytes, all[i].bytes);
    EXPECT_EQ(read[i].file, all[i].file);
    EXPECT_EQ(read[i].entered, 5);
    EXPECT_EQ(read[i].left, 4);
  }
  EXPECT_THROW(read_operations("no log"), Error);
  EXPECT_THROW(read_operations(""), Error);
}

}  // namespace
}  // namespace equigrad::conformance::crash
