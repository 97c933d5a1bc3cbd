// What comes and goes: the buckets of a window, all-gathers of weights, pages.
#include <deque>
#include <functional>

#include "engine/memory/forecast_parts.hpp"

namespace equigrad::memory {
namespace {

// The buckets of one window, as a bucket queue opens, launches and delivers them.
class Buckets {
 public:
  Buckets(const layout::BucketPlan& plan, const Sizes& sizes, int world, bool each_pass, bool eager,
          bool overlaps)
      : plan_(plan),
        sizes_(sizes),
        world_(world),
        each_pass_(each_pass),
        eager_(eager),
        overlaps_(overlaps),
        is_open_(plan.buckets().size(), false),
        filled_(plan.buckets().size(), 0) {}

  std::int64_t peak(const std::vector<std::size_t>& arrivals) {
    for (const std::size_t parameter : arrivals) arrive(parameter);
    if (announced_) launch_group();
    eager_ = false;
    const std::size_t arrived = in_flight_.empty() ? next_ : in_flight_.front().bucket;
    for (std::size_t bucket = 0; !each_pass_ && bucket < arrived; ++bucket)
      hold(-held_bytes(bucket));
    while (next_ < filled_.size()) launch_group();
    return peak_;
  }

  // Of buckets and the window, which is there from the first sum on.
  PassBytes arrive(std::size_t parameter) {
    most_ = now_ + window_;
    if (const auto at = plan_.slot_of(parameter)) {
      open(at->bucket);
      const bool is_full = ++filled_[at->bucket] == plan_.buckets()[at->bucket].slots.size();
      if (is_full && (each_pass_ || eager_)) launch_full();
    }
    return {parameter, now_ + window_, most_};
  }

  // The last of a pass: what was announced leaves.
  PassBytes settle(PassBytes last) {
    if (announced_) launch_group();
    return {last.parameter, now_ + window_, most_};
  }

  // The last of a pass: all that has not left leaves.
  PassBytes finish(PassBytes last) {
    if (announced_) launch_group();
    while (next_ < filled_.size()) launch_group();
    window_ = plan_.shard_numel() * sizes_.window;
    hold(0);
    return {last.parameter, window_, most_};
  }

  // All are open before the first one leaves.
  std::int64_t most() {
    for (std::size_t bucket = 0; bucket < is_open_.size(); ++bucket) open(bucket);
    while (next_ < is_open_.size()) launch_group();
    return peak_;
  }

 private:
  // An all-reduce cuts its buffer into as many slices as there are ranks.
  std::int64_t numel(std::size_t bucket) const {
    return layout::Partition(plan_.shards() * plan_.buckets()[bucket].shard_numel, world_)
        .padded_numel();
  }
  std::int64_t sent_bytes(std::size_t bucket) const {
    return numel(bucket) *
           sizes_.gradient_sent_bytes[plan_.buckets()[bucket].lower_precision ? 1 : 0];
  }
  std::int64_t held_bytes(std::size_t bucket) const {
    const bool as_sent = each_pass_ || sizes_.waits_as_sent;
    return as_sent ? sent_bytes(bucket) : numel(bucket) * sizes_.window;
  }
  // A group that is full leaves when one more bucket is, if anything overlaps and ranks must agree;
  // the last one leaves at the end.
  void launch_full() {
    if (announced_) launch_group();
    for (;;) {
      const std::size_t first = announced_ ? plan_.end_of_group(next_) : next_;
      if (!is_group_full(first) || plan_.end_of_group(first) == filled_.size()) return;
      if (announced_) launch_group();
      announced_ = true;
      if (!overlaps_ || world_ == 1) launch_group();  // one rank alone knows the answer
    }
  }
  void launch_group() {
    announced_ = false;
    const std::size_t first = next_;
    for (const std::size_t end = plan_.end_of_group(first); next_ < end;) launch();
    while (!in_flight_.empty() && (!overlaps_ || in_flight_.front().bucket < first)) deliver();
  }
  bool is_group_full(std::size_t first) const {
    for (std::size_t bucket = first; bucket < plan_.end_of_group(first); ++bucket)
      if (filled_[bucket] < plan_.buckets()[bucket].slots.size()) return false;
    return true;
  }
  void hold(std::int64_t bytes) {
    peak_ = std::max(peak_, now_ += bytes);
    most_ = std::max(most_, now_ + window_);
  }
  void open(std::size_t bucket) {
    if (!is_open_[bucket]) hold(held_bytes(bucket));
    is_open_[bucket] = true;
  }
  void deliver() {
    window_ = plan_.shard_numel() * sizes_.window;
    hold(0);
    const auto [bucket, bytes, stays] = in_flight_.front();
    hold(-bytes);
    if (stays && !eager_) hold(-held_bytes(bucket));
    in_flight_.pop_front();
  }
  void launch() {
    open(next_);
    // What is sent eagerly, before the step, stays here too.
    const bool is_here =
        eager_ && !sizes_.copies_to_send[plan_.buckets()[next_].lower_precision ? 1 : 0];
    const std::int64_t bytes = is_here ? 0 : sent_bytes(next_);
    hold(bytes - (eager_ ? 0 : held_bytes(next_)));
    in_flight_.push_back({next_++, bytes, eager_});
  }

