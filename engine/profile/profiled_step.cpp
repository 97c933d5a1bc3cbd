#include "engine/profile/profiled_step.hpp"

#include <utility>

namespace equigrad::profile {

ProfiledStep::ProfiledStep(bool is_here, std::vector<layout::ModuleEntry> modules,
                           const std::vector<at::Tensor>& parameters, FlopsProfilerConfig config,
                           ProfiledRun run)
    : config_(std::move(config)), run_(run) {
  if (is_here) profiler_ = std::make_unique<FlopsProfiler>(std::move(modules), parameters);
  boundary(0);
}

void ProfiledStep::boundary(int64_t global_steps) {
  if (!profiler_) return;
  if (global_steps == config_.profile_step) profiler_->start();
  if (global_steps <= config_.profile_step) return;
  run_.step = config_.profile_step;
  run_.step_ns = (Clock::now() - update_) / std::chrono::nanoseconds(1);
  const auto report = profiler_->report();
  profiler_.reset();
  write(report, run_, config_);
}

void ProfiledStep::end_pass() {
  if (profiler_ && profiler_->running()) profiler_->stop();
}

void ProfiledStep::begin_update() { update_ = Clock::now(); }

}  // namespace equigrad::profile
