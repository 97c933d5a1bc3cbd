// Every element of a whole has one place in one part, and the other way about.
#include "engine/checkpoint/cut.hpp"

#include <gmock/gmock.h>

#include <numeric>

#include "conformance/testing/saved_folder.hpp"

namespace equigrad::checkpoint {
namespace {

using Numbers = std::vector<std::int64_t>;

struct Example {
  Cut cut;
  Numbers shape;
};

const std::vector<Example> kExamples = {
    {{0, {8}, 2}, {8, 3}},           {{1, {8}, 4}, {3, 8}},       {{0, {4, 8}, 2}, {12}},
    {{1, {4, 4, 8}, 4}, {2, 16, 3}}, {{2, {2, 6}, 2}, {2, 3, 8}}, {{0, {5}, 1}, {5, 2}}};

std::int64_t numel_in(const Numbers& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Whole elements of a part, in its order, by a walk over the whole.
Numbers walked(const Example& example, std::int64_t part) {
  Numbers whole(static_cast<std::size_t>(numel_in(example.shape)));
  std::iota(whole.begin(), whole.end(), 0);
  auto tensor =
      conformance::saved_tensor<std::int64_t>("t", ElementType::I64, example.shape, whole);
  tensor.cut = example.cut;
  const auto bytes = conformance::bytes_of_part(tensor, part);
  Numbers elements(bytes.size() / sizeof(std::int64_t));
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

TEST(Cut, StretchesOfAPartAreItsElementsInOrder) {
  for (const auto& example : kExamples) {
    for (std::int64_t part = 0; part < example.cut.parts; ++part) {
      const auto want = walked(example, part);
      for (std::int64_t begin = 0; begin < static_cast<std::int64_t>(want.size()); ++begin) {
        const auto got = stretch_of_part(example.cut, example.shape, part, begin);
        ASSERT_EQ(got.part, part);
        ASSERT_EQ(got.local, begin);
        ASSERT_GT(got.numel, 0);
        for (std::int64_t i = 0; i < got.numel; ++i)
          ASSERT_EQ(got.whole + i, want.at(static_cast<std::size_t>(begin + i)));
      }
    }
  }
}

TEST(Cut, StretchesOfTheWholeNameTheirPart) {
  for (const auto& example : kExamples) {
    std::vector<Numbers> parts;
    for (std::int64_t part = 0; part < example.cut.parts; ++part)
      parts.push_back(walked(example, part));
    for (std::int64_t whole = 0; whole < numel_in(example.shape); ++whole) {
      const auto got = stretch_of_whole(example.cut, example.shape, whole);
      ASSERT_EQ(got.whole, whole);
      ASSERT_GT(got.numel, 0);
      for (std::int64_t i = 0; i < got.numel; ++i)
        ASSERT_EQ(parts.at(static_cast<std::size_t>(got.part))
                      .at(static_cast<std::size_t>(got.local + i)),
                  whole + i);
    }
  }
}

TEST(Cut, WhatDoesNotFitIsSaid) {
  const Numbers shape{3, 8};
  const auto problem = [&](Cut cut) { return problem_of(cut, shape); };
  EXPECT_EQ(problem({1, {2, 6}, 2}), "");
  EXPECT_EQ(problem({2, {8}, 2}), "expected a cut along a dimension of [3, 8], got 2");
  EXPECT_EQ(problem({-1, {8}, 2}), "expected a cut along a dimension of [3, 8], got -1");
  EXPECT_EQ(problem({1, {8}, 0}), "expected at least 1 part, got 0");
  EXPECT_EQ(problem({1, {2, 5}, 1}), "expected segments that add up to 8, got [2, 5]");
  EXPECT_EQ(problem({1, {9, -1}, 1}), "expected segments that add up to 8, got [9, -1]");
  EXPECT_EQ(problem({1, {3, 5}, 2}), "expected segments that 2 parts divide, got [3, 5]");
}

}  // namespace
}  // namespace equigrad::checkpoint