  struct Flying {
    std::size_t bucket;
    std::int64_t bytes;
    bool stays;
  };
  const layout::BucketPlan& plan_;
  const Sizes& sizes_;
  int world_;
  bool each_pass_, eager_, overlaps_, announced_ = false;
  std::vector<bool> is_open_;
  std::vector<std::size_t> filled_;
  std::deque<Flying> in_flight_;
  std::size_t next_ = 0;
  std::int64_t now_ = 0, peak_ = 0, window_ = 0, most_ = 0;
};

}  // namespace

HeldBytes Model::buckets() const {
  const auto new_window = [&] {
    return Buckets(plan, sizes, world, each_pass(), config.reduces_eagerly(world),
                   config.zero.overlap_comm);
  };
  return {0, new_window().peak(arrivals), new_window().most()};
}

std::vector<PassBytes> Model::pass() const {
  Buckets buckets(plan, sizes, world, each_pass(), config.reduces_eagerly(world),
                  config.zero.overlap_comm);
  std::vector<PassBytes> timeline;
  for (const std::size_t parameter : arrivals) timeline.push_back(buckets.arrive(parameter));
  if (timeline.empty()) return timeline;
  timeline.back() = each_pass() ? buckets.finish(timeline.back()) : buckets.settle(timeline.back());
  return timeline;
}

// One after the other, as parameter/replicas.cpp cuts them.
HeldBytes Model::all_gathers() const {
  HeldBytes held;
  if (plan.shards() == 1) return held;
  std::int64_t columns = 0;
  const layout::Bucket* before = nullptr;
  for (const auto& bucket : plan.buckets()) {
    const std::int64_t sent_bytes = sizes.weight_sent_bytes[bucket.lower_precision ? 1 : 0];
    for (const auto& slot : bucket.slots) {
      if (slot.numel >= layout::kAloneNumel && slot.numel % world == 0 && sent_bytes == sizes.param)
        continue;  // into the parameter's own memory
      const bool joins = before != nullptr && before->lower_precision == bucket.lower_precision &&
                         (columns + slot.shard_numel) * world <= config.zero.allgather_bucket_size;
      columns = slot.shard_numel + (joins ? columns : 0);
      held.peak = std::max(held.peak, columns * world * sent_bytes);
      before = &bucket;
    }
  }
  held.most = held.peak;
  return held;
}

// When those that stay whole are gathered together: the small ones of a type in one collective,
// whose block stays until the last of them is copied out of it, the residents to where they have
// always been; the others move in as they are.
std::int64_t Model::persistent_peak() const {
  std::int64_t blocks[3] = {0, 0, 0}, now = 0, peak = 0;  // by bytes that an element is sent in
  std::size_t last[3] = {0, 0, 0};
  const auto block_of = [&](std::size_t i) {
    return static_cast<std::size_t>(sent_bytes_of(i)) / 2;
  };
  std::vector<std::size_t> stay;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].numel == 0 || !is_persistent(i)) continue;
    stay.push_back(i);
    now += padded_numel(i) * sent_bytes_of(i) + (is_resident(i) ? whole_bytes(i) : 0);
    if (!is_small(i)) continue;
    blocks[block_of(i)] += padded_numel(i) * sent_bytes_of(i);
    last[block_of(i)] = i;
  }
  peak = now;
  for (const std::size_t i : stay) {
    const bool is_last = is_small(i) && last[block_of(i)] == i;
    if (!is_small(i)) now -= padded_numel(i) * sent_bytes_of(i);
    if (is_last) now -= blocks[block_of(i)];
    if (!is_resident(i)) now += whole_bytes(i);
    peak = std::max(peak, now);
  }
  return peak;
}

// Of pages that are here or on their way, at most: the limit is asked before an operator's own
// parameters come, taken to be the two largest (a weight and its bias), or leaf modules.
std::int64_t Model::live_bytes() const {
  std::int64_t padded = 0, numel = 0, persistent = 0, padding = 0;
  std::vector<std::int64_t> largest{0, 0};
  for (std::size_t i = 0; i < table.size(); ++i) {
    padded += padded_numel(i);
    padding += padded_numel(i) - table[i].numel;
    numel += table[i].numel;
    if (is_persistent(i)) persistent += table[i].numel;
  }
  for (const auto& unit : units) {
    largest.push_back(0);
    for (const std::size_t i : unit) largest.back() += table[i].numel;
    std::partial_sort(largest.begin(), largest.begin() + 2, largest.end(), std::greater<>());
    largest.resize(2);
  }
  const std::int64_t limit = std::max(config.zero.stage3_max_live_parameters, persistent);
  if (limit >= numel) return padded * sizes.param;
  return std::min(padded, limit + largest[0] + largest[1] + padding) * sizes.param;
}

HeldBytes Model::pages() const {
  HeldBytes held;
  std::int64_t shared_block = 0, one = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].numel == 0) continue;
    if (is_small(i)) shared_block += padded_numel(i) * sent_bytes_of(i);
    if (is_persistent(i))
      held.idle += whole_bytes(i);
    else
      held.is_exact = false;
  }
  for (const auto& unit : units) {
    std::int64_t bytes = 0;
    bool arrives = false;
    for (const std::size_t i : unit) {
      if (!is_persistent(i)) bytes += padded_numel(i) * sizes.param;
      arrives = arrives || std::find(arrivals.begin(), arrivals.end(), i) != arrivals.end();
    }
    if (arrives) one = std::max(one, bytes);
  }
  held.peak = std::max(persistent_peak(), held.idle + one);
  held.most = held.is_exact ? held.peak : std::max(held.peak, live_bytes() + shared_block);
  return held;
}

}  // namespace equigrad::memory
