// Profiled step: the configuration's flops profiler, at the step that it names, on one rank.
//
// The profile is of the first forward and backward pass after `profile_step` boundaries (DeepSpeed:
// global_steps == profile_step), and is written after that step's update, whose time it tells.
//
// Invariants: nothing is observed before or after that pass.
// Units: global steps, ns.
// Errors: those of writing the report.
// Depends on: profile/flops_profiler, flops_report; config.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/profile/flops_profiler.hpp"

namespace equigrad::profile {

class ProfiledStep {
 public:
  // Nothing happens without `is_here`: the configuration asks for it, and this is the rank.
  ProfiledStep(bool is_here, std::vector<layout::ModuleEntry> modules,
               const std::vector<at::Tensor>& parameters, FlopsProfilerConfig config,
               ProfiledRun run);

  // After `global_steps` boundaries: begins, or ends and writes.
  void boundary(int64_t global_steps);
  void end_pass();
  void begin_update();

 private:
  using Clock = std::chrono::steady_clock;
  FlopsProfilerConfig config_;
  ProfiledRun run_;
  std::unique_ptr<FlopsProfiler> profiler_;  // null: not here, or done
  Clock::time_point update_;
};

}  // namespace equigrad::profile
