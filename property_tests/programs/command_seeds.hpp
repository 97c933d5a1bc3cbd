// CommandSeed: what is drawn and shrunk, before its meaning at its place in a program is known.
//
// Invariants: 0 is the simplest of every argument.
// Units: a setting's "extras" is a set of the bits of Extras.
// Errors: none.
// Depends on: nlohmann-json. No torch.
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
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
  Grad
};

struct CommandSeed {
  int kind, a, b, c, d;  // a place in kKinds; 0 is the simplest of everything
};
constexpr int kArguments = 60;

// Some kinds are drawn more often than others.
constexpr std::array kKinds = {
    Kind::Backward, Kind::Backward, Kind::Backward, Kind::Backward,  Kind::Backward, Kind::Backward,
    Kind::Step,     Kind::Step,     Kind::Step,     Kind::Step,      Kind::Step,     Kind::Forward,
    Kind::Forward,  Kind::ZeroGrad, Kind::Boundary, Kind::Get,       Kind::Get,      Kind::Set,
    Kind::Set,      Kind::NoSync,   Kind::NoSync,   Kind::BatchSize, Kind::Throw,    Kind::Throw,
    Kind::Throw,    Kind::Throw,    Kind::Set,      Kind::Twice,     Kind::Misuse,   Kind::Misuse,
    Kind::Look,     Kind::Grad};

// Parameters that are trained and not empty.
inline std::vector<std::string> trained(const json& setting) {
  const int extras = setting.at("extras");
  std::vector<std::string> names = {"first.weight", "second.weight"};
  const auto add = [&](int bits, const char* name) {
    if ((extras & bits) == bits) names.push_back(name);
  };
  add(kBias, "first.bias");
  add(kBias, "second.bias");
  add(kHeads, "left");
  if ((extras & kTied) == 0) add(kHeads, "right");
  add(kScalar, "scalar");
  add(kNever, "never");
  return names;
}

inline std::vector<std::string> state_names(const json& setting) {
  if (setting.at("rule") != 2) return {"exp_avg", "exp_avg_sq"};
  return setting.at("momentum") == 0.0 ? std::vector<std::string>{}
                                       : std::vector<std::string>{"momentum_buffer"};
}

// The way through the model that a forward takes on this rank.
inline int branch_of(const json& call, int rank) {
  const int branch = call.at("branch");
  if (!call.at("by_rank").get<bool>()) return branch;
  return branch == 5 ? (rank % 2 == 0 ? 5 : 0) : (branch + rank) % 5;
}

}  // namespace equigrad::property_tests::programs
