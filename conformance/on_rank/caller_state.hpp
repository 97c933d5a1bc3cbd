// CallerState: what an engine shares with whoever calls it and must leave as it found it: the state
// of torch's generator, the modes of the thread, the settings of the process, and the callbacks
// that every operator passes.
//
//   caller.around("step()", {}, [&] { engine.step(); });  // a finding for what step() has changed
//
// Of the settings those that change a later number or a later call: gradient, inference, autocast
// and dispatch modes, saved-tensor hooks, rounding and denormals of the floating point unit,
// default dtype, deterministic algorithms, threads. The flags that floating point operations raise
// are not of them: any operator may raise them.
//
// Invariants: a look changes nothing and runs no operator. A call that throws is judged too.
// Units: none.
// Errors: none of its own; a difference is a finding in the exact lane, of the kind "caller", that
// names what changed and after which call.
// Depends on: ATen, verdict/lane_tally.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "conformance/verdict/lane_tally.hpp"

namespace equigrad::conformance {

// What a call may change, because it is there for that or runs code of the model's.
enum class Share { Setting, Autocast, Generator, Callback };
using Shares = std::initializer_list<Share>;

class CallerState {
 public:
  CallerState();  // as it is now

  // "the gradient mode was on, is off; ..." without what `may_change`; empty: all is as before.
  std::string changes(const CallerState& before, Shares may_change = {}) const;

 private:
  std::vector<int64_t> values_;  // in the order of the rows of caller_state.cpp
  at::Tensor generator_;         // bytes
};

class CallerWatch {
 public:
  explicit CallerWatch(LaneTally& exact) : exact_(exact) {}
  CallerWatch(const CallerWatch&) = delete;
  CallerWatch& operator=(const CallerWatch&) = delete;

  // Where the calls that follow are made; micro_batch -1: after all of the step's.
  void enter(int step, int micro_batch = -1);
  template <class Call>
  auto around(const std::string& what, Shares may_change, const Call& call) {
    const Around judged(*this, what, may_change);
    return call();
  }
  // The same for calls that lie far apart.
  void judge(const std::string& what, const CallerState& before, Shares may_change);
  int64_t calls() const { return calls_; }  // judged so far

 private:
  class Around {
   public:
    Around(CallerWatch& watch, const std::string& what, Shares may_change)
        : watch_(watch), what_(what), may_change_(may_change) {}
    ~Around() { watch_.judge(what_, before_, may_change_); }
    Around(const Around&) = delete;
    Around& operator=(const Around&) = delete;

   private:
    CallerWatch& watch_;
    const std::string& what_;
    Shares may_change_;
    CallerState before_;
  };

  LaneTally& exact_;
  int step_ = -1;  // before the first
  int micro_batch_ = -1;
  int64_t calls_ = 0;
};

}  // namespace equigrad::conformance
