// Wiring: how a training engine's stations are made, and what hooks them to autograd.
#include <ATen/core/grad_mode.h>

#include <utility>

#include "engine/core/training_engine.hpp"
#include "engine/kernels/data_types.hpp"
#include "engine/memory/malloc_policy.hpp"
#include "engine/parameter/leaf_parameters.hpp"

namespace equigrad {
namespace {

optimizer::StateOptions state_options(const EngineConfig& config, at::Device device) {
  const bool offload = config.offload_optimizer.to_cpu;
  return {torch_dtype(config.precision.master), torch_dtype(config.precision.optimizer_state),
          offload ? at::Device(at::kCPU) : device, offload && config.offload_optimizer.pin_memory};
}

}  // namespace

TrainingEngine::TrainingEngine(Assembly assembly, const EngineConfig& config,
                               std::shared_ptr<comm::Communicator> communicator,
                               std::vector<profile::ModuleEntry> modules)
    : config_(config),
      stage_(stage_row(config.zero.stage)),
      communicator_(std::move(communicator)),
      tensors_(std::move(assembly.tensors)),
      table_(std::move(assembly.table)),
      plan_(table_, stage_.shards(communicator_->world_size()),
            layout::bucket_size(
                table_, config.zero.reduce_bucket_size,
                stage_.sends_full_buckets(config.reduces_eagerly(communicator_->world_size())))),
      participant_(*communicator_, table_.size()),
      scaler_(loss::make_scaler(config.precision.loss_scale)),
      optimizer_(config.optimizer, assembly.groups, table_, plan_,
                 state_options(config, communicator_->device()), ledger_),
      parameters_(parameter::make_keeper(
          {table_, plan_, config_.zero, *communicator_, participant_, ledger_, optimizer_.masters(),
           tensors_, torch_dtype(config.precision.param),
           weight_communication_dtypes(config.precision), assembly.leaves},
          stage_.parameters_sharded)),
      window_(
          plan_, table_.size(), *communicator_, participant_,
          {torch_dtype(config.precision.param), torch_dtype(config.precision.accumulate),
           stage_.gradients_reduced == ReduceWhen::EveryPass, config.reduction,
           torch_dtype(config.precision.master), gradient_communication_dtypes(config.precision),
           loss::factor_before_sum(config.averaging, communicator_->world_size()),
           config.gradient_accumulation_steps, config.zero.overlap_comm,
           config.reduces_eagerly(communicator_->world_size())},
          ledger_),
      access_({table_, plan_, *communicator_, participant_, window_, optimizer_, *parameters_,
               [this] { return factor(); }}),
      gathering_({table_, plan_, *communicator_, participant_, window_, optimizer_, *parameters_,
                  [this] { return factor(); }},
                 tensors_),
      micro_batches_(config.gradient_accumulation_steps),
      profiled_(config.flops_profiler.enabled && communicator_->rank() == 0, std::move(modules),
                config.flops_profiler,
                {1, communicator_->world_size(), config.train_micro_batch_size_per_gpu, 0}),
      pass_(watch()) {
  if (config.scheduler) schedule_ = schedule::make_schedule(*config.scheduler, optimizer_.lr());
  if (config.progressive_layer_drop.enabled) layer_drop_.emplace(config.progressive_layer_drop);
  set_rates();
  for (std::size_t i = 0; i < table_.size(); ++i) {
    names_[tensors_[i].unsafeGetTensorImpl()] = &table_[i].name;
  }
}

gradient::BackwardPass TrainingEngine::watch() {
  // Of several engines in a pass those end first that can still fail on another rank.
  const bool waits = stage_.gradients_reduced == ReduceWhen::EveryPass;
  const int64_t order = participant_.number() + (waits ? 0 : int64_t{1} << 32);
  std::vector<gradient::WatchedParameter> watched;
  for (std::size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].trainable) watched.push_back({i, table_[i].name, tensors_[i]});
  }
  return gradient::BackwardPass(
      std::move(watched),
      {[this] {
         participant_.begin_pass();
         parameters_->rethrow_failure();
         check_autocast();
         window_.begin(pass_weight_);
         if (micro_batches_.expects_step()) window_.expect_step();
       },
       [this](std::size_t parameter, at::Tensor gradient) {
         parameters_->rethrow_failure();  // this gradient is not real
         window_.ready(parameter, std::move(gradient));
       },
       [this] { end_pass(); }, [this] { abandon_pass(); }, [this] { check_scale(); }},
      order);
}

// What is checked is the pass at hand: how its gradients reach this engine's parameters.
void TrainingEngine::check_scale() const {
  loss::check_pass(scaler_.get(), [this](const at::Tensor& leaf) -> const std::string* {
    const auto found = names_.find(leaf.unsafeGetTensorImpl());
    return found == names_.end() ? nullptr : found->second;
  });
}

void TrainingEngine::check_autocast() const {
  if (!config_.precision.autocast.enabled || has_autocast_) return;
  throw Error("backward",
              "expected a forward pass under torch_autocast, got none. Call engine.forward(model, "
              "...), or hold engine.autocast() while the model runs.");
}

std::unique_ptr<Engine> make_engine(const std::vector<ParameterGroup>& groups,
                                    const EngineConfig& config,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::vector<profile::ModuleEntry> modules) {
  const at::NoGradGuard no_grad;
  validate(config, communicator->world_size());
  keep_freed_memory();
  if (config.reduction == ReductionOrder::Exact && !communicator->device().is_cpu())
    throw Error("initialize", "expected \"reduction\": \"pinned\" or \"native\" on " +
                                  communicator->device().str() +
                                  ", got \"exact\", which sums on the CPU only.");
  communicator->coordinator().meet_to_initialize();
  auto assembly = assemble(groups, config, *communicator);
  if (modules.empty()) {
    std::vector<std::pair<std::string, at::Tensor>> named;
    for (std::size_t i = 0; i < assembly.table.size(); ++i) {
      named.emplace_back(assembly.table[i].name, assembly.tensors[i]);
    }
    modules = profile::modules_of(named);
  }
  assembly.leaves = leaf_parameters(modules, assembly.tensors, config.zero.leaf_module);
  return std::make_unique<TrainingEngine>(std::move(assembly), config, std::move(communicator),
                                          std::move(modules));
}

std::unique_ptr<Engine> initialize(std::vector<ParameterGroup> groups, const EngineConfig& config,
                                   std::shared_ptr<comm::Communicator> communicator) {
  return make_engine(groups, config, std::move(communicator), {});
}

}  // namespace equigrad
