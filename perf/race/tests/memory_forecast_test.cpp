// The highest moment of a step, by hand: what operators have beside buckets, the window and whole
// parameters.
#include "perf/race/memory_forecast.hpp"

#include <gtest/gtest.h>

#include "perf/race/suites.hpp"

namespace equigrad::perf {
namespace {

constexpr int64_t kLarge = int64_t{1} << 18, kLargeBytes = kLarge * 4;
const std::vector<int64_t> kNumels{kLarge, 10, kLarge};
constexpr int64_t kIdle = 1000;        // of plain LibTorch
constexpr int64_t kMuch = 50'000'000;  // more than any update

Moment between() {
  return {.begins = "between",
          .parameters = {},
          .start_bytes = kIdle,
          .live_bytes = kIdle,
          .gradient_bytes = 0,
          .held_bytes = kIdle - 100};
}

// Operators have `activation_bytes` beside the gradients that are there.
Moment moment(const std::string& begins, const std::vector<std::size_t>& parameters,
              int64_t activation_bytes, int64_t gradient_bytes = 0) {
  const int64_t live_bytes = kIdle + activation_bytes + gradient_bytes;
  return {.begins = begins,
          .parameters = parameters,
          .start_bytes = live_bytes,
          .live_bytes = live_bytes,
          .gradient_bytes = gradient_bytes,
          .held_bytes = gradient_bytes};
}

int64_t peak_of(int stage, std::vector<Moment> moments) {
  moments.insert(moments.begin(), between());
  moments.push_back(moment("step", {}, 0));
  const auto config = parse_config(engine_config(stage, 4, 1, nlohmann::json::object()).dump(), 2);
  return forecast_peak_bytes(kNumels, config, 2, moments);
}

int64_t of_operators(int stage) { return peak_of(stage, {moment("backward", {}, kMuch)}); }

TEST(MemoryForecast, WhatOperatorsHaveCountsByteByByte) {
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_EQ(peak_of(stage, {moment("backward", {}, kMuch + 7)}) - of_operators(stage), 7);
    EXPECT_EQ(peak_of(stage, {moment("forward", {}, kMuch + 7)}) - of_operators(stage), 7);
  }
}

// In step() without operators: at stage 0 the window and as many averages, at stage 1 a slice of
// them.
TEST(MemoryForecast, TheUpdateIsTheHighestWhereOperatorsHaveLittle) {
  const int64_t all = 2 * kLargeBytes + 40;
  const auto beyond = [](int stage) { return peak_of(stage, {}) - (of_operators(stage) - kMuch); };
  EXPECT_EQ(beyond(0), 2 * all);
  EXPECT_EQ(beyond(1), all + all / 2);
}

// `first` arrives at the highest moment; the others when operators have nothing.
int64_t of_arrivals(int stage, std::size_t first, const std::vector<std::size_t>& others) {
  int64_t gradients = kNumels[first] * 4;
  std::vector<Moment> moments{moment("gradient", {first}, kMuch, gradients)};
  for (const std::size_t other : others) {
    gradients += kNumels[other] * 4;
    moments.push_back(moment("gradient", {other}, 0, gradients));
  }
  return peak_of(stage, moments) - of_operators(stage);
}

TEST(MemoryForecast, AGradientThatIsThereIsInABucketFromThenOn) {
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_EQ(of_arrivals(stage, 2, {1, 0}), kLargeBytes);
    EXPECT_EQ(of_arrivals(stage, 1, {2, 0}), 40 + 40) << "twice, while it is copied";
  }
}

TEST(MemoryForecast, ItIsThereWhenOperatorsHaveMostLater) {
  for (const int stage : {0, 1, 2, 3})
    EXPECT_EQ(peak_of(stage, {moment("gradient", {2}, 0, kLargeBytes),
                              moment("use", {1}, kMuch, kLargeBytes),
                              moment("gradient", {1}, 0, kLargeBytes + 40),
                              moment("gradient", {0}, 0, 2 * kLargeBytes + 40)}) -
                  of_operators(stage),
              kLargeBytes);
}

TEST(MemoryForecast, AtTheEndOfAPassTheWindowIsThereTooWhereSumsLeave) {
  const auto end_of_pass = [](int stage) {
    return peak_of(stage, {moment("gradient", {2}, 0, kLargeBytes),
                           moment("gradient", {1}, 0, kLargeBytes + 40),
                           moment("gradient", {0}, kMuch, 2 * kLargeBytes + 40)}) -
           of_operators(stage);
  };
  EXPECT_EQ(end_of_pass(1), 2 * kLargeBytes + 40);
  EXPECT_EQ(end_of_pass(2), 2 * kLargeBytes + 40 + kLargeBytes + 20);
}

TEST(MemoryForecast, PagesComeTogetherAndGoWhenAnotherIsReadAfterTheirLastUse) {
  const auto whole = [](std::vector<Moment> moments) {
    return peak_of(3, std::move(moments)) - of_operators(3);
  };
  EXPECT_EQ(whole({moment("use", {1}, kMuch)}), 0) << "always whole";
  EXPECT_EQ(whole({moment("use", {0}, kMuch), moment("use", {2}, 0)}), 2 * kLargeBytes);
  EXPECT_EQ(whole({moment("use", {0}, 0), moment("use", {2}, kMuch)}), kLargeBytes);
  EXPECT_EQ(whole({moment("use", {0}, 0), moment("use", {2}, kMuch), moment("use", {0}, 0)}),
            2 * kLargeBytes)
      << "it is read again";
  EXPECT_EQ(whole({moment("use", {0, 2}, kMuch), moment("use", {0}, 0)}), 2 * kLargeBytes)
      << "by one operator";
  EXPECT_EQ(peak_of(2, {moment("use", {0}, kMuch)}), of_operators(2)) << "always whole";
}

}  // namespace
}  // namespace equigrad::perf
