// 16. Its parts: which bucket leaves when, and what there is of it.
#include <deque>
#include <optional>
#include <string>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/parts/stations.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/layout/launch_schedule.hpp"
#include "engine/layout/parameter_table.hpp"

namespace equigrad::conformance::contract {
namespace {

using layout::BucketPlan;
using layout::BucketState;
using layout::LaunchAnswer;
using layout::LaunchPhase;
using layout::LaunchSchedule;
using layout::LaunchStep;
using Action = LaunchStep::Action;

// The header's states, every answer's steps written out at once.
struct Launches {
  const BucketPlan& plan;
  bool when_full, overlaps;
  std::vector<BucketState> states;
  LaunchPhase phase = LaunchPhase::Waiting;
  std::size_t left = 0, arrived = 0;
  std::deque<LaunchStep> due;

  Launches(const BucketPlan& of, bool full, bool overlap)
      : plan(of), when_full(full), overlaps(overlap), states(of.buckets().size()) {
    begin();
  }
  void begin() {
    left = arrived = 0;
    due.clear();
    phase = when_full ? LaunchPhase::Filling : LaunchPhase::Waiting;
  }
  void forget() {
    states.assign(states.size(), BucketState::Empty);
    begin();
  }
  bool is_idle() const { return phase == LaunchPhase::Waiting || phase == LaunchPhase::Filling; }
  // That of the first bucket `first`, which is not the last one.
  bool is_group_full(std::size_t first) const {
    if (first >= states.size() || plan.buckets()[first].group == plan.buckets().back().group)
      return false;
    for (std::size_t at = first; plan.buckets()[at].group == plan.buckets()[first].group; ++at)
      if (states[at] != BucketState::Full) return false;
    return true;
  }
  void fill(std::size_t at, bool is_full) {
    const bool is_new = is_full && states[at] != BucketState::Full;
    if (is_full) states[at] = BucketState::Full;
    if (states[at] == BucketState::Empty) states[at] = BucketState::Filling;
    if (is_new && phase == LaunchPhase::Announced) phase = LaunchPhase::Due;
  }
  void deliver_until(std::size_t end, std::size_t& delivered) {
    for (; delivered < end; ++delivered) due.push_back({Action::Deliver, delivered});
  }
  // The group that begins at `first` leaves; its end.
  std::size_t send_group(std::size_t first, std::size_t& delivered) {
    std::size_t end = first;
    for (; end < states.size() && plan.buckets()[end].group == plan.buckets()[first].group; ++end) {
      if (states[end] == BucketState::Empty) due.push_back({Action::Open, end});
      due.push_back({Action::Launch, end});
    }
    deliver_until(overlaps ? first : end, delivered);
    return end;
  }
  void answer(LaunchAnswer answer) {
    if (answer == LaunchAnswer::Postponed) phase = LaunchPhase::Waiting;
    if (answer == LaunchAnswer::Lost) phase = LaunchPhase::Filling;
    if (answer != LaunchAnswer::Together) return;
    phase = LaunchPhase::Launching;
    std::size_t delivered = arrived;
    send_group(left, delivered);
  }
  void flush() {
    phase = LaunchPhase::Flushing;
    for (std::size_t at = 0; at < arrived; ++at)
      if (states[at] == BucketState::ArrivedKept) due.push_back({Action::Release, at});
    std::size_t delivered = arrived;
    for (std::size_t at = left; at < states.size();) at = send_group(at, delivered);
    deliver_until(states.size(), delivered);
  }
  void take_back() {
    for (std::size_t at = 0; at < left; ++at) states[at] = BucketState::Full;
    begin();
  }
  void apply(const LaunchStep& step) {
    auto& state = states[step.bucket];
    const bool flushes = phase == LaunchPhase::Flushing, stays = !when_full && !flushes;
    if (step.action == Action::Open) state = BucketState::Filling;
    if (step.action == Action::Release) state = BucketState::Arrived;
    if (step.action == Action::Launch) ++left;
    if (step.action == Action::Launch) state = stays ? BucketState::SentKept : BucketState::Sent;
    if (step.action == Action::Deliver) ++arrived;
    if (step.action == Action::Deliver)
      state =
          state == BucketState::SentKept && stays ? BucketState::ArrivedKept : BucketState::Arrived;
  }
  std::optional<LaunchStep> next() {
    if (!due.empty()) {
      const auto step = due.front();
      due.pop_front();
      apply(step);
      return step;
    }
    if (phase == LaunchPhase::Launching) return phase = LaunchPhase::Filling, std::nullopt;
    if (phase == LaunchPhase::Flushing) return forget(), std::nullopt;
    if (phase == LaunchPhase::Filling && is_group_full(left)) {
      phase = LaunchPhase::Announced;
      return LaunchStep{Action::Announce, left};
    }
    if (phase == LaunchPhase::Announced && is_group_full(plan.end_of_group(left)))
      phase = LaunchPhase::Due;
    if (phase == LaunchPhase::Due) return LaunchStep{Action::Hear, left};
    return {};
  }
};

// Both, with what comes in by chance.
struct Driven {
  Play& play;
  Drawn& drawn;
  const BucketPlan& plan;
  LaunchSchedule schedule;
  Launches model;
  std::vector<std::size_t> contributions;
  std::string wrong = {};  // the first thing that was

