#include "engine/engine.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

#include "engine/assemble.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/gradient/backward_pass.hpp"
#include "engine/gradient/micro_batches.hpp"
#include "engine/gradient/window.hpp"
#include "engine/layout/partition.hpp"
#include "engine/loss/divisors.hpp"
#include "engine/optimizer/sharded_state.hpp"
#include "engine/parameter/parameters.hpp"
#include "engine/shard/gradient_shard.hpp"
#include "engine/stage.hpp"
#include "engine/tensor_access.hpp"
#include "engine/trace/ledger.hpp"

namespace equigrad {
namespace {

at::ScalarType torch_dtype(DataType dtype) {
  return dtype == DataType::Fp32 ? at::kFloat : at::kBFloat16;
}

// Calls the stations in order: loss, gradient, shard, optimizer, parameter.
class TrainingEngine final : public Engine {
 public:
  TrainingEngine(Assembly assembly, const EngineConfig& config,
                 std::shared_ptr<comm::Communicator> communicator);

  at::Tensor backward(const at::Tensor& loss, bool retain_graph, bool scale_wrt_gas) override;
  at::Tensor scale(const at::Tensor& tensor) override;
  void step() override;
  void zero_grad() override { window_.clear(); }
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
  at::Tensor full_parameter(const std::string& name) override {
    return parameters_->whole(table_.index_of(name));
  }
  std::vector<LocalShard> local_shards() const override { return shards_of({}, {}); }
  Access& access() override { return access_; }
  void on_step(std::function<void(const std::vector<LocalShard>&)> observer) override {
    observer_ = std::move(observer);
  }
  const trace::Ledger& ledger() const override { return ledger_; }

 private:
  gradient::BackwardPass watch();
  void end_pass();
  void abandon_pass() noexcept;
  void rethrow_failure();
  double factor() const {
    return loss::averaging_factor(config_.gradient_accumulation_steps, communicator_->world_size());
  }
  void update(const std::vector<bool>& used);
  bool may_update(const at::Tensor& gradient, int64_t non_finite_numel);
  std::vector<LocalShard> shards_of(const at::Tensor& gradient,
                                    const std::vector<bool>& used) const;

  EngineConfig config_;
  Stage stage_;
  std::shared_ptr<comm::Communicator> communicator_;
  trace::Ledger ledger_;
  std::vector<at::Tensor> tensors_;  // by index of the table
  layout::ParameterTable table_;
  layout::BucketPlan plan_;
  comm::Seat seat_;
  optimizer::ShardedState optimizer_;
  std::unique_ptr<parameter::Parameters> parameters_;
  gradient::Window window_;
  TensorAccess access_;
  double pass_weight_ = 1.0;  // of the pass under way
  gradient::MicroBatches micro_batches_;
  Counters counters_;
  bool applied_ = false;
  std::optional<double> norm_;
  std::function<void(const std::vector<LocalShard>&)> observer_;
  gradient::BackwardPass pass_;  // last: its hooks call everything above
};

TrainingEngine::TrainingEngine(Assembly assembly, const EngineConfig& config,
                               std::shared_ptr<comm::Communicator> communicator)
    : config_(config),
      stage_(stage_row(config.zero.stage)),
      communicator_(std::move(communicator)),
      tensors_(std::move(assembly.tensors)),
      table_(std::move(assembly.table)),
      plan_(table_, stage_.shards(communicator_->world_size()), config.zero.reduce_bucket_size),
      seat_(*communicator_, table_.size()),
      optimizer_(config.optimizer, assembly.groups, table_, plan_, communicator_->device(),
                 ledger_),
      parameters_(
          parameter::make_keeper({table_, plan_, config_.zero, *communicator_, seat_, ledger_,
                                  optimizer_.masters(), tensors_, torch_dtype(config.param_dtype)},
                                 stage_.parameters_sharded)),
      window_(plan_, table_.size(), *communicator_, seat_,
              {torch_dtype(config.param_dtype), torch_dtype(config.accumulate_dtype),
               stage_.gradients_reduced == ReduceWhen::EveryPass, config.reduction},
              ledger_),
      access_({table_, plan_, *communicator_, seat_, window_, optimizer_, *parameters_,
               [this] { return factor(); }}),
      micro_batches_(config.gradient_accumulation_steps),
      pass_(watch()) {}

gradient::BackwardPass TrainingEngine::watch() {
  std::vector<gradient::WatchedParameter> watched;
  for (std::size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].trainable) watched.push_back({i, table_[i].name, tensors_[i]});
  }
  return gradient::BackwardPass(std::move(watched),
                                {[this] {
                                   parameters_->rethrow_failure();
                                   window_.begin(pass_weight_);
                                 },
                                 [this](std::size_t parameter, const at::Tensor& gradient) {
                                   window_.ready(parameter, gradient);
                                 },
                                 [this] { end_pass(); }, [this] { abandon_pass(); }},
                                seat_.number());
}

void TrainingEngine::end_pass() {
  parameters_->rethrow_failure();  // of a gather in this pass
  window_.end();
  parameters_->end_of_pass();
  micro_batches_.end_pass();
}

// The window is as it was before the pass. Where gradients travel in every pass the other ranks
// wait for this one's: they are told.
void TrainingEngine::abandon_pass() noexcept {
  try {
    window_.abandon();
    if (stage_.gradients_reduced == ReduceWhen::EveryPass) seat_.abandon();
    parameters_->end_of_pass();
  } catch (...) {
    // A peer is lost too. The exception that abandoned the pass is on its way to the caller.
  }
}

// A gather that failed in an operator, outside of any pass.
void TrainingEngine::rethrow_failure() {
  try {
    parameters_->rethrow_failure();
  } catch (...) {
    abandon_pass();
    throw;
  }
}

