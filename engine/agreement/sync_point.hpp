// SyncPoint: where a rank has come to, and what it says there.
//
// One type a point, with a name for every field. Ranks are at the same point if they name the same
// engine, the same type, and the same of what tells one such point from another: the bucket, the
// parameter, the passes of a window, a product's number. The other field, if there is one, is a
// flag: ranks may differ in it, and all of them learn the least and the greatest.
//
// Invariants: kinds count in the order of SyncPoint's alternatives, on every rank alike.
// Units: passes, rounds; a digest is any number that equal values share.
// Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

namespace equigrad::agreement {

// kText: {0} is the engine, {1} what tells the point from others of its kind.

struct WantPages {
  static constexpr auto kText = "a gather of engine {0}";
};
struct LaunchBucket {
  std::size_t bucket = 0;
  int64_t rounds = 0;  // flag: 0 it is full, otherwise this rank flushes, in so many rounds
  static constexpr auto kText = "the reduction of bucket {1} of engine {0}";
};
// Nothing more of this pass will be full.
struct NoFullBucket {
  static constexpr auto kText = "the end of a pass of engine {0}";
};
struct Step {
  int64_t passes = 0;             // of the window
  std::size_t eager_buckets = 0;  // flag: 2 x those that have left before, + 1 if it is observed
  bool is_observed = false;
  static constexpr auto kText = "step() of engine {0} after {1} backward passes";
};
// After clipping: an observer, or an optimizer of the caller's, has come to its end.
struct ObservedUpdate {
  static constexpr auto kText = "the update of engine {0}";
};

// Getters and setters.
struct ReadParameter {
  std::size_t parameter = 0;
  static constexpr auto kText = "full_parameter of engine {0}, parameter {1}";
};
struct ReadGradient {
  std::size_t parameter = 0;
  int64_t passes = 0;  // flag: of the window so far
  static constexpr auto kText = "the getter of a gradient of engine {0}, parameter {1}";
};
struct ReadMaster {
  std::size_t parameter = 0;
  static constexpr auto kText = "the getter of a master of engine {0}, parameter {1}";
};
struct ReadState {
  std::size_t parameter = 0;
  std::size_t state = 0;  // flag
  static constexpr auto kText = "the getter of a state of engine {0}, parameter {1}";
};
struct WriteGradient {
  std::size_t parameter = 0;
  int64_t digest = 0;  // flag: of the whole value
  static constexpr auto kText = "the setter of a gradient of engine {0}, parameter {1}";
};
struct WriteMaster {
  std::size_t parameter = 0;
  int64_t digest = 0;  // flag: of the whole value
  static constexpr auto kText = "the setter of a master of engine {0}, parameter {1}";
};
struct WriteState {
  std::size_t parameter = 0;
  int64_t digest = 0;  // flag: of the whole value and the state
  static constexpr auto kText = "the setter of a state of engine {0}, parameter {1}";
};
struct WriteLocal {
  std::size_t parameter = 0;
  bool is_master = false;  // flag: otherwise a gradient
  static constexpr auto kText = "the setter of a local value of engine {0}, parameter {1}";
};

struct SetRates {
  int64_t digest = 0;  // flag: of the hyper-parameters of all groups; -1: they are refused here
  static constexpr auto kText = "set_lr() or set_hyper_parameters() of engine {0}";
};

// A scope of gather().
struct GatherBegins {
  int64_t digest = 0;  // flag: of the parameters and the modifier rank
  static constexpr auto kText = "the beginning of gather() of engine {0}";
};
struct GatherStands {
  static constexpr auto kText = "the parameters of gather() of engine {0}";
};
struct GatherEnds {
  bool has_written = false;  // flag: without being the modifier rank
  static constexpr auto kText = "the end of gather() of engine {0}";
};

// Of a checkpoint. What ranks do there they do in step; they say more by texts (core/together.hpp).
struct SaveCheckpoint {
  static constexpr auto kText = "save_checkpoint() of engine {0}";
};
struct LoadCheckpoint {
  static constexpr auto kText = "load_checkpoint() of engine {0}";
};

struct HessianProduct {
  int64_t number = 0;
  static constexpr auto kText = "product {1} with the Hessian, which is engine {0}";
};
struct Initialize {
  int64_t oldest = 0;  // flag: the number of the oldest engine that this rank still has
  static constexpr auto kText = "initialize()";
};
struct Abandoned {
  static constexpr auto kText = "an exception of engine {0}";
};

using SyncPoint =
    std::variant<WantPages, LaunchBucket, NoFullBucket, Step, ObservedUpdate, ReadParameter,
                 ReadGradient, ReadMaster, ReadState, WriteGradient, WriteMaster, WriteState,
                 WriteLocal, SetRates, GatherBegins, GatherStands, GatherEnds, SaveCheckpoint,
                 LoadCheckpoint, HessianProduct, Initialize, Abandoned>;

template <class Point, std::size_t I = 0>
constexpr int64_t kind_of() {
  if constexpr (std::is_same_v<std::variant_alternative_t<I, SyncPoint>, Point>)
    return static_cast<int64_t>(I);
  else
    return kind_of<Point, I + 1>();
}

// A point as it is sent.
struct PointWords {
  int64_t kind = 0;
  int64_t which = 0;  // among those of its kind
  int64_t flag = 0;

  template <class Point>
  bool is() const {
    return kind == kind_of<Point>();
  }
  bool is_same_point(const PointWords& other) const {
    return kind == other.kind && which == other.which;
  }
  // Who says it may be postponed.
  bool is_full_bucket() const { return (is<LaunchBucket>() && flag == 0) || is<NoFullBucket>(); }
  // A getter, a setter, or a scope of gather().
  bool is_access() const {
    return kind >= kind_of<ReadParameter>() && kind <= kind_of<HessianProduct>();
  }
};

PointWords words_of(const SyncPoint& point);

// "step() of engine 1 after 2 backward passes"
std::string describe(const PointWords& words, int64_t engine);

}  // namespace equigrad::agreement