  Driven(Play& with, Drawn& numbers, const BucketPlan& of, bool full, bool overlap)
      : play(with),
        drawn(numbers),
        plan(of),
        schedule(of, full, overlap),
        model(of, full, overlap),
        contributions(of.buckets().size()) {}

  void compare(const std::string& after) {
    bool holds = schedule.phase() == model.phase && schedule.launched() == model.left;
    for (std::size_t at = 0; at < contributions.size(); ++at)
      holds = holds && schedule.state(at) == model.states[at];
    if (!holds && wrong.empty()) wrong = after;
  }
  void answer() {
    const auto said = drawn.one_in(8)   ? LaunchAnswer::Lost
                      : drawn.one_in(4) ? LaunchAnswer::Postponed
                                        : LaunchAnswer::Together;
    schedule.answer(said);
    model.answer(said);
    compare("an answer");
  }
  void run() {
    for (;;) {
      const auto got = schedule.next(), want = model.next();
      if (got != want && wrong.empty())
        wrong = "a step " + std::to_string(want ? static_cast<int>(want->action) : -1);
      compare("a step");
      if (!want || !wrong.empty()) break;
      const bool may_answer = want->action == Action::Announce && drawn.one_in(2);
      if (may_answer || want->action == Action::Hear) answer();
    }
    if (model.states == std::vector<BucketState>(contributions.size()))
      contributions.assign(contributions.size(), 0);
  }
  void fill() {
    if (model.left == contributions.size()) return;
    const auto begin = static_cast<int64_t>(model.left);
    const auto many = static_cast<int64_t>(contributions.size()) - begin;
    const auto at = static_cast<std::size_t>(
        begin + (drawn.one_in(2) ? drawn.below(std::min<int64_t>(many, 3)) : drawn.below(many)));
    const bool is_full = ++contributions[at] >= plan.buckets()[at].slots.size();
    schedule.fill(at, is_full);
    model.fill(at, is_full);
    compare("a contribution");
  }
  void eagerly(bool eager) {
    schedule.launch_eagerly(eager);
    if (!model.when_full && model.is_idle())
      model.phase = eager ? LaunchPhase::Filling : LaunchPhase::Waiting;
    compare("launch_eagerly()");
  }
  void take_back() {
    if (model.when_full || !model.is_idle()) return;
    schedule.take_back();
    model.take_back();
    compare("take_back()");
  }
  void flush() {
    schedule.flush();
    model.flush();
    compare("flush()");
    run();
  }
  void clear() {
    schedule.clear();
    model.forget();
    contributions.assign(contributions.size(), 0);
    compare("clear()");
  }
  void together() {  // unasked: ranks are there that wait for this one
    if (model.left == contributions.size()) return;
    schedule.answer(LaunchAnswer::Together);
    model.answer(LaunchAnswer::Together);
    compare("together, unasked");
  }
  void act() {
    if (drawn.one_in(25)) return flush();
    if (drawn.one_in(40)) return clear();
    if (drawn.one_in(20)) return take_back();
    if (drawn.one_in(20))
      together();
    else if (drawn.one_in(6))
      eagerly(!drawn.one_in(3));
    else
      fill();
    if (!drawn.one_in(5) || model.phase == LaunchPhase::Launching) run();
  }
};

layout::ParameterTable small_table(Drawn& drawn) {
  static const std::vector<int> kIdentities(32);
  std::vector<layout::Registration> all(static_cast<std::size_t>(drawn.below(18)));
  for (std::size_t at = 0; at < all.size(); ++at)
    all[at] = {.name = "p" + std::to_string(at),
               .identity = &kIdentities[at],
               .shape = {1 + drawn.below(drawn.one_in(2) ? 4 : 12)},
               .lower_precision = drawn.one_in(2)};
  return layout::ParameterTable(all);
}

void driven(Play& play) {
  if (play.group()) {
    Drawn drawn(play, 3);
    for (int round = 0; round < 120; ++round) {
      const auto table = small_table(drawn);
      const BucketPlan plan(table, 1, 10);
      Driven it(play, drawn, plan, round % 2 == 0, round / 2 % 2 == 0);
      it.compare("the beginning");
      for (int act = 0; act < 80 && it.wrong.empty(); ++act) it.act();
      it.flush();
      play.check("a schedule of " + std::to_string(plan.buckets().size()) +
                     " buckets is as its model after every act, but after " + it.wrong,
                 it.wrong.empty() && it.schedule.launched() == (play.fault() ? 1 : 0));
    }
  }
  train_along(play);
}

}  // namespace

std::vector<Case> launches() {
  return {of_part("launches",
                  "buckets leave, arrive and are kept as documented, whatever comes when",
                  "a bucket is expected to have left", driven)};
}

}  // namespace equigrad::conformance::contract
