// Getters: what an engine says of itself, at every micro-batch of a case, beside what it must say:
// rates and hyper-parameters of every group, counters, boundary, whether the last step was applied,
// the norm, the loss scale, the state of layer drop; and one parameter a step through Access, whole
// beside the twin's and this rank's slice beside the whole.
//
// Invariants: what is expected comes from the recipe, the twin and the calls made so far, never
// from the engine, but for the settings of progressive layer drop, which no recipe has. The
// gradient is read in one step alone, the third if nobody asks for another: nobody looks into the
// windows of the others.
// Shapes: whole values have the parameter's, slices are flat.   Units: steps and micro-batches
// count from 0, updates are those that were applied so far.
// Errors: those of Access; a difference is a finding in the exact lane, of the kind "getter".
// Depends on: case_facts.hpp, lanes.hpp, placed_failures.hpp, engine/engine.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "conformance/cases/recipe.hpp"
#include "conformance/on_rank/case_facts.hpp"
#include "conformance/on_rank/lanes.hpp"
#include "conformance/on_rank/placed_failures.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance {

// By group, of the update that follows so many.
using ExpectedRates = std::function<reference::Rates(int64_t updates)>;

class GetterJudge {
 public:
  // `groups` as the engine's table has them. Without `rates` they stay as the recipe has them.
  GetterJudge(const CaseFacts& facts, const std::vector<NamedTensors>& groups,
              const std::unique_ptr<Engine>& engine, Lanes& lanes, ExpectedRates rates = {});

  GetterJudge& read_gradient_in(int step) {
    gradient_step_ = step;
    return *this;
  }
  // Around every call of step(), and of a micro-batch that is a step's last one. Collective.
  void before_step(int step, int micro_batch);
  void after_step(int step, int micro_batch);

 private:
  struct Group {
    reference::OptimizerSpec rule;
    bool is_trained = false;
  };
  // Where a value was asked for: "step 2 " and " before step() of micro-batch 1".
  struct Place {
    int step;
    std::string after;
  };
  bool is_last(int micro_batch) const;
  void check_state(const Place& place, int scale_step);
  void check_groups(const Place& place);
  void check_rule(const Place& place, const std::string& of, const OptimizerConfig& got,
                  const reference::OptimizerSpec& want);
  void check_layer_drop(const Place& place);
  void check_gradient(const Place& place);
  void check_weights(const Place& place);
  void check_slice(const Site& site, const at::Tensor& whole, const at::Tensor& slice);
  void same(const Place& place, const std::string& what, double got, double want);
  const std::string& sample(int step) const;

  const CaseFacts& facts_;
  const std::unique_ptr<Engine>& engine_;  // which may be made anew
  Lanes& lanes_;
  std::vector<Group> groups_;
  ExpectedRates rates_;
  std::vector<std::string> names_;  // of trained parameters with elements
  Counters counted_;                // by the calls made here
  bool applied_ = false;
  // The last, so that faults which repeat what was sent in the step before meet the same
  // collectives in it.
  int gradient_step_ = kSteps - 1;
};

}  // namespace equigrad::conformance
