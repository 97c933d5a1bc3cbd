// LaunchSchedule: which bucket leaves when, what is on its way, and what there is of each bucket;
// states and transitions only, no tensors.
//
// Whoever has the buckets says what comes in (fill) and what ranks agree on (answer); next() says
// what is to be done about it, one step at a time, and takes that step as done. The bucket queue
// does the steps with tensors and collectives, the memory forecast with sizes alone.
//
//   Waiting   -- launch_eagerly -->  Filling  -- a group is full: Announce -->  Announced
//   Announced -- one more bucket, or the next group, is full -->  Due: Hear
//   Announced, Due -- answer -->  Launching (together), Waiting (postponed), Filling (lost)
//   Launching -- the group has left, those before it have arrived -->  Filling
//   any       -- flush -->  Flushing -- all have left and arrived -->  as at the beginning
//
// Invariants: buckets leave in the plan's order, group by group, and arrive in that order, once
// each; without overlap a group arrives before the next step, with it before the group after it
// has been launched. The last group goes with the flush. Where buckets wait for the flush, those
// that leave eagerly keep their buffers until then, so that they can be taken back.
// Units: indices of buckets.
// Errors: none.
// Depends on: layout/bucket_plan. It lies here and not in bucket/ because memory/ uses it too.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/layout/bucket_plan.hpp"

namespace equigrad::layout {

// What there is of a bucket; beside each state the memory that is live.
enum class BucketState {
  Empty,        // none
  Filling,      // its buffer
  Full,         // its buffer, with a contribution to every slot
  Sent,         // what was sent
  SentKept,     // what was sent, and its buffer
  ArrivedKept,  // its buffer
  Arrived,      // none
};

enum class LaunchPhase {
  Waiting,    // full buckets wait for the flush
  Filling,    // the next group will be announced when it is full
  Announced,  // it has been; the answer is not needed yet
  Due,        // the answer has to be heard
  Launching,  // ranks have come to the next group: it leaves
  Flushing,
};

enum class LaunchAnswer {
  Together,   // all ranks have come to the next group
  Postponed,  // some have not: it waits for the flush, and so do those after it
  Lost,       // there will be none
};

struct LaunchStep {
  enum class Action {
    Announce,  // the bucket's group is full; answer() is to be called, now or later
    Hear,      // what was announced; answer() is to be called before the next step
    Open,      // nothing has come into it, and it is about to leave
    Launch,
    Deliver,  // wait until it has arrived
    Release,  // it left eagerly and has arrived: its buffer goes
  };
  Action action;
  std::size_t bucket;
  bool operator==(const LaunchStep&) const = default;
};

class LaunchSchedule {
 public:
  // Either groups leave when they are full, or all wait for the flush unless launch_eagerly().
  LaunchSchedule(const BucketPlan& plan, bool launch_when_full, bool overlaps);

  // A contribution is in it; `is_full`: to every slot. Not for one that has left.
  void fill(std::size_t bucket, bool is_full);
  // Whether those that wait for the flush leave when they are full.
  void launch_eagerly(bool eager);
  // For the group of launched(); Together may be said unasked, of a group that is not full.
  void answer(LaunchAnswer answer);
  void flush();
  // As if none had left: those that kept their buffers are full, and wait for the flush.
  void take_back();
  void clear();
  // Nothing: nothing can be done now. A group that ranks have come to has left by then, and what
  // comes after it is said by the next call.
  std::optional<LaunchStep> next();

  LaunchPhase phase() const { return phase_; }
  BucketState state(std::size_t bucket) const { return states_[bucket]; }
  std::size_t launched() const { return launched_; }  // the first so many buckets

 private:
  bool can_be_announced(std::size_t first) const;
  void begin_group();
  std::optional<LaunchStep> step_of_group();
  std::optional<LaunchStep> step_of_flush();
  LaunchStep deliver();
  void begin_anew();

  const BucketPlan* plan_;
  bool launch_when_full_;
  bool overlaps_;
  LaunchPhase phase_;
  std::vector<BucketState> states_;
  std::size_t launched_ = 0, arrived_ = 0;       // the first so many
  std::size_t released_ = 0;                     // the first so many have been looked at in a flush
  std::size_t group_begin_ = 0, group_end_ = 0;  // which leaves
};

}  // namespace equigrad::layout
