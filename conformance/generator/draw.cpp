#include "conformance/generator/draw.hpp"

#include <algorithm>
#include <cstdio>

#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;

constexpr const char* kFamily = "Generated.";

// Whether a step whose gradient is infinite is skipped, and whether the scale can bear it.
bool may_overflow(const nlohmann::json& config) {
  if (config.contains("fp16")) return config["fp16"].value("enabled", false);
  for (const char* name : {"bf16", "bfloat16"})
    if (config.contains(name)) return config[name].value("enabled", false);
  return false;
}

void draw_passes(Dice& dice, Workload& workload) {
  const auto any_pass = [&](const char* what) {
    return PassEvent{.what = what,
                     .step = static_cast<int>(dice.below(workload.steps)),
                     .rank = dice.coin() ? -1 : static_cast<int>(dice.below(workload.zero_ranks())),
                     .micro_batch = static_cast<int>(dice.below(workload.accumulation))};
  };
  if (dice.one_in(5)) {  // on every rank alike: passes are counted
    auto event = any_pass("twice");
    event.rank = -1;
    workload.passes.push_back(event);
  }
  if (dice.one_in(8)) {
    auto event = any_pass("undivided");
    event.rank = -1;
    workload.passes.push_back(event);
  }
  if (!may_overflow(workload.config) || !dice.one_in(3)) return;
  if (workload.tensors.empty() || (workload.core && dice.coin())) {
    auto event = any_pass("overflow");
    event.rank = static_cast<int>(dice.below(workload.zero_ranks()));
    event.tensor = -1;
    workload.passes.push_back(event);
    return;
  }
  for (int tries = 0; tries < 8; ++tries) {
    const auto number = dice.below(static_cast<int64_t>(workload.tensors.size()));
    const auto& tensor = workload.tensors[static_cast<std::size_t>(number)];
    int64_t numel = 1;
    for (const int64_t size : tensor.sizes) numel *= size;
    if ((tensor.role != "term" && tensor.role != "penalty") || numel == 0) continue;
    auto event = any_pass("overflow");
    event.rank = static_cast<int>(dice.below(workload.zero_ranks()));
    event.tensor = static_cast<int>(number);
    event.element = dice.below(numel);
    workload.passes.push_back(event);
    return;
  }
}

bool has_overflow(const Workload& workload) {
  return std::any_of(workload.passes.begin(), workload.passes.end(),
                     [](const PassEvent& event) { return event.what == "overflow"; });
}

void draw_rates(Dice& dice, Workload& workload) {
  if (workload.config.contains("scheduler") || !dice.one_in(8)) return;
  workload.rates.push_back({.step = static_cast<int>(dice.below(workload.steps)),
                            .lr = dice.pick<double>({0, 0.001, 0.02})});
}

// Which sign a NaN has in 16 bits is nobody's promise: torch's conversion of it depends on whether
// the element is in a vector or in what is left over.
void keep_nan_in_fp32(Workload& workload) {
  for (const char* name : {"fp16", "bf16", "bfloat16", "amp", "torch_autocast"}) {
    if (!workload.config.contains(name)) continue;
    for (auto& tensor : workload.tensors)
      if (tensor.values == "nan") tensor.values = "usual";
  }
}

void draw_ranks(Dice& dice, Workload& workload) {
  workload.world = dice.pick<int>({1, 1, 2, 2, 2, 2, 3, 3, 4, 4});
  if (dice.one_in(40)) workload.world = static_cast<int>(dice.between(5, 8));
}

// What a configuration says of it.
void tell_mesh(Dice& dice, Workload& workload) {
  auto& config = workload.config;
  const auto& core = *workload.core;
  if (core.sequence > 1 || dice.one_in(4)) config["sequence_parallel_size"] = core.sequence;
  if (core.tensor == 1 && !dice.one_in(4)) return;
  config["tensor_parallel"]["autotp_size"] = core.tensor;
  if (dice.one_in(4)) config["tensor_parallel"]["tp"]["tp_size"] = core.tensor;
}

