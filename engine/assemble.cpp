#include "engine/assemble.hpp"

#include <torch/nn/module.h>

#include <cstdlib>
#include <utility>

#include "engine/comm/communicator.hpp"
#include "engine/comm/launch.hpp"
#include "engine/gradient/backward_pass.hpp"
#include "engine/profile/flops_profiler.hpp"
#include "engine/training_engine.hpp"

namespace equigrad {
namespace {

void check(const NamedParameter& parameter, const EngineConfig& config) {
  const auto& tensor = parameter.tensor;
  if (!tensor.defined() || !tensor.is_leaf()) {
    throw Error("initialize", "expected a leaf tensor for parameter \"" + parameter.name +
                                  "\", got " +
                                  (tensor.defined() ? "the result of an operator" : "none") +
                                  ". Register the parameter itself.");
  }
  if (tensor.requires_grad() && gradient::is_watched(tensor)) {
    throw Error("initialize", "expected a parameter that no engine trains, got \"" +
                                  parameter.name +
                                  "\", which another engine holds. Destroy that engine first.");
  }
  if (tensor.numel() > 0 && tensor.storage().data() == nullptr) {
    throw Error("initialize", "expected parameter \"" + parameter.name +
                                  "\" to hold data, got one whose shards went with a stage 3 "
                                  "engine that was destroyed. Keep full_parameter() of every "
                                  "parameter before, and copy it into a new model.");
  }
  const auto dtype = tensor.scalar_type();
  if (!tensor.requires_grad() && !tensor.is_floating_point()) return;
  if (dtype == at::kFloat || (dtype == at::kBFloat16 && config.precision.param == DataType::Bf16))
    return;
  throw Error("initialize",
              "expected dtype Float for parameter \"" + parameter.name + "\", got " +
                  c10::toString(dtype) +
                  ". Convert the model with to(torch::kFloat) first; the engine makes the "
                  "16-bit copy itself.");
}

// Every rank takes rank 0's values, so that replicas are equal from the start.
void broadcast(const std::vector<at::Tensor>& tensors, comm::Communicator& communicator) {
  if (communicator.world_size() == 1) return;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const auto values = tensor.detach().to(communicator.device()).contiguous();
    communicator.broadcast(values, 0)->wait();
    tensor.detach().copy_(values);
  }
}

}  // namespace

Assembly assemble(const std::vector<ParameterGroup>& groups, const EngineConfig& config,
                  comm::Communicator& communicator) {
  std::vector<layout::Registration> registrations;
  std::vector<optimizer::GroupOverride> overrides;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    overrides.push_back({groups[group].lr, groups[group].weight_decay});
    for (const auto& parameter : groups[group].parameters) {
      check(parameter, config);
      registrations.push_back({parameter.name, parameter.tensor.unsafeGetTensorImpl(),
                               parameter.tensor.sizes().vec(), parameter.tensor.requires_grad(),
                               group});
    }
  }
  if (registrations.empty()) {
    throw Error("initialize",
                "expected at least one parameter, got a model with none. Did the model call "
                "register_module and register_parameter?");
  }
  Assembly assembly{layout::ParameterTable(registrations), {}, std::move(overrides)};
  assembly.tensors.resize(assembly.table.size());
  for (const auto& group : groups) {
    for (const auto& parameter : group.parameters) {
      assembly.tensors[assembly.table.index_of(parameter.name)] = parameter.tensor;
    }
  }
  broadcast(assembly.tensors, communicator);
  return assembly;
}

std::unique_ptr<Engine> initialize(torch::nn::Module& model, const std::string& config,
                                   std::shared_ptr<comm::Communicator> communicator) {
  comm::LaunchEnvironment launch;
  if (!communicator) {
    launch = comm::read_launch_environment(
        [](const char* name) -> const char* { return std::getenv(name); });
  }
  const int world_size = communicator ? communicator->world_size() : launch.world_size;
  const auto checked = load_config(config, world_size);
  ParameterGroup all;
  const auto named = model.named_parameters();
  for (const auto& item : named) all.parameters.push_back({item.key(), item.value()});
  if (!communicator) {
    const auto device =
        all.parameters.empty() ? c10::kCPU : all.parameters.front().tensor.device().type();
    communicator = comm::connect(
        launch, device,
        std::chrono::milliseconds(static_cast<int64_t>(checked.communication_timeout_s * 1000)));
  }
  return make_engine({std::move(all)}, checked, std::move(communicator),
                     profile::modules_of(model));
}

}  // namespace equigrad