at::Tensor TrainingEngine::scale(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) {
    throw Error("engine.scale",
                "expected a tensor with a graph, got one that requires no gradient. Compute it "
                "from the model's parameters outside of NoGradGuard.");
  }
  return tensor;  // fp32 and bf16 need no loss scale
}

at::Tensor TrainingEngine::backward(const at::Tensor& loss, bool retain_graph, bool scale_wrt_gas) {
  if (!loss.defined() || loss.numel() != 1) {
    throw Error("engine.backward",
                fmt::format("expected a scalar loss, got shape {}. For other outputs call "
                            "output.backward(gradient).",
                            loss.defined() ? fmt::format("[{}]", fmt::join(loss.sizes(), ", "))
                                           : std::string("of an undefined tensor")));
  }
  const at::Tensor root = scale(loss);
  rethrow_failure();
  pass_weight_ = loss::pass_weight(config_.gradient_accumulation_steps, scale_wrt_gas);
  const auto restore = c10::make_scope_exit([this] { pass_weight_ = 1.0; });
  pass_.run([&] { root.backward({}, retain_graph); });
  if (!scale_wrt_gas) return loss;
  return loss / static_cast<double>(config_.gradient_accumulation_steps);
}

std::shared_ptr<void> TrainingEngine::no_sync() {
  if (stage_.gradients_reduced == ReduceWhen::EveryPass) {
    throw Error("engine.no_sync",
                fmt::format("expected ZeRO stage 0 or 1, got {}, which reduces gradients in every "
                            "pass to keep only its shard of them. Accumulation needs no no_sync: "
                            "call step() once per micro-batch.",
                            config_.zero.stage));
  }
  return micro_batches_.no_sync();
}

void TrainingEngine::set_train_batch_size(int64_t train_batch_size) {
  micro_batches_.set_train_batch_size(
      train_batch_size, config_.train_micro_batch_size_per_gpu * communicator_->world_size());
  config_.train_batch_size = train_batch_size;
  config_.gradient_accumulation_steps = micro_batches_.accumulation_steps();
}

void TrainingEngine::step() {
  rethrow_failure();
  micro_batches_.check_step();
  const bool boundary = micro_batches_.is_boundary();
  const at::NoGradGuard no_grad;
  std::vector<bool> used;
  if (boundary) used = window_.agree();  // if it throws, nothing has changed
  ++counters_.micro_steps;
  micro_batches_.end_step();
  if (!boundary) return;
  applied_ = false;
  try {
    update(used);
  } catch (...) {
    zero_grad();
    throw;
  }
}

void TrainingEngine::update(const std::vector<bool>& used) {
  const auto gradient = window_.take_averaged(factor());
  const trace::Charge charge(ledger_, trace::Category::Gradients,
                             static_cast<int64_t>(gradient.nbytes()));
  zero_grad();
  const auto measure =
      shard::measure(gradient, plan_.shards() == 1 ? nullptr : communicator_.get());
  norm_ = measure.non_finite_numel == 0 ? measure.norm : std::numeric_limits<double>::quiet_NaN();
  if (!may_update(gradient, measure.non_finite_numel)) return;
  if (config_.gradient_clipping > 0) {
    shard::clip_(gradient, measure.norm, config_.gradient_clipping);
  }
  if (observer_) observer_(shards_of(gradient, used));
  optimizer_.update(gradient, used);
  parameters_->publish();
  ++counters_.global_steps;
  applied_ = true;
}

// A gradient that is not finite is skipped in bf16 and an error in fp32, on all ranks alike.
bool TrainingEngine::may_update(const at::Tensor& gradient, int64_t non_finite_numel) {
  if (non_finite_numel == 0) return true;
  if (config_.param_dtype == DataType::Bf16) {
    if (!config_.check_grad_overflow) return true;
    ++counters_.global_steps;
    ++counters_.skipped_steps;
    return false;
  }
  const auto bad = shard::first_non_finite(gradient, plan_, table_.size(), *communicator_);
  throw Error(
      "engine.step",
      fmt::format("expected finite gradients, got {} elements that are not, the first in parameter "
                  "\"{}\". Nothing was written; look at the inputs, or lower the learning rate.",
                  non_finite_numel, bad ? table_[*bad].name : std::string("?")));
}

std::vector<LocalShard> TrainingEngine::shards_of(const at::Tensor& gradient,
                                                  const std::vector<bool>& used) const {
  std::vector<LocalShard> shards;
  const int rank = plan_.shards() == 1 ? 0 : communicator_->rank();
  for (const auto& bucket : plan_.buckets()) {
    for (const auto& slot : bucket.slots) {
      const auto mine = layout::Partition(slot.numel, plan_.shards()).range(rank);
      const auto part = [&](const at::Tensor& flat) {
        return flat.narrow(0, bucket.offset + slot.offset, mine.numel());
      };
      LocalShard shard{table_[slot.parameter].name, mine.begin, mine.end, {}, {}, {}};
      if (gradient.defined() && used[slot.parameter]) shard.gradient = part(gradient);
      shard.master = part(optimizer_.masters());
      for (std::size_t i = 0; i < optimizer_.names().size(); ++i) {
        shard.state[optimizer_.names()[i]] = part(optimizer_.states()[i]);
      }
      shards.push_back(std::move(shard));
    }
  }
  return shards;
}

}  // namespace

std::unique_ptr<Engine> initialize(std::vector<ParameterGroup> groups, const EngineConfig& config,
                                   std::shared_ptr<comm::Communicator> communicator) {
  const at::NoGradGuard no_grad;
  validate(config, communicator->world_size());
  auto assembly = assemble(groups, config, *communicator);
  return std::make_unique<TrainingEngine>(std::move(assembly), config, std::move(communicator));
}

}  // namespace equigrad
