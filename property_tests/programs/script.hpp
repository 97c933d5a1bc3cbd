// Script: command seeds made into a program of calls that are legal, and of misuse that must be
// refused.
//
//   CommandSeed {kind, a, b, c, d} --Script::add--> {"call": "backward", "slots": [0], ...}
//
// Invariants: any list of command seeds gives a program, so any of them can be left out of one. A
// call says all that a player needs: players keep no rules of their own. Every rank makes the same
// calls.
// Graphs are kept until the weights change, as torch demands.
// Units: slots are places for a forward's output and loss; batches are numbered from 0.
// Errors: none.
// Depends on: command_seeds.hpp. No torch.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "property_tests/programs/command_seeds.hpp"

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

  void add(const CommandSeed& drawn) {
    switch (kKinds[static_cast<std::size_t>(drawn.kind)]) {
      case Kind::Backward:
        return backward(drawn);
      case Kind::Step:
        return step(drawn);
      case Kind::Forward:
        return forward(drawn.b % 3, drawn.d);
      case Kind::ZeroGrad:
        return emit({{"call", "zero_grad"}});
      case Kind::Boundary:
        return boundary(drawn);
      case Kind::Get:
        return access("get", drawn);
      case Kind::Set:
        return access("set", drawn);
      case Kind::NoSync:
        return no_sync(drawn);
      case Kind::BatchSize:
        return batch_size(drawn);
      case Kind::Throw:
        return throwing(drawn);
      case Kind::Twice:
        return twice(drawn);
      case Kind::Misuse:
        return misuse(drawn);
      case Kind::Look:
        return look(drawn);
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
  void backward(const CommandSeed& drawn);
  void step(const CommandSeed& drawn);
  void boundary(const CommandSeed& drawn);
  void end_no_sync() {
    guarded_ = false;
    emit({{"call", "end_no_sync"}});
  }
  void no_sync(const CommandSeed& drawn);
  void batch_size(const CommandSeed& drawn);
  void throwing(const CommandSeed& drawn);
  void twice(const CommandSeed& drawn) {
    emit({{"call", "twice"},
          {"style", drawn.a % 4},
          {"batch", batches_++},
          {"branch", drawn.b % 4},
          {"engine", engine(drawn.d)}});
    count_pass();
  }

  void look(const CommandSeed& drawn) {
    emit({{"call", "look"}, {"alone", drawn.a % 2 == 1}, {"batch", batches_++}});
  }

  void access(const std::string& call, const CommandSeed& drawn);
  void misuse(const CommandSeed& drawn);

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
