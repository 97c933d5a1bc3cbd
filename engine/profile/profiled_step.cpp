#include "engine/profile/profiled_step.hpp"

#include <map>

namespace equigrad::profile {

std::vector<ModuleEntry> modules_of(
    const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  std::map<std::string, std::vector<at::Tensor>> by_module{{"", {}}};
  for (const auto& [name, tensor] : parameters) {
    const auto last = name.rfind('.');
    by_module[last == std::string::npos ? "" : name.substr(0, last)].push_back(tensor);
    for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      by_module.try_emplace(name.substr(0, dot));
    }
  }
  // A parent's name sorts before its children's.
  std::vector<ModuleEntry> modules;
  for (auto& [name, tensors] : by_module) modules.push_back({name, "Module", std::move(tensors)});
  return modules;
}

ProfiledStep::ProfiledStep(bool here, std::vector<ModuleEntry> modules, FlopsProfilerConfig config,
                           ProfiledRun run)
    : config_(std::move(config)), run_(run) {
  if (here) profiler_ = std::make_unique<FlopsProfiler>(std::move(modules));
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
