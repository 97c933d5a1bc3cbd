// Script: wishes made into a program of calls that are legal, and of misuse that must be refused.
//
//   Wish {kind, a, b, c, d} --Script::add--> {"call": "backward", "slots": [0], "style": 2, ...}
//
// Invariants: any list of wishes gives a program, so any wish can be left out of one. A call says
// all that a player needs: players keep no rules of their own. Every rank makes the same calls.
// Graphs are kept until the weights change, as torch demands.
// Units: slots are places for a forward's output and loss; batches are numbered from 0.
// Errors: none.
// Depends on: wishes.hpp. No torch.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "property_tests/programs/wishes.hpp"

namespace equigrad::property_tests::programs {

class Script {
 public:
  explicit Script(const json& setting)
      : world_(setting.at("world")),
        stage_(setting.at("stage")),
        accumulation_(setting.at("accumulation")),
        fp16_(setting.at("precision") == 2),
        pair_(setting.at("pair") != 0),
        frozen_((setting.at("extras").get<int>() & kFrozen) != 0),
        names_(trained(setting)),
        states_(state_names(setting)) {}

  void add(const Wish& wish) {
    switch (kKinds[static_cast<std::size_t>(wish.kind)]) {
      case Kind::Backward:
        return backward(wish);
      case Kind::Step:
        return step(wish);
      case Kind::Forward:
        return forward(wish.b % 3, wish.d);
      case Kind::ZeroGrad:
        return emit({{"call", "zero_grad"}});
      case Kind::Boundary:
        return boundary(wish);
      case Kind::Get:
        return access("get", wish);
      case Kind::Set:
        return access("set", wish);
      case Kind::NoSync:
        return no_sync(wish);
      case Kind::BatchSize:
        return batch_size(wish);
      case Kind::Throw:
        return throwing(wish);
      case Kind::Twice:
        return twice(wish);
      case Kind::Misuse:
        return misuse(wish);
      case Kind::Look:
        return look(wish);
      case Kind::Grad:
        return emit({{"call", "grad"}, {"batch", batches_++}});
    }
  }

  // With a last look at everything.
  json finish() {
    emit({{"call", "end"}});
    return std::exchange(calls_, json::array());
  }

 private:
  struct Slot {
    bool live = false, nothing = false;  // `nothing`: reaches no parameter on some rank
  };

  void emit(json call) { calls_.push_back(std::move(call)); }
  void refuse(const std::string& what) { emit({{"call", "refuse"}, {"what", what}}); }
  const std::string& name(int which) const {
    return names_[static_cast<std::size_t>(which) % names_.size()];
  }
  void count_pass() { ++least_, ++most_; }
  int engine(int which) const { return pair_ ? which % 2 : 0; }

  void forward(int slot, int way);
  void backward(const Wish& wish);
  void step(const Wish& wish);
  void boundary(const Wish& wish);
  void end_no_sync() {
    guarded_ = false;
    emit({{"call", "end_no_sync"}});
  }
  void no_sync(const Wish& wish);
  void batch_size(const Wish& wish);
  void throwing(const Wish& wish);
  void twice(const Wish& wish) {
    emit({{"call", "twice"},
          {"style", wish.a % 4},
          {"batch", batches_++},
          {"branch", wish.b % 4},
          {"engine", engine(wish.d)}});
    count_pass();
  }

  void look(const Wish& wish) {
    emit({{"call", "look"}, {"alone", wish.a % 2 == 1}, {"batch", batches_++}});
  }

  void access(const std::string& call, const Wish& wish);
  void misuse(const Wish& wish);

  int world_, stage_, accumulation_;
  bool fp16_, pair_, frozen_;
  std::vector<std::string> names_, states_;
  json calls_ = json::array();
  std::array<Slot, 3> slots_;
  int batches_ = 0, values_ = 0, in_window_ = 0;
  int least_ = 0, most_ = 0;  // passes since the last step(), of the rank with fewest and with most
  bool guarded_ = false;
  std::optional<bool> boundary_;
};

}  // namespace equigrad::property_tests::programs
