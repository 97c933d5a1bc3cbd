// Alone: failures of a run, repeated alone at its end, so that a replay is no promise that nobody
// tried. A rank process serves many cases: what one leaves behind may be what fails a later one.
//
//   equigrad run A B C ID --one-process --seed N   where ID fails behind A, B and C, and not alone
//
// Invariants: at most kMostRepeated failures of a run are repeated, each once, in fresh rank
// processes, with its case's own time-outs; a failure that no case came before is a replay by
// itself. Nothing is kept of a repetition, and no verdict is changed by it.
// Units: none.   Errors: those of the pool.
// Depends on: process_slots.hpp, reports/record.hpp, nlohmann-json. No torch.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "conformance/campaigns/process_slots.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance {

inline constexpr std::size_t kMostRepeated = 5;

// A case that failed by itself, not only beside others.
struct Suspect {
  std::string id;
  int world = 1;
  nlohmann::json twin = nullptr;    // what makes its twin; null: it has none
  nlohmann::json request;           // as it was asked
  std::vector<std::string> before;  // cases that its ranks served since they were forked, in order
  std::function<bool(const Outcomes&)> passes;
};

class Alone {
 public:
  // `begin` and `end` of a replay: "equigrad run" and " --seed 1 --report R"; `folder`: that of the
  // failures, for lists that are too long for a line; empty: there is none.
  Alone(std::string begin, std::string end, std::string folder);

  void add(Suspect suspect);
  // Repeats them, and tells their records what came of it.
  void repeat(ProcessSlots& slots, std::vector<reports::Case>& cases);

 private:
  bool passes(ProcessSlots& slots, const Suspect& suspect) const;
  void tell(const Suspect& suspect, reports::Case& record) const;
  std::string written(const Suspect& suspect) const;

  std::string begin_, end_, folder_;
  std::vector<Suspect> suspects_;
  std::set<std::string> not_repeated_;  // ids of more of them
};

}  // namespace equigrad::conformance
