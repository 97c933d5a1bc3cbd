// The picture of the header, the property of every cut, the borders, and the errors.
#include "engine/parallel/split.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/error.hpp"

namespace equigrad::parallel {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Sizes = std::vector<std::int64_t>;

std::string error_of(const Split& split, std::int64_t size, std::int64_t rank = 0) {
  try {
    check_split(split, size, "layers.0.fc1.weight");
    (void)runs(split, rank, size);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Split, CutsGateAndUpAsThePictureShows) {
  const Split split{.dimension = 0, .segments = {4, 4}, .shape = {8, 3}};
  EXPECT_THAT(runs(split, 0, 2), ElementsAre(parallel::Run{0, 0, 2}, parallel::Run{4, 2, 2}));
  EXPECT_THAT(runs(split, 1, 2), ElementsAre(parallel::Run{2, 0, 2}, parallel::Run{6, 2, 2}));
  EXPECT_EQ(local_shape(split, 2), (Sizes{4, 3}));
}

TEST(Split, CutsGroupedQueriesKeysAndValuesApart) {
  const Split split{.dimension = 1, .segments = {8, 4, 4}, .shape = {5, 16}};
  EXPECT_THAT(runs(split, 3, 4), ElementsAre(parallel::Run{6, 0, 2}, parallel::Run{11, 2, 1},
                                             parallel::Run{15, 3, 1}));
  EXPECT_EQ(local_shape(split, 4), (Sizes{5, 4}));
}

TEST(Split, OneSegmentIsOneRunAndOneRankHasTheWholeInOneRun) {
  EXPECT_THAT(runs(unpacked({12, 5}, 0), 2, 3), ElementsAre(parallel::Run{8, 0, 4}));
  EXPECT_THAT(runs({.dimension = 0, .segments = {3, 5, 4}, .shape = {12}}, 0, 1),
              ElementsAre(parallel::Run{0, 0, 12}));
}

TEST(Split, ABiasIsCutAsTheOutputsOfItsWeight) {
  const Split weight{.dimension = 1, .segments = {6, 2, 2}, .shape = {7, 10}};
  EXPECT_EQ(bias_split(weight), (Split{.dimension = 0, .segments = {6, 2, 2}, .shape = {10}}));
}

// Cuts the indices of the whole, and puts the parts together by the same runs.
void check_whole(const Split& split, std::int64_t size) {
  const std::int64_t whole = split.shape[static_cast<std::size_t>(split.dimension)];
  Sizes indices(static_cast<std::size_t>(whole)), times(indices.size(), 0), joined(indices.size());
  std::iota(indices.begin(), indices.end(), 0);
  for (std::int64_t rank = 0; rank < size; ++rank) {
    Sizes part(static_cast<std::size_t>(whole / size), -1);
    std::int64_t next = 0, last = -1;
    for (const parallel::Run& run : runs(split, rank, size)) {
      EXPECT_EQ(run.local, next);
      EXPECT_GT(run.whole, last);
      next += run.length;
      last = run.whole + run.length - 1;
      for (std::int64_t i = 0; i < run.length; ++i) {
        part.at(static_cast<std::size_t>(run.local + i)) =
            indices.at(static_cast<std::size_t>(run.whole + i));
        ++times.at(static_cast<std::size_t>(run.whole + i));
      }
    }
    EXPECT_EQ(next, whole / size);
    for (const parallel::Run& run : runs(split, rank, size))
      for (std::int64_t i = 0; i < run.length; ++i)
        joined[static_cast<std::size_t>(run.whole + i)] =
            part[static_cast<std::size_t>(run.local + i)];
  }
  EXPECT_EQ(times, Sizes(indices.size(), 1)) << "every index once";
  EXPECT_EQ(joined, indices) << "put together";
}

TEST(Split, EveryIndexIsInOnePartAndPartsGiveTheWholeInItsPacking) {
  for (std::int64_t size = 1; size <= 8; ++size)
    for (std::int64_t code = 0; code < 5 * 5 * 5 * 5; ++code) {
      Split split{.dimension = code % 2, .segments = {}, .shape = {3, 3}};
      std::int64_t whole = 0;
      for (std::int64_t rest = code; rest > 0; rest /= 5)
        if (rest % 5 != 0) split.segments.push_back(rest % 5 * size), whole += rest % 5 * size;
      if (whole == 0) continue;
      split.shape[static_cast<std::size_t>(split.dimension)] = whole;
      SCOPED_TRACE(testing::Message()
                   << "ranks " << size << ", segments " << testing::PrintToString(split.segments));
      check_whole(split, size);
    }
}

TEST(Split, PartsOfOneRankKeepTheOrderOfTheSegments) {
  const Split split{.dimension = 0, .segments = {4, 8, 2}, .shape = {14}};
  Sizes segment_of(14);
  for (std::size_t i = 0; i < 14; ++i) segment_of[i] = i < 4 ? 0 : i < 12 ? 1 : 2;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    Sizes of_part;
    for (const parallel::Run& run : runs(split, rank, 2))
      for (std::int64_t i = 0; i < run.length; ++i)
        of_part.push_back(segment_of[static_cast<std::size_t>(run.whole + i)]);
    EXPECT_EQ(of_part, (Sizes{0, 0, 1, 1, 1, 1, 2})) << rank;
  }
}

TEST(Split, RefusesARestByNameSizesAndRemedy) {
  EXPECT_THAT(error_of(unpacked({10, 4}, 0), 4),
              HasSubstr("layers.0.fc1.weight: expected a size that the tensor size 4 divides, got "
                        "10 along dimension 0 of [10, 4]. Change the tensor size, or"));
  EXPECT_THAT(error_of({.dimension = 0, .segments = {8, 2, 2}, .shape = {12, 4}}, 4),
              HasSubstr("divides, got 2 of [8, 2, 2] along"));
}

TEST(Split, RefusesWhatHasNoMeaning) {
  const auto of = [](const Sizes& segments, const Sizes& shape, std::int64_t dimension = 0) {
    return error_of({.dimension = dimension, .segments = segments, .shape = shape}, 1);
  };
  EXPECT_THAT(of({3, 4}, {8}), HasSubstr("add up to 8, the size of dimension 0, got [3, 4]"));
  EXPECT_THAT(of({5, 4}, {8}), HasSubstr("got [5, 4]"));
  EXPECT_THAT(of({}, {8}), HasSubstr("got []"));
  EXPECT_THAT(of({9, -1}, {8}), HasSubstr("got [9, -1]"));
  EXPECT_THAT(of({8, 0}, {8}), HasSubstr("got [8, 0]"));
  EXPECT_THAT(of({9223372036854775807, 9223372036854775807, 10}, {8}), HasSubstr("add up to 8"));
  EXPECT_THAT(of({8}, {8}, 1), HasSubstr("expected a dimension of the shape [8], got 1"));
  EXPECT_THAT(of({8}, {8}, -1), HasSubstr("got -1"));
  EXPECT_THAT(error_of(unpacked({8}, 0), 0), HasSubstr("expected at least 1 rank, got 0"));
  EXPECT_THAT(error_of(unpacked({8}, 0), 2, 2), HasSubstr("expected a rank from 0 to 1, got 2"));
  EXPECT_THAT(error_of(unpacked({8}, 0), 2, -1), HasSubstr("got -1"));
  EXPECT_THROW(unpacked({8, 4}, 2), Error);
}

}  // namespace
}  // namespace equigrad::parallel
