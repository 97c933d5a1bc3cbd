#include "engine/layout/launch_schedule.hpp"

#include <algorithm>

namespace equigrad::layout {

using Action = LaunchStep::Action;

LaunchSchedule::LaunchSchedule(const BucketPlan& plan, bool launch_when_full, bool overlaps)
    : plan_(&plan),
      launch_when_full_(launch_when_full),
      overlaps_(overlaps),
      states_(plan.buckets().size()) {
  clear();
}

void LaunchSchedule::clear() {
  std::fill(states_.begin(), states_.end(), BucketState::Empty);
  begin_anew();
}

void LaunchSchedule::begin_anew() {
  launched_ = arrived_ = 0;
  phase_ = launch_when_full_ ? LaunchPhase::Filling : LaunchPhase::Waiting;
}

void LaunchSchedule::fill(std::size_t bucket, bool is_full) {
  auto& state = states_[bucket];
  if (state == BucketState::Empty) state = BucketState::Filling;
  if (!is_full || state != BucketState::Filling) return;
  state = BucketState::Full;
  if (phase_ == LaunchPhase::Announced) phase_ = LaunchPhase::Due;
}

void LaunchSchedule::launch_eagerly(bool eager) {
  const bool idle = phase_ == LaunchPhase::Waiting || phase_ == LaunchPhase::Filling;
  if (launch_when_full_ || !idle) return;
  phase_ = eager ? LaunchPhase::Filling : LaunchPhase::Waiting;
}

void LaunchSchedule::answer(LaunchAnswer answer) {
  switch (answer) {
    case LaunchAnswer::Together:
      phase_ = LaunchPhase::Launching;
      return begin_group();
    case LaunchAnswer::Postponed:
      phase_ = LaunchPhase::Waiting;
      return;
    case LaunchAnswer::Lost:
      phase_ = LaunchPhase::Filling;
  }
}

void LaunchSchedule::flush() {
  phase_ = LaunchPhase::Flushing;
  released_ = 0;
  begin_group();
}

void LaunchSchedule::take_back() {
  for (std::size_t bucket = 0; bucket < launched_; ++bucket) {
    auto& state = states_[bucket];
    const bool is_kept = state == BucketState::SentKept || state == BucketState::ArrivedKept;
    state = is_kept ? BucketState::Full : BucketState::Empty;
  }
  begin_anew();
}

std::optional<LaunchStep> LaunchSchedule::next() {
  switch (phase_) {
    case LaunchPhase::Waiting:
      return {};
    case LaunchPhase::Filling:
      if (!can_be_announced(launched_)) return {};
      phase_ = LaunchPhase::Announced;
      return LaunchStep{Action::Announce, launched_};
    case LaunchPhase::Announced:
      if (!can_be_announced(plan_->end_of_group(launched_))) return {};
      phase_ = LaunchPhase::Due;
      [[fallthrough]];
    case LaunchPhase::Due:
      return LaunchStep{Action::Hear, launched_};
    case LaunchPhase::Launching:
      if (const auto step = step_of_group()) return step;
      phase_ = LaunchPhase::Filling;
      return {};
    case LaunchPhase::Flushing:
      if (const auto step = step_of_flush()) return step;
      clear();
      return {};
  }
  return {};
}

// The last group of a pass has next to nothing left to overlap with: it goes with the flush, which
// ranks agree on anyway.
bool LaunchSchedule::can_be_announced(std::size_t first) const {
  if (first >= states_.size()) return false;
  const std::size_t end = plan_->end_of_group(first);
  for (std::size_t bucket = first; bucket < end; ++bucket)
    if (states_[bucket] != BucketState::Full) return false;
  return end < states_.size();
}

void LaunchSchedule::begin_group() {
  group_begin_ = launched_;
  group_end_ = launched_ < states_.size() ? plan_->end_of_group(launched_) : launched_;
}

// The groups before it have had the time to be sent that this one took to fill.
std::optional<LaunchStep> LaunchSchedule::step_of_group() {
  if (launched_ == group_end_) {
    const bool may_stay = overlaps_ && arrived_ >= group_begin_;
    if (arrived_ == launched_ || may_stay) return {};
    return deliver();
  }
  auto& state = states_[launched_];
  if (state == BucketState::Empty) {
    state = BucketState::Filling;
    return LaunchStep{Action::Open, launched_};
  }
  const bool keeps = !launch_when_full_ && phase_ == LaunchPhase::Launching;
  state = keeps ? BucketState::SentKept : BucketState::Sent;
  return LaunchStep{Action::Launch, launched_++};
}

std::optional<LaunchStep> LaunchSchedule::step_of_flush() {
  for (; released_ < arrived_; ++released_) {
    if (states_[released_] != BucketState::ArrivedKept) continue;
    states_[released_] = BucketState::Arrived;
    return LaunchStep{Action::Release, released_};
  }
  if (const auto step = step_of_group()) return step;
  if (launched_ < states_.size()) {
    begin_group();
    return step_of_group();
  }
  if (arrived_ < launched_) return deliver();
  return {};
}

LaunchStep LaunchSchedule::deliver() {
  auto& state = states_[arrived_];
  const bool stays = state == BucketState::SentKept && phase_ != LaunchPhase::Flushing;
  state = stays ? BucketState::ArrivedKept : BucketState::Arrived;
  return {Action::Deliver, arrived_++};
}

}  // namespace equigrad::layout
