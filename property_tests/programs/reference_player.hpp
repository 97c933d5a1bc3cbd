// ReferencePlayer: a program for every rank in one process, in plain torch calls on a Stepper, and
// what each call must leave behind.
//
// Invariants: a call is played for rank 0, then 1, ... of those that ZeRO shards over, each of
// which computes the parts of all its tensor ranks; a pass that throws gives nothing.
// Shapes: Seen holds whole parameters, numbers as [] doubles; undefined is a value too.
// Errors: those of the reference for a program that is not legal; std::logic_error for a graph that
// can be used twice where it should not.
// Depends on: pass.hpp, reference/stepper.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "property_tests/programs/pass.hpp"
#include "reference/stepper.hpp"

namespace equigrad::property_tests::programs {

using Seen = std::map<std::string, at::Tensor>;

// Behind the name of what the second engine has.
inline std::string of(std::size_t which) { return which == 0 ? "" : " of the second"; }
at::Tensor number(double value);

class ReferencePlayer {
 public:
  // `rank` is the one whose returned values are seen.
  ReferencePlayer(const json& setting, int rank);

  Seen play(const json& call);

 private:
  struct Told {  // what one engine says
    bool applied = false;
    int64_t global_steps = 0, skipped_steps = 0;
    std::optional<double> norm;
  };

  Kept run(const json& call, int rank, int branch, bool may_nest = true);
  template <class Visit>
  void each_rank(Visit visit) {
    for (int rank = 0; rank < world_; ++rank) visit(rank);
  }

  void forward(const json& call);
  void pass(int rank, const Roots& roots, const PassOptions& options);
  void backward(const json& call);
  void throwing(const json& call);
  void twice(const json& call);
  void discard();
  void step(const json& call);
  void step_of(std::size_t which);
  void end();
  void set(const json& call);
  void gather(const json& call);
  void look(const json& call);
  void grad(const json& call);
  void see_parameter(const std::string& name, std::size_t which);
  void see_everything();
  void see_numbers();

  const json& setting_;
  int rank_, world_;  // of those that ZeRO shards over
  int tensor_, sequence_;
  int64_t accumulation_;
  Network network_;
  std::vector<std::unique_ptr<reference::Stepper>> steppers_;
  std::vector<std::map<int, Kept>> kept_;  // by rank and slot
  Seen seen_;
  json boundary_;
  int64_t micro_steps_ = 0, in_window_ = 0;
  std::vector<Told> told_;
};

}  // namespace equigrad::property_tests::programs
