#include "engine/agreement/sync_point.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace equigrad::agreement {
namespace {

template <class Point>
int64_t which(const Point& point) {
  if constexpr (requires { point.bucket; }) return static_cast<int64_t>(point.bucket);
  if constexpr (requires { point.parameter; }) return static_cast<int64_t>(point.parameter);
  if constexpr (requires { point.number; }) return point.number;
  if constexpr (std::is_same_v<Point, Step>) return point.passes;
  return 0;
}

template <class Point>
int64_t flag(const Point& point) {
  if constexpr (requires { point.rounds; }) return point.rounds;
  if constexpr (std::is_same_v<Point, Step>)
    return 2 * static_cast<int64_t>(point.eager_buckets) + (point.is_observed ? 1 : 0);
  if constexpr (requires { point.digest; }) return point.digest;
  if constexpr (requires { point.state; }) return static_cast<int64_t>(point.state);
  if constexpr (requires { point.is_master; }) return point.is_master ? 1 : 0;
  if constexpr (requires { point.has_written; }) return point.has_written ? 1 : 0;
  if constexpr (requires { point.oldest; }) return point.oldest;
  if constexpr (std::is_same_v<Point, ReadGradient>) return point.passes;
  return 0;
}

template <std::size_t... I>
constexpr auto texts(std::index_sequence<I...>) {
  return std::array{std::variant_alternative_t<I, SyncPoint>::kText...};
}

}  // namespace

PointWords words_of(const SyncPoint& point) {
  return std::visit(
      [&](const auto& one) {
        return PointWords{static_cast<int64_t>(point.index()), which(one), flag(one)};
      },
      point);
}

std::string describe(const PointWords& words, int64_t engine) {
  static constexpr auto kTexts = texts(std::make_index_sequence<std::variant_size_v<SyncPoint>>());
  return fmt::format(fmt::runtime(kTexts.at(static_cast<std::size_t>(words.kind))), engine,
                     words.which);
}

}  // namespace equigrad::agreement
