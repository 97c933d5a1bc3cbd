// Coverage: what generated cases have had of everything that they can have.
//
//   Coverage coverage;  coverage.add(one);  coverage.axes()
//
// An axis is a key of the configuration's table, or a property of a case: stage, ranks, number and
// sizes of tensors by power of two, roles, layouts, types, hooks, events, ranks of a mesh by axis,
// what the core that they share is. `never` are the values that are known and that no case had.
//
// Invariants: every key of the table that is not a section is an axis, whether it was drawn or not.
// Units: counts of cases.   Errors: none.
// Depends on: workload.hpp, engine/config/schema.hpp (source only). No torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "conformance/generator/workload.hpp"

namespace equigrad::conformance {

struct Axis {
  std::string name;
  std::map<std::string, int64_t> cases;  // by value, that had it
  std::vector<std::string> never;
};

class Coverage {
 public:
  Coverage();
  void add(const GeneratedCase& one);
  std::vector<Axis> axes() const;
  // Of values of two axes, that one case had.
  int64_t pairs() const { return pair_count_; }

 private:
  std::map<std::string, std::map<std::string, int64_t>> seen_;  // axis, value; 0: never
  std::map<std::string, int> numbers_;                          // of "axis=value"
  std::vector<bool> pairs_;                                     // [number][number], that occurred
  int64_t pair_count_ = 0;
};

}  // namespace equigrad::conformance
