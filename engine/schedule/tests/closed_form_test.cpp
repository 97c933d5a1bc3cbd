// Every schedule against a closed form that is written in another way, over 400 updates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "engine/schedule/tests/schedules.hpp"

namespace equigrad::schedule {
namespace {

using Kind = SchedulerConfig::Kind;
using WarmupType = SchedulerConfig::WarmupType;

constexpr int kUpdates = 400;

// A schedule makes at most 16 roundings of half an ulp on the way to a rate: two logarithms, an
// inverse and a product (6), or a cosine and its argument (12, since the slope of the cosine is at
// most 1 and its amplitude is halved), or the part of a cycle (2.5, with a one before it), over a
// side that is at least 0.4 of it (8 with the quotient), then an interpolation (4). None is of more
// than the largest rate.
void expect_within_roundings(double got, long double exact, long double largest) {
  const long double bound = 16.0L * std::ldexp(1.0L, -53) * largest;
  EXPECT_LE(std::fabs(static_cast<long double>(got) - exact), bound) << got << " against " << exact;
}

// Compares update u = 0, 1, .. with lr(i) for the iteration i = u - 1.
void expect_lr(const SchedulerConfig& config, const std::vector<double>& group_lr,
               const std::function<long double(std::int64_t i, std::size_t group)>& lr,
               long double largest) {
  const std::vector<Rates> rates = first_rates(config, kUpdates, group_lr);
  for (int update = 0; update < kUpdates; ++update) {
    SCOPED_TRACE(update);
    const std::vector<double>& got = rates[static_cast<std::size_t>(update)].lr;
    ASSERT_EQ(got.size(), group_lr.size());
    for (std::size_t group = 0; group < got.size(); ++group)
      expect_within_roundings(got[group], lr(update - 1, group), largest);
  }
}

// What is left of the way up.
long double cold(const SchedulerConfig& config, std::int64_t i) {
  const std::int64_t n = config.warmup_num_steps;
  if (i >= n) return 0.0L;
  const auto left = static_cast<long double>(n - i) / static_cast<long double>(n);
  if (config.warmup_type == WarmupType::Linear) return i < 0 ? 1.0L : left;
  const auto step = static_cast<long double>(std::max<std::int64_t>(i, 0) + 1);
  return 1.0L - std::log2(step) / std::log2(static_cast<long double>(n));
}

TEST(ClosedForm, WarmupLrForTwoGroups) {
  for (const WarmupType type : {WarmupType::Log, WarmupType::Linear}) {
    SchedulerConfig config = warmup(Kind::WarmupLr, 300, 0, type);
    config.warmup_min_lr = {1e-5, 3e-4};
    expect_lr(
        config, {0.02, 0.5},
        [&](std::int64_t i, std::size_t group) {
          const long double low = config.warmup_min_lr[group], high = group == 0 ? 0.02 : 0.5;
          return high - (high - low) * cold(config, i);
        },
        0.5L);
  }
}

TEST(ClosedForm, WarmupDecayLr) {
  for (const WarmupType type : {WarmupType::Log, WarmupType::Linear}) {
    SchedulerConfig config = warmup(Kind::WarmupDecayLr, 37, 341, type);
    config.warmup_min_lr = {2e-4};
    config.warmup_max_lr = {0.03, 0.7};
    expect_lr(
        config, {1.0, 2.0},
        [&](std::int64_t i, std::size_t group) {
          const long double low = 2e-4, high = group == 0 ? 0.03 : 0.7;
          const auto over = static_cast<long double>(std::max<std::int64_t>(0, i - 37));
          const long double lost = i < 37 ? cold(config, i) : std::min(1.0L, over / 304.0L);
          return high - (high - low) * lost;
        },
        0.7L);
  }
}

TEST(ClosedForm, WarmupCosineLrByTheSquareOfHalfTheAngle) {
  SchedulerConfig config = warmup(Kind::WarmupCosineLr, 50, 333);
  config.warmup_min_ratio = 0.25;
  config.cos_min_ratio = 0.125;
  expect_lr(
      config, {0.02, 0.5},
      [&](std::int64_t i, std::size_t group) {
        const long double lr = group == 0 ? 0.02 : 0.5;
        if (i < 0) return 0.0L;
        if (i < 50) return lr * (1.0L - 0.75L * cold(config, i));
        const auto progress = static_cast<long double>(std::min<std::int64_t>(283, i - 49));
        const long double half = std::cos(std::numbers::pi_v<long double> * progress / 566.0L);
        return lr * (0.125L + 0.875L * half * half);
      },
      0.5L);
}

// The largest number of stairs reached, by counting.
long double stairs(std::int64_t batch, std::int64_t size, std::int64_t count) {
  std::int64_t reached = 0;
  while ((reached + 1) * size <= batch * count) ++reached;
  return static_cast<long double>(reached) / static_cast<long double>(count);
}

TEST(ClosedForm, OneCycleIsTheLowerOfTwoLinesThenDecays) {
  const long double lr_rate = 0.3, mom_rate = 0.01, least = 0.8, most = 0.9;  // doubles, widened
  for (const std::int64_t count : {0, 7}) {
    SchedulerConfig config = one_cycle(120, 170);
    config.cycle_max_lr = {0.009, 0.3};
    config.cycle_first_stair_count = count;
    if (count > 0) config.cycle_second_stair_count = 11;
    config.decay_step_size = 13;
    config.decay_lr_rate = 0.3;
    const auto scale = [&](std::int64_t i) {
      const std::int64_t up = i + 1, down = 289 - i;
      if (count > 0) return up <= 120 ? stairs(up, 120, count) : stairs(down, 170, 11);
      return std::min(static_cast<long double>(up) / 120.0L,
                      static_cast<long double>(down) / 170.0L);
    };
    const auto decays = [](std::int64_t i) { return static_cast<long double>(i - 289) / 13.0L; };
    expect_lr(
        config, {1.0, 1.0},
        [&](std::int64_t i, std::size_t group) {
          const long double low = 0.001, high = group == 0 ? 0.009 : 0.3;
          if (i >= 290) return low / (1.0L + lr_rate * decays(i));
          return low + (high - low) * scale(i);
        },
        0.3L);
    config.decay_mom_rate = 0.01;
    const std::vector<Rates> rates = first_rates(config, kUpdates, {1.0, 1.0});
    EXPECT_EQ(rates[0].beta1, (std::vector<double>{0.8, 0.8}));
    for (std::int64_t i = 0; i + 1 < kUpdates; ++i) {
      const long double exact =
          i < 290 ? most - (most - least) * scale(i) : most * (1.0L + mom_rate * decays(i));
      for (const double beta1 : rates[static_cast<std::size_t>(i + 1)].beta1)
        expect_within_roundings(beta1, exact, 1.0L);
    }
  }
}

TEST(ClosedForm, LrRangeTestAddsOneShareAtATime) {
  const long double low = 0.001;
  for (const bool staircase : {false, true}) {
    expect_lr(
        range_test(23, staircase), {1.0, 2.0},
        [&](std::int64_t i, std::size_t) {
          const std::int64_t shares = staircase ? (i + 1) - (i + 1) % 23 : i + 1;
          return low + 2.0L * low * static_cast<long double>(shares) / 23.0L;
        },
        low * (1.0L + 2.0L * kUpdates / 23.0L));
  }
}

}  // namespace
}  // namespace equigrad::schedule
