#include "engine/parallel/row_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/error.hpp"

namespace equigrad::parallel {
namespace {

std::string text_of(const Side& side) {
  return fmt::format("ranks {} to {}, {} data x {} replicas", side.first, side.end() - 1, side.data,
                     side.replicas);
}

void check(int64_t rows, const Side& from, const Side& to) {
  for (const auto& side : {from, to}) {
    if (side.first < 0 || side.data < 1 || side.replicas < 1)
      throw Error(
          "parallel.bridge",
          fmt::format("expected a side of at least one data rank with at least one replica, "
                      "from rank 0 on, got first {}, data {}, replicas {}. Give sizes that "
                      "are counts.",
                      side.first, side.data, side.replicas));
    if (rows < side.data)
      throw Error("parallel.bridge",
                  fmt::format("expected at least one row for each of {} data ranks, got {} rows. "
                              "Send larger batches, or use fewer data ranks.",
                              side.data, rows));
  }
  if (from.first < to.end() && to.first < from.end())
    throw Error("parallel.bridge",
                fmt::format("expected two sides without a common rank, got {}, and {}. Give each "
                            "rank to one of them.",
                            text_of(from), text_of(to)));
}

}  // namespace

Rows rows_of(int64_t rows, int place, int places) {
  return {rows * place / places, rows * (place + 1) / places};
}

std::vector<Transfer> plan_rows(int64_t rows, const Side& from, const Side& to) {
  check(rows, from, to);
  std::vector<Transfer> plan;
  for (int rank = to.first; rank < to.end(); ++rank) {
    const auto wanted = rows_of(rows, to.place_of(rank), to.data);
    for (int place = 0; place < from.data; ++place) {
      const auto held = rows_of(rows, place, from.data);
      const Rows common{std::max(held.begin, wanted.begin), std::min(held.end, wanted.end)};
      if (common.count() > 0) plan.push_back({from.speaker_of(place), rank, common});
    }
  }
  return plan;
}

}  // namespace equigrad::parallel
