#include "engine/core/assemble.hpp"

#include <ATen/MemoryOverlap.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/autograd/backward_pass.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/config/suggest.hpp"
#include "engine/kernels/data_types.hpp"
#include "engine/parallel/split_marks.hpp"
#include "engine/parameter/early_shards.hpp"
#include "engine/zero_init.hpp"

namespace equigrad {
namespace {

// What zero::Init has partitioned.
void check_early(const NamedParameter& parameter, const EngineConfig& config,
                 const comm::Communicator& communicator) {
  const auto early = parameter::early_shard(parameter.tensor);
  if (!early) return;
  if (config.zero.stage == 3 && early->rank == communicator.rank() &&
      early->world_size == communicator.world_size()) {
    return;
  }
  throw Error(
      "initialize",
      fmt::format("expected stage 3 on rank {} of {} for parameter \"{}\", which zero::Init "
                  "has partitioned, got stage {} on rank {} of {}. Give both the same "
                  "configuration and communicator.",
                  early->rank, early->world_size, parameter.name, config.zero.stage,
                  communicator.rank(), communicator.world_size()));
}

void check(const NamedParameter& parameter, const EngineConfig& config) {
  const auto& tensor = parameter.tensor;
  if (!tensor.defined() || !tensor.is_leaf()) {
    throw Error("initialize", "expected a leaf tensor for parameter \"" + parameter.name +
                                  "\", got " +
                                  (tensor.defined() ? "the result of an operator" : "none") +
                                  ". Register the parameter itself.");
  }
  if (tensor.requires_grad() && autograd::is_watched(tensor)) {
    throw Error("initialize", "expected a parameter that no engine trains, got \"" +
                                  parameter.name +
                                  "\", which another engine holds. Destroy that engine first.");
  }
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    throw Error("initialize", "expected every element of parameter \"" + parameter.name +
                                  "\" in memory of its own, got one that overlaps itself, as after "
                                  "expand(). Register its contiguous() copy.");
  }
  if (tensor.numel() > 0 && !parameter::early_shard(tensor) && tensor.storage().data() == nullptr) {
    throw Error("initialize", "expected parameter \"" + parameter.name +
                                  "\" to hold data, got one whose shards went with a stage 3 "
                                  "engine that was destroyed. Keep full_parameter() of every "
                                  "parameter before, and copy it into a new model.");
  }
  const auto dtype = tensor.scalar_type();
  if (!tensor.requires_grad() && !tensor.is_floating_point()) return;
  if (dtype == at::kFloat || dtype == torch_dtype(config.precision.param)) return;
  throw Error("initialize",
              "expected dtype Float for parameter \"" + parameter.name + "\", got " +
                  c10::toString(dtype) +
                  ", which the configuration does not ask for. Convert the model first (in Python: "
                  "model.float(), or from_pretrained(..., dtype=torch.float32)); to train in 16 "
                  "bits, configure bf16 or fp16: the engine makes that copy itself.");
}

// Every rank takes rank 0's values, so that replicas are equal from the start.
void broadcast(const std::vector<at::Tensor>& tensors, const comm::Mesh& mesh) {
  for (const auto& tensor : tensors) {
    auto& communicator = parallel::split_of(tensor) ? *mesh.zero() : *mesh.world();
    if (communicator.world_size() == 1) continue;
    if (tensor.numel() == 0 || parameter::early_shard(tensor)) continue;
    const auto values = tensor.detach().to(communicator.device()).contiguous();
    communicator.broadcast(values, 0)->wait();
    tensor.detach().copy_(values);
  }
}

// The module types of torch_autocast, by full name; the parser has completed torch's own.
class SafeModules {
 public:
  SafeModules(const std::vector<ParameterGroup>& groups, const AutocastConfig& autocast)
      : enabled_(autocast.enabled), names_(autocast.lower_precision_safe_modules) {
    std::set<std::string> types;
    for (const auto& group : groups)
      for (const auto& parameter : group.parameters) types.insert(parameter.module_type);
    if (!enabled_ || names_.empty()) return;
    if (types == std::set<std::string>{""}) {
      throw Error("initialize",
                  "expected the module_type of parameters for torch_autocast, got none. Give the "
                  "module itself, or set \"lower_precision_safe_modules\": [].");
    }
    for (const auto& name : names_) {
      if (name.starts_with("torch.nn.") || types.contains(name)) continue;
      types.erase("");
      throw Error("initialize",
                  "expected a module of the model in lower_precision_safe_modules, "
                  "got \"" +
                      name + "\"." + did_you_mean(name, {types.begin(), types.end()}));
    }
  }
  bool hold(const NamedParameter& parameter) const {
    return enabled_ &&
           std::find(names_.begin(), names_.end(), parameter.module_type) != names_.end();
  }

 private:
  bool enabled_;
  const std::vector<std::string>& names_;
};

}  // namespace

Assembly assemble(const std::vector<ParameterGroup>& groups, const EngineConfig& config,
                  const comm::Mesh& mesh) {
  std::vector<layout::Registration> registrations;
  std::vector<optimizer::GroupOverride> overrides;
  const SafeModules safe(groups, config.precision.autocast);
  for (std::size_t group = 0; group < groups.size(); ++group) {
    overrides.push_back({groups[group].lr, groups[group].weight_decay});
    for (const auto& parameter : groups[group].parameters) {
      check(parameter, config);
      check_early(parameter, config, *mesh.zero());
      registrations.push_back({parameter.name, parameter.tensor.unsafeGetTensorImpl(),
                               parameter.tensor.sizes().vec(), parameter.tensor.requires_grad(),
                               group, safe.hold(parameter),
                               parameter.tensor.is_floating_point()
                                   ? 0
                                   : static_cast<int64_t>(parameter.tensor.element_size())});
    }
  }
  if (registrations.empty()) {
    throw Error("initialize",
                "expected at least one parameter, got a model with none. Did the model call "
                "register_module and register_parameter?");
  }
  Assembly assembly{.table = layout::ParameterTable(registrations),
                    .tensors = {},
                    .groups = std::move(overrides)};
  assembly.tensors.resize(assembly.table.size());
  for (const auto& group : groups) {
    for (const auto& parameter : group.parameters) {
      assembly.tensors[assembly.table.index_of(parameter.name)] = parameter.tensor;
    }
  }
  broadcast(assembly.tensors, mesh);
  return assembly;
}

}  // namespace equigrad
