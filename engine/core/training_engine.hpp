// Training engine: the stations of one engine, and what it remembers between calls. engine.cpp
// calls them, and is the only file that knows the order.
//
// Invariants: members are made in this order and destroyed in the reverse; the hooks of pass_ call
// everything above it.
// Shapes, errors: those of engine.hpp.
// Depends on: every station; engine.cpp and nothing else includes it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/autograd/autocast.hpp"
#include "engine/autograd/backward_pass.hpp"
#include "engine/autograd/scaled_graph.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/core/assemble.hpp"
#include "engine/engine.hpp"
#include "engine/gradient/micro_batches.hpp"
#include "engine/gradient/window.hpp"
#include "engine/inspect/gathering.hpp"
#include "engine/inspect/tensor_access.hpp"
#include "engine/layout/stage.hpp"
#include "engine/loss/divisors.hpp"
#include "engine/memory/ledger.hpp"
#include "engine/optimizer/sharded_state.hpp"
#include "engine/parameter/store.hpp"
#include "engine/profile/profiled_step.hpp"
#include "engine/schedule/progressive_layer_drop.hpp"
#include "engine/schedule/schedule.hpp"

namespace equigrad {

class TrainingEngine final : public Engine {
 public:
  TrainingEngine(Assembly assembly, const EngineConfig& config,
                 std::shared_ptr<comm::Communicator> communicator,
                 std::vector<profile::ModuleEntry> modules);

  at::Tensor backward(const at::Tensor& loss, bool retain_graph, bool scale_wrt_gas) override;
  at::Tensor scale(const at::Tensor& tensor) override;
  double loss_scale() const override { return scaler_->scale(); }
  void share_loss_scale(Engine& other) override;
  std::shared_ptr<void> autocast() override;
  void step(const schedule::LrKeywords& lr_kwargs) override;
  void zero_grad() override;
  bool is_gradient_accumulation_boundary() const override { return micro_batches_.is_boundary(); }
  void set_gradient_accumulation_boundary(std::optional<bool> is_boundary) override {
    micro_batches_.set_boundary(is_boundary);
  }
  std::shared_ptr<void> no_sync() override;
  void set_train_batch_size(int64_t train_batch_size) override;

  const EngineConfig& config() const override { return config_; }
  const Counters& counters() const override { return counters_; }
  bool was_step_applied() const override { return applied_; }
  std::optional<double> get_global_grad_norm() const override { return norm_; }
  at::Tensor full_parameter(const std::string& name) override;
  std::vector<LocalShard> local_shards() const override { return access_.shards({}, {}); }
  Access& access() override {
    rethrow_failure();
    return access_;
  }
  GatheredParameters gather(const std::vector<at::Tensor>& parameters,
                            std::optional<int> modifier_rank) override {
    rethrow_failure();
    return gathering_.open(parameters, modifier_rank);
  }
  std::vector<double> get_lr() const override { return optimizer_.lr(); }
  schedule::LayerDropState layer_drop() const override {
    return layer_drop_ ? layer_drop_->state() : schedule::LayerDropState{false, 1.0};
  }
  void on_step(std::function<void(const std::vector<LocalShard>&)> observer) override {
    observer_ = std::move(observer);
  }
  const trace::Ledger& ledger() const override { return ledger_; }

 private:
  gradient::BackwardPass watch();
  void end_pass();
  void abandon_pass() noexcept;
  void rethrow_failure();
  void check_scale() const;
  void check_autocast() const;
  double factor() const {
    return loss::averaging_factor(config_.averaging, config_.gradient_accumulation_steps,
                                  communicator_->world_size()) /
           scaler_->scale();  // a power of two: exact
  }
  void update(const comm::Agreement& agreement);
  void observe(const at::Tensor& gradient, const comm::Agreement& agreement);
  void set_rates();
  bool may_update(const at::Tensor& gradient, int64_t non_finite_numel);

  EngineConfig config_;
  Stage stage_;
  std::shared_ptr<comm::Communicator> communicator_;
  trace::Ledger ledger_;
  std::vector<at::Tensor> tensors_;  // by index of the table
  layout::ParameterTable table_;
  layout::BucketPlan plan_;
  comm::Participant participant_;
  std::shared_ptr<loss::LossScaler> scaler_;
  std::map<const void*, const std::string*> names_;  // by tensor
  optimizer::ShardedState optimizer_;
  std::unique_ptr<parameter::Parameters> parameters_;
  Window window_;
  TensorAccess access_;
  Gathering gathering_;
  double pass_weight_ = 1.0;   // of the pass under way
  bool has_autocast_ = false;  // a forward could run under it
  gradient::MicroBatches micro_batches_;
  std::unique_ptr<schedule::Schedule> schedule_;  // null: constant rates
  std::optional<schedule::ProgressiveLayerDrop> layer_drop_;
  profile::ProfiledStep profiled_;
  Counters counters_;
  bool applied_ = false;
  std::optional<double> norm_;
  std::function<void(const std::vector<LocalShard>&)> observer_;
  gradient::BackwardPass pass_;  // last: its hooks call everything above
};

// Both ways of initialize() end here; no modules: those that the parameters' names tell of.
std::unique_ptr<Engine> make_engine(const std::vector<ParameterGroup>& groups,
                                    const EngineConfig& config,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::vector<profile::ModuleEntry> modules);

}  // namespace equigrad
