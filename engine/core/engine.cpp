// Engine's calls, each on the station that it is about, or on the training engine where the order
// of several matters.
#include "engine/engine.hpp"

#include <fmt/format.h>

#include <utility>

#include "engine/autograd/autocast.hpp"
#include "engine/core/checkpoints.hpp"
#include "engine/core/set_lr.hpp"
#include "engine/core/training_engine.hpp"

namespace equigrad {

Engine::Engine(std::unique_ptr<TrainingEngine> engine) : engine_(std::move(engine)) {}
Engine::~Engine() = default;

at::Tensor Engine::backward(const at::Tensor& loss, bool retain_graph, bool scale_wrt_gas) {
  return engine_->backward(loss, retain_graph, scale_wrt_gas);
}
at::Tensor Engine::scale(const at::Tensor& tensor) { return engine_->scale(tensor); }
double Engine::loss_scale() const { return engine_->parts().loss.scaler->scale(); }
void Engine::share_loss_scale(Engine& other) { engine_->share_loss_scale(*other.engine_); }

std::shared_ptr<void> Engine::autocast() {
  auto& parts = engine_->parts();
  parts.loss.has_autocast = true;
  return make_autocast_guard(parts.config.precision.autocast,
                             parts.group.communicator->device().type());
}
schedule::LayerDropState Engine::layer_drop() const {
  const auto& drop = engine_->parts().schedules.layer_drop;
  return drop ? drop->state() : schedule::LayerDropState{false, 1.0};
}
void Engine::check_forward() { engine_->rethrow_failure(); }

void Engine::step(const schedule::LrKeywords& lr_kwargs) { engine_->step(lr_kwargs); }
void Engine::zero_grad() { engine_->zero_grad(); }
bool Engine::is_gradient_accumulation_boundary() const {
  return engine_->parts().schedules.micro_batches.is_boundary();
}
void Engine::set_gradient_accumulation_boundary(std::optional<bool> is_boundary) {
  engine_->parts().schedules.micro_batches.set_boundary(is_boundary);
}
std::shared_ptr<void> Engine::no_sync() {
  auto& parts = engine_->parts();
  if (parts.stage().gradients_reduced == ReduceWhen::EveryPass) {
    throw Error("engine.no_sync",
                fmt::format("expected ZeRO stage 0 or 1, got {}, which reduces gradients in every "
                            "pass to keep only its shard of them. Accumulation needs no no_sync: "
                            "call step() once per micro-batch.",
                            parts.config.zero.stage));
  }
  return parts.schedules.micro_batches.no_sync();
}
void Engine::set_train_batch_size(int64_t train_batch_size) {
  engine_->set_train_batch_size(train_batch_size);
}

const EngineConfig& Engine::config() const { return engine_->parts().config; }
std::vector<double> Engine::get_lr() const { return engine_->parts().optimizer.lr(); }
void Engine::set_lr(double lr) { set_lr(std::vector<double>(get_lr().size(), lr)); }
void Engine::set_lr(const std::vector<double>& lr_by_group) {
  engine_->rethrow_failure();
  core::set_lr(engine_->parts(), lr_by_group);
}
std::vector<OptimizerConfig> Engine::hyper_parameters() const {
  return engine_->parts().optimizer.hyper_parameters();
}
void Engine::set_hyper_parameters(const std::vector<OptimizerConfig>& by_group) {
  engine_->rethrow_failure();
  core::set_hyper_parameters(engine_->parts(), by_group);
}
const Counters& Engine::counters() const { return engine_->parts().outcome.counters; }
bool Engine::was_step_applied() const { return engine_->parts().outcome.applied; }
std::optional<double> Engine::get_global_grad_norm() const { return engine_->parts().outcome.norm; }
at::Tensor Engine::full_parameter(const std::string& name) { return engine_->full_parameter(name); }
std::vector<LocalShard> Engine::local_shards() const {
  return equigrad::local_shards(engine_->parts().inspection.stations, {}, {});
}
Access& Engine::access() {
  engine_->rethrow_failure();
  return engine_->parts().inspection.access;
}
GatheredParameters Engine::gather(const std::vector<at::Tensor>& parameters,
                                  std::optional<int> modifier_rank) {
  engine_->rethrow_failure();
  return engine_->parts().inspection.gathering.open(parameters, modifier_rank);
}
void Engine::on_step(std::function<void(const std::vector<LocalShard>&)> observer) {
  engine_->parts().inspection.observer = std::move(observer);
}
void Engine::save_checkpoint(const std::string& directory, const std::string& tag,
                             const SaveOptions& options) {
  core::save_checkpoint(*engine_, directory, tag, options);
}
void Engine::finish_checkpoint() {
  auto& parts = engine_->parts();
  parts.group.participant.meet(agreement::SaveCheckpoint{});
  core::finish_checkpoint(*engine_);
}
std::optional<LoadedCheckpoint> Engine::load_checkpoint(const std::string& directory,
                                                        const std::string& tag,
                                                        const LoadOptions& options) {
  return core::load_checkpoint(*engine_, directory, tag, options);
}
const memory::Ledger& Engine::ledger() const { return engine_->parts().ledger; }

}  // namespace equigrad
