// Coordinator: ranks agree on the next collective, so that a branch, an order or an exception which
// only some of them have can neither deadlock them nor mix up their data.
//
// A gather is collective, but at stage 3 a rank gathers what its own operators use, and operators
// may depend on data. So before every gather and every other collective of an engine the ranks
// exchange one small message: the pages that a rank wants, or the synchronisation point that it has
// reached. Wanted pages are gathered by all; a rank that has reached a point stays, and takes part
// in gathers, until all have reached it. A rank whose backward pass threw says so, and the others
// throw too.
//
// All engines over one communicator share one Coordinator, in which each is a Participant: a rank
// that waits for one of them serves the others. A full bucket may be announced: the rank goes on,
// and hears when it settles, or sends its next message, whether the others have reached it too.
// Ranks that have reached different engines' full buckets postpone them to the end of the pass,
// where engines come in the order of their construction.
//
// Invariants: all ranks leave an exchange with the same answer; ranks construct their participants
// in the same order; one thread of a rank calls it.
// Shapes: a message is 4 + ceil(participants / 63) + ceil(marks / 63) int64 words: the point, which
// participants this rank still has, of those made since the oldest that any rank had when the last
// engine was made, and marks of the widest.
// Errors: equigrad::Error naming the ranks: those at different points while nobody wants a page,
// one whose pass threw, one that wants a page of an engine which another has destroyed. All ranks
// get the error, at once.
// Depends on: ATen tensors; comm/communicator by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/agreement/sync_point.hpp"

namespace equigrad::comm {
class Communicator;
}

namespace equigrad::agreement {

class Participant;

// The answer that all ranks get once they have reached the same point.
struct Agreement {
  bool together = true;  // false: a full bucket is postponed
  int64_t least_flag = 0;
  int64_t greatest_flag = 0;
  std::vector<bool> marks;  // set by any rank
};

class Coordinator {
 public:
  explicit Coordinator(comm::Communicator& communicator) : communicator_(communicator) {}

  // Before an engine is constructed: serves those that exist until all ranks construct one. The
  // ranks forget the engines before the oldest that any of them has.
  void meet_to_initialize();

 private:
  friend class Participant;
  struct Statements;
  struct Announced;
  class Speaking;
  Agreement exchange(int64_t participant, const PointWords& point, const std::vector<bool>& marks);
  Agreement conclude(Statements statements, int64_t participant, const PointWords& point,
                     const std::vector<bool>& marks);
  void settle();
  at::Tensor message(int64_t participant, const PointWords& point,
                     const std::vector<bool>& marks) const;
  Statements say(int64_t participant, const PointWords& point, const std::vector<bool>& marks);
  void gather(const Statements& statements);
  std::size_t participant_words() const;

  comm::Communicator& communicator_;
  std::atomic<std::thread::id> speaker_ = {};  // none: nobody of this rank speaks
  std::map<int64_t, Participant*> participants_;
  int64_t oldest_participant_ = 0, next_participant_ = 0;  // the same on every rank
  std::size_t widest_ = 0;
  bool failure_is_known_ = false;  // all ranks know that the pass under way threw
  std::shared_ptr<Announced> announced_;
};

// The one of this communicator, made when it is first asked for.
Coordinator& coordinator_of(comm::Communicator& communicator);

// One engine's part in the agreement.
class Participant {
 public:
  // Starts the gathers of these pages, in this order; the same call on every rank.
  using Gather = std::function<void(const std::vector<std::size_t>& pages)>;

  // At most `marks` pages, and as many marks.
  Participant(comm::Communicator& communicator, std::size_t marks);
  ~Participant();
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  void serve(Gather gather) { gather_ = std::move(gather); }
  // At least one page is wanted; all of them have been started on return.
  void want(const std::vector<std::size_t>& pages);
  Agreement meet(const SyncPoint& point, const std::vector<bool>& marks = {});
  // As meet(), for a full bucket, without waiting: `then` is called with the answer when this rank
  // settles, or speaks again, which throws what meet() would.
  using Then = std::function<void(const Agreement& agreement)>;
  void announce(const SyncPoint& point, Then then);
  void settle();
  void begin_pass() { coordinator_.failure_is_known_ = false; }
  // Tells the others that this rank's pass, or its step(), threw: once for all engines that take
  // part, and not if it was they who made it throw.
  void abandon();
  int64_t number() const { return number_; }  // by the order of making
  comm::Communicator& communicator() const { return coordinator_.communicator_; }

 private:
  friend class Coordinator;
  Coordinator& coordinator_;
  std::size_t marks_;
  int64_t number_;
  Gather gather_;
};

}  // namespace equigrad::agreement
