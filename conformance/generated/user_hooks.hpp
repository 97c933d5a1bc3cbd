// UserHooks: what the user of an engine has hooked to the parameters before the engine is made, and
// how the parameters are when it has gone.
//
//   keeps        after a gradient is there: keeps it as it is, which nobody may change
//   keeps_alias  the same, by a tensor of its own on the same memory
//   replaces     puts another one there, half of it, and keeps that
//
// Invariants: hooked to the model of a rank, never to the twin's.
// Shapes: those of the parameters.   Units: none.
// Errors: HarmlessEventFailed naming the parameter and what is wrong.
// Depends on: generated/model.hpp, other_engine.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "conformance/generated/model.hpp"

namespace equigrad::conformance {

class UserHooks {
 public:
  UserHooks(const Workload& workload, const GeneratedModel& model);

  // What was kept is what it was.
  void judge_kept() const;
  // With no engine any more: the hooks are there, and no others; a gradient comes to `.grad`.
  void judge_without_engine(bool has_values) const;

  struct Hooked;

 private:
  std::vector<std::shared_ptr<Hooked>> all_;
};

}  // namespace equigrad::conformance
