#include "perf/race/receiving_blocks.hpp"

#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "engine/comm/reduction.hpp"
#include "engine/layout/launch_schedule.hpp"
#include "engine/layout/partition.hpp"

namespace equigrad::perf {
namespace {

class Blocks {
 public:
  Blocks(const layout::BucketPlan& plan, int world)
      : plan_(plan),
        world_(world),
        pieces_(plan.buckets().size()),
        unsent_(plan.buckets().size()) {}

  // At most, of any step: what a step leaves is there in the next.
  int64_t most_bytes() {
    layout::LaunchSchedule schedule(plan_, /*launch_when_full=*/true, /*overlaps=*/true);
    for (int step = 0; step < 3; ++step) {
      schedule.flush();
      while (const auto next = schedule.next()) {
        if (next->action == layout::LaunchStep::Action::Launch) launch(next->bucket);
        if (next->action == layout::LaunchStep::Action::Deliver) deliver(next->bucket);
      }
    }
    return most_bytes_;
  }

 private:
  int64_t row_numel(std::size_t bucket) const {
    const int64_t numel = plan_.buckets()[bucket].shard_numel;
    return plan_.shards() == 1 ? layout::Partition(numel, world_).padded_numel() : numel;
  }
  void launch(std::size_t bucket) {
    left_numel_ = row_numel(bucket);
    for (int piece = 0; piece < comm::Reduction::kInFlight; ++piece) send(bucket);
    unsent_[bucket] = left_numel_;
  }
  void send(std::size_t bucket) {
    const int64_t numel = std::min(comm::Reduction::kPieceNumel, left_numel_);
    if (numel == 0) return;
    left_numel_ -= numel;
    const int64_t bytes = numel * (world_ == 2 ? 1 : world_) * 4;  // two ranks trade
    auto block = free_.lower_bound(bytes);
    const bool is_there = block != free_.end();
    if (!is_there && !free_.empty()) {
      now_bytes_ -= *free_.begin();
      free_.erase(free_.begin());
    }
    pieces_[bucket].push_back(is_there ? *block : bytes);
    if (is_there)
      free_.erase(block);
    else
      most_bytes_ = std::max(most_bytes_, now_bytes_ += bytes);
  }
  void deliver(std::size_t bucket) {
    for (left_numel_ = unsent_[bucket]; !pieces_[bucket].empty();) {
      const int64_t block = pieces_[bucket].front();
      pieces_[bucket].pop_front();
      send(bucket);
      free_.insert(block);
    }
  }

  const layout::BucketPlan& plan_;
  int world_;
  std::vector<std::deque<int64_t>> pieces_;  // by bucket, the blocks they are received into
  std::vector<int64_t> unsent_;              // by bucket, elements
  std::multiset<int64_t> free_;
  int64_t left_numel_ = 0, now_bytes_ = 0, most_bytes_ = 0;
};

}  // namespace

int64_t receiving_bytes(const layout::BucketPlan& plan, int world) {
  return Blocks(plan, world).most_bytes();
}

}  // namespace equigrad::perf
