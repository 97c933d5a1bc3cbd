// What comes and goes: the buckets of a window, all-gathers of weights, pages.
#include <functional>
#include <utility>

#include "engine/layout/launch_schedule.hpp"
#include "engine/memory/forecast_parts.hpp"

namespace equigrad::memory {
namespace {

// The buckets of one window: their memory, through the states that layout/launch_schedule.hpp
// leads them through. All ranks have filled as much as this one when they are asked.
class Buckets {
 public:
  explicit Buckets(const Model& model)
      : model_(model),
        schedule_(model.plan, is_each_pass(), model.config.zero.overlap_comm),
        filled_(model.plan.buckets().size(), 0),
        held_(model.plan.buckets().size(), 0) {
    schedule_.launch_eagerly(is_eager());
  }

  std::int64_t peak(const std::vector<std::size_t>& arrivals) {
    for (const std::size_t parameter : arrivals) arrive(parameter);
    flush();
    return peak_;
  }

  // Of buckets and the window, which is there from the first sum on.
  PassBytes arrive(std::size_t parameter) {
    most_ = now_ + window_;
    if (const auto at = model_.plan.slot_of(parameter)) {
      const std::size_t slots = model_.plan.buckets()[at->bucket].slots.size();
      fill(at->bucket, ++filled_[at->bucket] == slots);
      run();
    }
    return {parameter, now_ + window_, most_};
  }

  // The last of a pass: what was announced leaves, and all else where sums leave in every pass.
  PassBytes end(PassBytes last) {
    is_each_pass() ? flush() : settle();
    return {last.parameter, now_ + window_, most_};
  }

  // All are open before the first one leaves.
  std::int64_t most() {
    const auto& buckets = model_.plan.buckets();
    for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) fill(bucket, false);
    while (is_eager() && schedule_.launched() < buckets.size()) answer();
    flush();
    return peak_;
  }

 private:
  using Action = layout::LaunchStep::Action;
  using State = layout::BucketState;

  bool is_each_pass() const { return model_.stage.gradients_reduced == ReduceWhen::EveryPass; }
  bool is_eager() const { return model_.config.reduces_eagerly(model_.world); }
  void fill(std::size_t bucket, bool is_full) {
    schedule_.fill(bucket, is_full);
    account(bucket);
  }
  void run() {
    while (const auto step = schedule_.next()) {
      const bool answers = !model_.config.zero.overlap_comm || model_.world == 1;  // at once
      if (step->action == Action::Hear || (step->action == Action::Announce && answers)) answer();
      if (step->action == Action::Deliver) {
        window_ = model_.plan.shard_numel() * model_.sizes.window;
        hold(0);
      }
      account(step->bucket);
    }
  }
  void answer() {
    schedule_.answer(layout::LaunchAnswer::Together);
    run();
  }
  void settle() {
    if (schedule_.phase() == layout::LaunchPhase::Announced) answer();
  }
  void flush() {
    settle();
    schedule_.flush();
    run();
  }

  std::int64_t bytes(std::size_t bucket) const {
    const layout::Bucket& place = model_.plan.buckets()[bucket];
    const auto& sizes = model_.sizes;
    const std::size_t lower = place.lower_precision ? 1 : 0;
    // An all-reduce cuts its buffer into as many slices as there are ranks.
    const std::int64_t numel =
        layout::Partition(model_.plan.shards() * place.shard_numel, model_.world).padded_numel();
    const std::int64_t sent = numel * sizes.gradient_sent_bytes[lower];
    const bool as_sent = is_each_pass() || sizes.waits_as_sent;
    const std::int64_t buffer = as_sent ? sent : numel * sizes.window;
    switch (schedule_.state(bucket)) {
      case State::Filling:
      case State::Full:
      case State::ArrivedKept:
        return buffer;
      case State::Sent:
        return sent;
      case State::SentKept:
        return buffer + (sizes.copies_to_send[lower] ? sent : 0);
      default:
        return 0;
    }
  }
  void account(std::size_t bucket) {
    const std::int64_t before = std::exchange(held_[bucket], bytes(bucket));
    hold(held_[bucket] - before);
  }
  void hold(std::int64_t bytes) {
    peak_ = std::max(peak_, now_ += bytes);
    most_ = std::max(most_, now_ + window_);
  }

  const Model& model_;
  layout::LaunchSchedule schedule_;
  std::vector<std::size_t> filled_;
  std::vector<std::int64_t> held_;  // by bucket
  std::int64_t now_ = 0, peak_ = 0, window_ = 0, most_ = 0;
};

}  // namespace

HeldBytes Model::buckets() const {
  return {0, Buckets(*this).peak(arrivals), Buckets(*this).most()};
}

std::vector<PassBytes> Model::pass() const {
  Buckets buckets(*this);
  std::vector<PassBytes> timeline;
  for (const std::size_t parameter : arrivals) timeline.push_back(buckets.arrive(parameter));
  if (!timeline.empty()) timeline.back() = buckets.end(timeline.back());
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
