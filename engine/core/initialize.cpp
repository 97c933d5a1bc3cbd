// initialize(): from a module, or named parameters, and a configuration to an engine.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "engine/comm/launch.hpp"
#include "engine/config/load_for_client.hpp"
#include "engine/core/same_start.hpp"
#include "engine/core/training_engine.hpp"
#include "engine/leaf_modules.hpp"
#include "engine/memory/malloc_policy.hpp"
#include "engine/optimizer/client_optimizer.hpp"
#include "engine/parameter/leaf_parameters.hpp"
#include "engine/profile/flops_profiler.hpp"
#include "engine/zero_init.hpp"

namespace equigrad {
namespace {

// torch::nn::LinearImpl -> torch.nn.Linear
std::string type_name(const torch::nn::Module& module) {
  std::string name = module.name();
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  for (auto at = name.find("::"); at != std::string::npos; at = name.find("::")) {
    name.replace(at, 2, ".");
  }
  return name;
}

// By the parameter's full name.
std::map<std::string, std::string> module_types(const torch::nn::Module& model) {
  std::map<std::string, std::string> types;
  const auto add = [&types](const std::string& path, const torch::nn::Module& module) {
    const auto own = module.named_parameters(/*recurse=*/false);
    for (const auto& item : own) {
      types[path.empty() ? item.key() : path + "." + item.key()] = type_name(module);
    }
  };
  add("", model);
  const auto children = model.named_modules("", /*include_self=*/false);
  for (const auto& item : children) add(item.key(), *item.value());
  return types;
}

// Marks are names, which the configuration may have already.
void add_marked(torch::nn::Module& model, std::vector<std::string>& names) {
  const auto marked = get_z3_leaf_modules(model);
  if (std::find(marked.begin(), marked.end(), &model) != marked.end()) names.emplace_back();
  const auto below = model.named_modules("", /*include_self=*/false);
  for (const auto& item : below)
    if (std::find(marked.begin(), marked.end(), item.value().get()) != marked.end())
      names.push_back(item.key());
}

// Layers are made for a mesh before there is an engine.
void check_mesh(const EngineConfig& config, const comm::Mesh& mesh) {
  const auto& sizes = mesh.sizes();
  if (config.tensor_parallel_size() == sizes.tensor &&
      config.sequence_parallel_size == sizes.sequence)
    return;
  throw Error(
      "initialize",
      fmt::format("expected the mesh that is configured, tensor {} x sequence {}, got ranks "
                  "of tensor {} x sequence {}. Give initialize() the mesh that the model's "
                  "layers were made for (comm/mesh.hpp), and configure its sizes: "
                  "\"tensor_parallel\": {{\"autotp_size\"}}, \"sequence_parallel_size\".",
                  config.tensor_parallel_size(), config.sequence_parallel_size, sizes.tensor,
                  sizes.sequence));
}

// All ways of initialize() end here; no modules: those that the parameters' names tell of; no
// client: the configured optimizer.
std::unique_ptr<Engine> make_engine(const std::vector<ParameterGroup>& groups,
                                    const EngineConfig& config, comm::Mesh mesh,
                                    std::vector<layout::ModuleEntry> modules,
                                    std::shared_ptr<SliceOptimizer> client,
                                    std::vector<NamedTensor> buffers = {}) {
  const at::NoGradGuard no_grad;
  check_mesh(config, mesh);
  validate(config, mesh.sizes().world_size());
  keep_freed_memory();
  const auto device = mesh.zero()->device();
  if (config.reduction == ReductionOrder::Exact && !device.is_cpu())
    throw Error("initialize", "expected \"reduction\": \"pinned\" or \"native\" on " +
                                  device.str() + ", got \"exact\", which sums on the CPU only.");
  agreement::coordinator_of(*mesh.zero()).meet_to_initialize();
  zero::rethrow_init_failure();  // it says more than that the models differ
  core::require_same_start(groups, config, mesh);
  auto assembly = assemble(groups, config, mesh);
  if (modules.empty()) {
    std::vector<std::pair<std::string, const void*>> named;
    for (const auto& group : groups)
      for (const auto& one : group.parameters)  // a tied parameter under every name
        named.emplace_back(one.name, one.tensor.unsafeGetTensorImpl());
    modules = layout::modules_of(named);
  }
  assembly.client = std::move(client);
  assembly.leaves = leaf_parameters(modules, assembly.tensors, config.zero.leaf_module);
  auto engine = std::make_unique<TrainingEngine>(std::move(assembly), config, std::move(mesh),
                                                 std::move(modules));
  engine->parts().model.buffers = std::move(buffers);
  return std::make_unique<Engine>(std::move(engine));
}

std::unique_ptr<Engine> of_module(torch::nn::Module& model, const std::string& config,
                                  comm::Mesh mesh, std::shared_ptr<SliceOptimizer> client) {
  comm::LaunchEnvironment launch;
  if (!mesh) {
    launch = comm::read_launch_environment(
        [](const char* name) -> const char* { return std::getenv(name); });
  }
  const int world_size = mesh ? mesh.sizes().world_size() : launch.world_size;
  auto checked =
      client ? load_config_for_client(config, world_size) : load_config(config, world_size);
  add_marked(model, checked.zero.leaf_module.names);
  ParameterGroup all;
  const auto named = model.named_parameters();
  const auto types = module_types(model);
  for (const auto& item : named) {
    all.parameters.push_back({item.key(), item.value(), types.at(item.key())});
  }
  if (!mesh) {
    const auto device =
        all.parameters.empty() ? c10::kCPU : all.parameters.front().tensor.device().type();
    mesh = comm::connect(
        launch, device,
        std::chrono::milliseconds(static_cast<int64_t>(checked.communication_timeout_s * 1000)));
  }
  std::vector<NamedTensor> buffers;
  const auto named_buffers = model.named_buffers();
  for (const auto& item : named_buffers)
    if (item.value().defined()) buffers.push_back({item.key(), item.value()});
  return make_engine({std::move(all)}, checked, std::move(mesh), profile::modules_of(model),
                     std::move(client), std::move(buffers));
}

}  // namespace

std::unique_ptr<Engine> initialize(std::vector<ParameterGroup> groups, const EngineConfig& config,
                                   comm::Mesh ranks, std::vector<layout::ModuleEntry> modules) {
  return make_engine(groups, config, std::move(ranks), std::move(modules), nullptr);
}

std::unique_ptr<Engine> initialize(std::vector<ParameterGroup> groups, const EngineConfig& config,
                                   comm::Mesh ranks, std::shared_ptr<SliceOptimizer> optimizer,
                                   std::vector<layout::ModuleEntry> modules) {
  return make_engine(groups, config, std::move(ranks), std::move(modules), std::move(optimizer));
}

std::unique_ptr<Engine> initialize(torch::nn::Module& model, const std::string& config,
                                   comm::Mesh ranks) {
  return of_module(model, config, std::move(ranks), nullptr);
}

std::unique_ptr<Engine> initialize(torch::nn::Module& model, const std::string& config,
                                   std::shared_ptr<torch::optim::Optimizer> optimizer,
                                   comm::Mesh ranks) {
  return of_module(model, config, std::move(ranks),
                   std::make_shared<optimizer::ClientOptimizer>(std::move(optimizer)));
}

}  // namespace equigrad
