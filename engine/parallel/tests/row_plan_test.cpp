// The picture of the header; every row once, whatever the sizes; and what is no plan.
#include "engine/parallel/row_plan.hpp"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "conformance/testing/error_of.hpp"

namespace equigrad::parallel {
namespace {

using conformance::error_of;
using testing::AllOf;
using testing::HasSubstr;

TEST(RowPlan, SixRowsOfThreeRanksGoToTwoAsThePictureShows) {
  const std::vector<Transfer> wanted{{.from = 0, .to = 3, .rows = {0, 2}},
                                     {.from = 1, .to = 3, .rows = {2, 3}},
                                     {.from = 1, .to = 4, .rows = {3, 4}},
                                     {.from = 2, .to = 4, .rows = {4, 6}}};
  EXPECT_EQ(plan_rows(6, {.first = 0, .data = 3}, {.first = 3, .data = 2}), wanted);
}

TEST(RowPlan, EqualSidesArePaired) {
  const std::vector<Transfer> wanted{{.from = 0, .to = 2, .rows = {0, 4}},
                                     {.from = 1, .to = 3, .rows = {4, 8}}};
  EXPECT_EQ(plan_rows(8, {.first = 0, .data = 2}, {.first = 2, .data = 2}), wanted);
}

TEST(RowPlan, ReplicasAllReceiveAndTheFirstSpeaks) {
  const Side vision{.first = 0, .data = 1, .replicas = 2};
  const Side language{.first = 2, .data = 1, .replicas = 2};
  const std::vector<Transfer> forth{{.from = 0, .to = 2, .rows = {0, 5}},
                                    {.from = 0, .to = 3, .rows = {0, 5}}};
  const std::vector<Transfer> back{{.from = 2, .to = 0, .rows = {0, 5}},
                                   {.from = 2, .to = 1, .rows = {0, 5}}};
  EXPECT_EQ(plan_rows(5, vision, language), forth);
  EXPECT_EQ(plan_rows(5, language, vision), back);
}

// Of a plan: which rank each row of each receiver comes from, or that it comes twice.
void expect_every_row_once(int64_t rows, const Side& from, const Side& to) {
  const auto plan = plan_rows(rows, from, to);
  EXPECT_EQ(plan, plan_rows(rows, from, to));
  std::map<std::pair<int, int64_t>, int> source;
  std::set<std::pair<int, int>> pairs;
  for (const auto& transfer : plan) {
    EXPECT_TRUE(from.has(transfer.from) && to.has(transfer.to));
    EXPECT_EQ((transfer.from - from.first) % from.replicas, 0) << "only speakers send";
    EXPECT_GT(transfer.rows.count(), 0);
    EXPECT_TRUE(pairs.insert({transfer.from, transfer.to}).second) << "one message a pair";
    for (auto row = transfer.rows.begin; row < transfer.rows.end; ++row)
      EXPECT_TRUE(source.insert({{transfer.to, row}, transfer.from}).second) << "a row twice";
  }
  // By counting: place p has the rows r with p = (number of places that begin at or before r) - 1.
  const auto place_of = [rows](int64_t row, int places) {
    int place = 0;
    while (place + 1 < places && rows * (place + 1) / places <= row) ++place;
    return place;
  };
  std::size_t expected = 0;
  for (int rank = to.first; rank < to.end(); ++rank)
    for (int64_t row = 0; row < rows; ++row) {
      if (place_of(row, to.data) != (rank - to.first) / to.replicas) continue;
      ++expected;
      const auto found = source.find({rank, row});
      ASSERT_NE(found, source.end()) << "row " << row << " never reaches rank " << rank;
      EXPECT_EQ(found->second, from.first + place_of(row, from.data) * from.replicas);
    }
  EXPECT_EQ(source.size(), expected) << "a row where it does not belong";
}

TEST(RowPlan, EveryRowGoesOnceFromItsRankToItsRanksBothWays) {
  for (int producers = 1; producers <= 5; ++producers)
    for (int consumers = 1; consumers <= 5; ++consumers)
      for (int replicas = 0; replicas < 9; ++replicas)
        for (int64_t rows = std::max(producers, consumers); rows <= 17; ++rows) {
          const Side producer{.first = 0, .data = producers, .replicas = 1 + replicas % 3};
          const Side consumer{
              .first = producer.end() + 1, .data = consumers, .replicas = 1 + replicas / 3};
          SCOPED_TRACE(testing::Message()
                       << rows << " rows, " << producers << " x " << producer.replicas << " to "
                       << consumers << " x " << consumer.replicas);
          expect_every_row_once(rows, producer, consumer);
          expect_every_row_once(rows, consumer, producer);
          if (HasFailure()) return;
        }
}

TEST(RowPlan, PlacesDifferByOneRowAtMostAndAreTheWhole) {
  for (int64_t rows = 0; rows < 40; ++rows)
    for (int places = 1; places < 12; ++places) {
      int64_t next = 0;
      for (int place = 0; place < places; ++place) {
        const auto part = rows_of(rows, place, places);
        EXPECT_EQ(part.begin, next);
        EXPECT_GE(part.count(), rows / places);
        EXPECT_LE(part.count(), (rows + places - 1) / places);
        next = part.end;
      }
      EXPECT_EQ(next, rows);
    }
}

TEST(RowPlan, WhatIsNoPlanIsAnError) {
  const Side two{.first = 0, .data = 2};
  const auto of = [](int64_t rows, const Side& from, const Side& to) {
    return error_of([&] { plan_rows(rows, from, to); });
  };
  EXPECT_THAT(of(4, two, {.first = 1, .data = 1}),
              AllOf(HasSubstr("expected two sides without a common rank"),
                    HasSubstr("ranks 0 to 1"), HasSubstr("ranks 1 to 1")));
  EXPECT_THAT(of(1, two, {.first = 2, .data = 1}),
              HasSubstr("expected at least one row for each of 2 data ranks, got 1 rows"));
  EXPECT_THAT(of(4, two, {.first = 2, .data = 0}), HasSubstr("got first 2, data 0, replicas 1"));
  EXPECT_THAT(of(4, two, {.first = 2, .data = 1, .replicas = 0}), HasSubstr("replicas 0"));
  EXPECT_THAT(of(4, {.first = -1, .data = 1}, two), HasSubstr("first -1"));
}

}  // namespace
}  // namespace equigrad::parallel