Workload draw_workload(Dice& dice, bool has_core) {
  Workload workload;
  workload.seed = 1 + static_cast<uint64_t>(dice.below(1'000'000'000));
  if (has_core)
    draw_core(dice, workload);
  else
    draw_ranks(dice, workload);
  workload.accumulation = dice.pick<int>({1, 1, 1, 2, 2, 3, 4, 5});
  if (dice.one_in(40)) workload.accumulation = static_cast<int>(dice.between(6, 16));
  draw_model(dice, workload);
  const bool is_small = workload.tensors.size() < 12 && workload.accumulation < 4 && !has_core;
  workload.steps = static_cast<int>(dice.between(1, 5));
  if (is_small && dice.one_in(30)) workload.steps = static_cast<int>(dice.log_uniform(6, 200));
  workload.config =
      draw_config(dice, workload.data_ranks(), workload.accumulation, workload.groups.size());
  if (has_core) tell_mesh(dice, workload);
  keep_nan_in_fp32(workload);
  draw_passes(dice, workload);
  draw_rates(dice, workload);
  // What is not finite is then taken, which no case is for.
  for (const char* name : {"bf16", "bfloat16"})
    if (workload.config.contains(name) && !has_overflow(workload) && dice.one_in(4))
      workload.config[name]["check_grad_overflow"] = false;
  return workload;
}

void draw_events(Dice& dice, const Workload& workload, Execution& execution) {
  const auto wanted = dice.pick<int>({0, 0, 0, 1, 1, 2, 3});
  // Most things go wrong where something is still on its way.
  const bool has_thrown = execution.adversary != 0 && dice.coin();
  for (int i = has_thrown ? -1 : 0; i < wanted; ++i)
    execution.events.push_back(
        {.what = i < 0 ? dice.pick<std::string>({"thrown", "thrown_alone"})
                       : dice.pick<std::string>({"cancelled", "cancelled", "evaluated", "evaluated",
                                                 "thrown", "thrown", "thrown_alone", "thrown_alone",
                                                 "asked", "asked", "read", "read", "bystander",
                                                 "together", "together", "crowd"}),
         .step = static_cast<int>(dice.below(workload.steps)),
         .micro_batch = static_cast<int>(dice.below(workload.accumulation))});
}

// A cancelled window must be empty before it, or what is in it would be lost.
void keep_windows_whole(Execution& execution) {
  for (auto& event : execution.events)
    if (event.what == "cancelled") event.micro_batch = 0;
}

}  // namespace

bool is_of_mesh(int64_t workload) { return workload % kMeshEvery == kMeshEvery - 1; }

int64_t mesh_workload(int64_t n) { return n * kMeshEvery + kMeshEvery - 1; }

GeneratedCase draw_case(uint64_t seed, int64_t workload, int execution) {
  GeneratedCase one;
  one.id = generated_id(seed, workload, execution);
  Dice of_workload(seed, 2 * static_cast<uint64_t>(workload));
  one.workload = draw_workload(of_workload, is_of_mesh(workload));
  Dice dice(seed ^ (static_cast<uint64_t>(execution + 1) << 32),
            2 * static_cast<uint64_t>(workload) + 1);
  auto& how = one.execution;
  const int most = one.workload.tensor_ranks() > 1 ? 2 : 3;
  how.stage = static_cast<int>(dice.between(least_stage(one.workload.config), most));
  how.seed = static_cast<uint64_t>(dice.below(1'000'000'000));
  how.adversary = dice.one_in(4) ? 1 + static_cast<uint64_t>(dice.below(1'000'000)) : 0;
  const bool is_plain = one.workload.groups.size() == 1;
  how.way_in = is_plain && dice.coin() ? "module" : "groups";
  how.knobs = draw_knobs(dice, one.workload, how);
  draw_events(dice, one.workload, how);
  keep_windows_whole(how);
  if (dice.one_in(4)) how.resumed_before = static_cast<int>(dice.below(one.workload.steps));
  return one;
}

std::string generated_id(uint64_t seed, int64_t workload, int execution) {
  return kFamily + std::to_string(seed) + "." + std::to_string(workload) + "." +
         std::to_string(execution);
}

bool is_generated_id(const std::string& text) { return text.starts_with(kFamily); }

GeneratedCase case_of_id(const std::string& id) {
  unsigned long long seed = 0;
  long long workload = -1;
  int execution = -1, read = 0;
  const int found =
      std::sscanf(id.c_str(), "Generated.%llu.%lld.%d%n", &seed, &workload, &execution, &read);
  const bool is_whole = found == 3 && static_cast<std::size_t>(read) == id.size();
  if (!is_whole || workload < 0 || execution < 0 || execution >= kExecutions)
    throw Error("generator",
                "expected Generated.<seed>.<workload>.<execution>, an execution below " +
                    std::to_string(kExecutions) + ", got \"" + id +
                    "\". Take an id that a run has printed.");
  return draw_case(seed, workload, execution);
}

}  // namespace equigrad::conformance
