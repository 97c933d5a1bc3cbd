// Rendezvous: ranks agree on what comes next, so that a branch, an order or an exception which only
// some of them have can neither deadlock them nor hand one the other's bytes.
//
// A gather is collective, but at stage 3 a rank gathers what its own operators use, and operators
// may depend on data. So before every gather and every other collective of an engine the ranks
// exchange one small message: the pages I want, or the place I have come to. Wanted pages are
// gathered by all; who has come to a place stays, and serves, until all have come to it. A rank
// whose backward pass threw says so, and the others throw too.
//
// All engines over one communicator sit at one table: a rank that waits for one of them serves the
// others. A full bucket may be announced: the rank goes on, and hears when it settles, or speaks
// again, whether the others have come to it too. Ranks that have come to different engines' full
// buckets postpone them to the end of the pass, where engines come in the order of their making.
//
// Invariants: all ranks leave an exchange with the same answer; ranks take their seats in the same
// order; one thread of a rank speaks.
// Shapes: a message is 4 + ceil(seats / 63) + ceil(marks / 63) int64 words: the place, which of all
// seats there have been this rank still has, and marks of the widest of them.
// Errors: equigrad::Error naming the ranks: those at different places while nobody wants a page,
// one whose pass threw, one that wants a page of an engine which another has destroyed. All ranks
// get the error, at once.
// Depends on: ATen tensors; comm/communicator by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace equigrad::comm {

class Communicator;
class Seat;

// Where a rank has come to; the number tells one bucket, or window of so many passes, from another.
enum class Meeting : int64_t { Pages = 0, Bucket, Step, Observed, Access, Initialize, Abandoned };

struct Place {
  Meeting meeting;
  int64_t number = 0;
  int64_t flag = 0;  // a Bucket's: 0 it is full, otherwise I am flushing, in so many rounds
};

// What all ranks said who have come to the same place.
struct Met {
  bool together = true;  // false: a full bucket is postponed
  int64_t least_flag = 0;
  int64_t greatest_flag = 0;
  std::vector<bool> marks;  // set by any rank
};

class Rendezvous {
 public:
  explicit Rendezvous(Communicator& communicator) : communicator_(communicator) {}

  // Before an engine is made: serves those that exist until all ranks have come to make one.
  void meet_to_initialize();

 private:
  friend class Seat;
  struct Said;
  struct Announced;
  Met exchange(int64_t seat, const Place& place, const std::vector<bool>& marks);
  Met conclude(Said said, int64_t seat, const Place& place, const std::vector<bool>& marks);
  void settle();
  at::Tensor message(int64_t seat, const Place& place, const std::vector<bool>& marks) const;
  Said say(int64_t seat, const Place& place, const std::vector<bool>& marks);
  void gather(const Said& said);
  std::size_t seat_words() const;

  Communicator& communicator_;
  std::map<int64_t, Seat*> seats_;
  int64_t next_seat_ = 0;
  std::size_t widest_ = 0;
  bool told_ = false;  // of the pass under way: all ranks know that it threw
  std::shared_ptr<Announced> announced_;
};

// One engine's place at the table.
class Seat {
 public:
  // Starts the gathers of these pages, in this order; the same call on every rank.
  using Gather = std::function<void(const std::vector<std::size_t>& pages)>;

  // At most `marks` pages, and as many marks.
  Seat(Communicator& communicator, std::size_t marks);
  ~Seat();
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  void serve(Gather gather) { gather_ = std::move(gather); }
  // At least one page is wanted; all of them have been started on return.
  void want(const std::vector<std::size_t>& pages);
  Met meet(const Place& place, const std::vector<bool>& marks = {});
  // As meet(), for a full bucket, without waiting: `then` is called with the answer when this rank
  // settles, or speaks again, which throws what meet() would.
  using Then = std::function<void(const Met& met)>;
  void announce(const Place& place, Then then);
  void settle();
  void begin_pass() { rendezvous_.told_ = false; }
  // Tells the others that this rank's pass, or its step(), threw: once for all engines that take
  // part, and not if it was they who made it throw.
  void abandon();
  int64_t number() const { return number_; }  // by the order of making

 private:
  friend class Rendezvous;
  Rendezvous& rendezvous_;
  std::size_t marks_;
  int64_t number_;
  Gather gather_;
};

}  // namespace equigrad::comm
