// Script: command seeds made into a program of calls that are legal, and of misuse that must be
// refused.
//
//   CommandSeed {kind, a, b, c, d} --Script::add--> {"call": "backward", "slots": [0], ...}
//
// A wish is what is drawn and shrunk, before it is known what it means at its place in a program.
//
// Invariants: any list of command seeds gives a program, so any of them can be left out of one; 0
// is the simplest of every argument. A call says all that a player needs: players keep no rules of
// their own. Every rank makes the same calls. Graphs are kept until the weights change, as torch
// demands.
// Units: a setting's "extras" is a set of the bits of Extras; slots are places for a forward's
// output and loss; batches are numbered from 0.
// Errors: none.   Depends on: nlohmann-json. No torch.
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace equigrad::property_tests::programs {

using nlohmann::json;

// Bits of a setting's "extras".
enum Extras {
  kHeads = 1,
  kBias = 2,
  kScalar = 4,
  kTied = 8,
  kFrozen = 16,
  kEmpty = 32,
  kNever = 64,
  kNests = 128  // activation checkpointing by a backward inside of the backward
};

enum class Kind {
  Backward,
  Step,
  Forward,
  ZeroGrad,
  Boundary,
  Get,
  Set,
  NoSync,
  BatchSize,
  Throw,
  Twice,
  Misuse,
  Look,
  Grad,
  Gather
};

struct CommandSeed {
  int kind, a, b, c, d;  // a place in kKinds; 0 is the simplest of everything
};
constexpr int kArguments = 60;

// Some kinds are drawn more often than others.
inline constexpr std::array kKinds = {
    Kind::Backward, Kind::Backward, Kind::Backward, Kind::Backward,  Kind::Backward, Kind::Backward,
    Kind::Step,     Kind::Step,     Kind::Step,     Kind::Step,      Kind::Step,     Kind::Forward,
    Kind::Forward,  Kind::ZeroGrad, Kind::Boundary, Kind::Get,       Kind::Get,      Kind::Set,
    Kind::Set,      Kind::NoSync,   Kind::NoSync,   Kind::BatchSize, Kind::Throw,    Kind::Throw,
    Kind::Throw,    Kind::Throw,    Kind::Set,      Kind::Twice,     Kind::Misuse,   Kind::Misuse,
    Kind::Look,     Kind::Grad,     Kind::Gather,   Kind::Gather};

// Parameters that are trained and not empty.
std::vector<std::string> trained(const json& setting);
std::vector<std::string> state_names(const json& setting);
// The way through the model that a forward takes on this data rank.
int branch_of(const json& call, int rank);

class Script {
 public:
  explicit Script(const json& setting);

  void add(const CommandSeed& drawn);
  // With a last look at everything.
  json finish();

 private:
  // What of the setting decides which calls are legal.
  struct Rules {
    int world, data, zero, stage;  // data: with batches of their own; zero: that ZeRO shards over
    bool fp16, pair, frozen;
    std::vector<std::string> names, states;
  };
  struct Slot {
    bool live = false, nothing = false;  // `nothing`: reaches no parameter on some rank
  };
  struct Window {
    int steps = 0;            // calls of step() since the last boundary
    int least = 0, most = 0;  // passes since the last step(), of the rank with fewest and most
    bool guarded = false;     // in no_sync()
    std::optional<bool> boundary;
  };

  void emit(json call);
  void refuse(const std::string& what);
  void count_pass();
  int engine(int which) const;

  void forward(int slot, int way);
  void backward(const CommandSeed& drawn);
  void step(const CommandSeed& drawn);
  void boundary(const CommandSeed& drawn);
  void no_sync(const CommandSeed& drawn);
  void end_no_sync();
  void batch_size(const CommandSeed& drawn);
  void throwing(const CommandSeed& drawn);
  void twice(const CommandSeed& drawn);
  void look(const CommandSeed& drawn);
  void access(const std::string& call, const CommandSeed& drawn);
  void gather(const CommandSeed& drawn);
  void misuse(const CommandSeed& drawn);

  Rules rules_;
  int accumulation_;
  json calls_ = json::array();
  std::array<Slot, 3> slots_;
  int batches_ = 0, values_ = 0;
  Window window_;
};

}  // namespace equigrad::property_tests::programs
