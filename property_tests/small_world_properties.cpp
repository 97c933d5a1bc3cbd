// Small worlds, one after the other: every element is sent, summed, owned once and gathered to its
// place, by the engine's own table, plan and partition. No process, no tensor: elements are marks.
//
//   all tables of up to 3 parameters of 0 to 24 elements, and of 4 and 5 the multisets (in rising
//   and in falling order), of which every kStride-th is taken; on 1 to 8 ranks; with 7 bucket sizes
//
// Stages 1 to 3 share the plan; they differ in when a bucket is sent. EQUIGRAD_TRIALS=1 takes every
// multiset; a seed other than 0 (EQUIGRAD_SEED) begins the slices elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "conformance/faults/seams.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/layout/partition.hpp"

namespace equigrad::layout {
namespace {

constexpr std::int64_t kMost = 24;
constexpr int kMostRanks = 8;
constexpr std::int64_t kBucketSizes[] = {1, 2, 5, 13, 24, 40, 1000};
constexpr std::int64_t kStride = 4;

using Sizes = std::vector<std::int64_t>;

ParameterTable table_of(const Sizes& sizes) {
  static const std::string names[] = {"a", "b", "c", "d", "e"};
  std::vector<Registration> registrations;
  registrations.reserve(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    registrations.push_back({names[i], &sizes[i], {sizes[i]}, true, 0});
  return ParameterTable(registrations);
}

// One world: what every place of the ranks' shard spaces holds.
class World {
 public:
  World(const ParameterTable& table, const Sizes& sizes, int ranks, std::int64_t bucket_size)
      : sizes_(sizes), ranks_(ranks), plan_(table, ranks, bucket_size) {
    places_.assign(static_cast<std::size_t>(plan_.shard_numel() * ranks), kPadding);
  }

  std::string wrong() {
    if (const auto wrong = send(); !wrong.empty()) return wrong;
    return own_and_gather();
  }

 private:
  static constexpr std::int64_t kPadding = -1;
  static std::int64_t mark(std::size_t parameter, std::int64_t element) {
    return static_cast<std::int64_t>(parameter) * 100 + element;
  }

  // As a bucket is filled: row by row, a rank's slice of a parameter in each.
  std::string send() {
    std::int64_t columns = 0;
    for (const Bucket& bucket : plan_.buckets()) {
      if (bucket.offset != columns) return "a bucket begins elsewhere than the one before it ends";
      columns += bucket.shard_numel;
      for (const Slot& slot : bucket.slots)
        for (std::int64_t element = 0; element < slot.numel; ++element) {
          const std::int64_t row = element / slot.shard_numel, column = element % slot.shard_numel;
          if (row >= ranks_ || slot.offset + column >= bucket.shard_numel)
            return "out of its bucket";
          auto& place = places_[at(row, bucket.offset + slot.offset + column)];
          if (place != kPadding) return "two elements are sent in one place";
          place = mark(slot.parameter, element);
        }
    }
    return columns == plan_.shard_numel() ? "" : "the buckets are not the shard space";
  }

  // As shards are shown and parameters gathered: rank by rank, its range of each parameter.
  std::string own_and_gather() {
    std::int64_t owned = 0;
    for (std::size_t p = 0; p < sizes_.size(); ++p) {
      const auto where = plan_.slot_of(p);
      if (where.has_value() != (sizes_[p] > 0)) return "a slot too many, or none";
      if (!where) continue;
      const Slot& slot = plan_.slot(*where);
      const std::int64_t begin = plan_.buckets()[where->bucket].offset + slot.offset;
      const Partition partition(sizes_[p], ranks_);
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks_; ++rank) {
        const Range range = partition.range(rank);
        if (range.numel() > 0 && range.begin != next) return "a gap or an overlap between owners";
        for (std::int64_t element = range.begin; element < range.end; ++element) {
          if (partition.owner_of(element) != rank) return "an element has two owners";
          if (places_[at(rank, begin + element - range.begin)] != mark(p, element))
            return "what a rank owns is not what it was sent";
        }
        next = std::max(next, range.end);
        owned += range.numel();
      }
      if (next != sizes_[p]) return "an element has no owner";
    }
    const auto sent = std::count_if(places_.begin(), places_.end(),
                                    [](std::int64_t place) { return place != kPadding; });
    return sent == owned ? "" : "something was sent that nobody owns";
  }

  std::size_t at(std::int64_t rank, std::int64_t column) const {
    return static_cast<std::size_t>(rank * plan_.shard_numel() + column);
  }

  const Sizes& sizes_;
  int ranks_;
  BucketPlan plan_;
  std::vector<std::int64_t> places_;
};

std::int64_t number_from(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

class Count {
 public:
  // All ranks and bucket sizes; false after the first wrong one.
  bool holds(const Sizes& sizes) {
    const auto table = table_of(sizes);
    ++tables_;
    for (int ranks = 1; ranks <= kMostRanks; ++ranks)
      for (const auto bucket_size : kBucketSizes) {
        ++plans_;
        const auto wrong = World(table, sizes, ranks, bucket_size).wrong();
        if (wrong.empty()) continue;
        ADD_FAILURE() << wrong << ": sizes " << testing::PrintToString(sizes) << ", " << ranks
                      << " ranks, buckets of " << bucket_size;
        return false;
      }
    return true;
  }
  void print(const char* what) const {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start_;
    std::printf("%s: %lld tables, %lld plans, %.1f million plans a minute\n", what, tables_, plans_,
                static_cast<double>(plans_) / time.count() * 60e-6);
  }
  long long plans() const { return plans_; }

 private:
  long long tables_ = 0, plans_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

TEST(SmallWorlds, OfUpToThreeParametersAreAllRight) {
  Count count;
  for (int length = 0; length <= 3; ++length) {
    Sizes sizes(static_cast<std::size_t>(length), 0);
    for (;;) {
      if (!count.holds(sizes)) return;
      std::size_t digit = 0;
      while (digit < sizes.size() && ++sizes[digit] > kMost) sizes[digit++] = 0;
      if (digit == sizes.size()) break;
    }
  }
  count.print("up to 3 parameters, all");
  EXPECT_EQ(count.plans(), 911'456);
}

TEST(SmallWorlds, OfFourAndFiveParametersAreRightInEverySlice) {
  const std::int64_t stride = std::max<std::int64_t>(1, number_from("EQUIGRAD_TRIALS", kStride));
  const std::int64_t first = number_from("EQUIGRAD_SEED", 0) % stride;
  Count count;
  std::int64_t number = 0;
  for (std::size_t length = 4; length <= 5; ++length) {
    Sizes sizes(length, 0);  // never falling
    for (;;) {
      if (number++ % stride == first) {
        const Sizes falling(sizes.rbegin(), sizes.rend());
        if (!count.holds(sizes) || !count.holds(falling)) return;
      }
      std::size_t digit = length;
      while (digit > 0 && sizes[digit - 1] == kMost) --digit;
      if (digit == 0) break;
      std::fill(sizes.begin() + static_cast<std::ptrdiff_t>(digit) - 1, sizes.end(),
                sizes[digit - 1] + 1);
    }
  }
  count.print(stride == 1 ? "4 and 5 parameters, all multisets" : "4 and 5 parameters, a slice");
}

// What the worlds of up to two parameters say with a fault in the engine's layout.
std::string first_wrong() {
  for (std::int64_t a = 0; a <= kMost; ++a)
    for (std::int64_t b = 0; b <= kMost; ++b)
      for (int ranks = 1; ranks <= 3; ++ranks) {
        const Sizes sizes{a, b};
        const auto wrong = World(table_of(sizes), sizes, ranks, 13).wrong();
        if (!wrong.empty()) return wrong;
      }
  return "";
}

TEST(SmallWorlds, SeeARangeThatIsOffAndASlotThatIsLost) {
  using conformance::faults::seams;
  namespace through = conformance::faults::through;
  EXPECT_EQ(first_wrong(), "");
  for (const int off : {-1, 1}) {
    seams().partition_range = [off](const Partition& self, int rank) {
      auto range = through::partition_range(self, rank);
      if (rank == 1 && range.numel() > 1) range.begin += off;
      return range;
    };
    EXPECT_EQ(first_wrong(), "a gap or an overlap between owners");
  }
  seams().partition_range = [](const Partition& self, int rank) {
    auto range = through::partition_range(self, rank);
    if (rank == 2 && range.end == 17) --range.end;
    return range;
  };
  EXPECT_EQ(first_wrong(), "an element has no owner");
  seams().partition_range = nullptr;
  seams().slot_of = [](const BucketPlan& self, std::size_t parameter) {
    const auto at = through::slot_of(self, parameter);
    return parameter == 1 && self.shards() == 2 ? std::optional<SlotLocation>() : at;
  };
  EXPECT_EQ(first_wrong(), "a slot too many, or none");
  seams().slot_of = [](const BucketPlan& self, std::size_t parameter) {
    const auto at = through::slot_of(self, parameter);
    const auto other = through::slot_of(self, 0);
    return at && other ? other : at;
  };
  EXPECT_NE(first_wrong(), "");
  seams() = {};
}

}  // namespace
}  // namespace equigrad::layout
