#include "engine/engine.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

#include "engine/assemble.hpp"
#include "engine/bucket/bucket_queue.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/gradient/accumulator.hpp"
#include "engine/gradient/backward_pass.hpp"
#include "engine/gradient/contributions.hpp"
#include "engine/layout/partition.hpp"
#include "engine/loss/divisors.hpp"
#include "engine/optimizer/sharded_state.hpp"
#include "engine/parameter/parameters.hpp"
#include "engine/shard/gradient_shard.hpp"
#include "engine/stage.hpp"
#include "engine/trace/ledger.hpp"

namespace equigrad {
namespace {

at::ScalarType torch_dtype(DataType dtype) {
  return dtype == DataType::Fp32 ? at::kFloat : at::kBFloat16;
}

// Calls the stations in order: loss, gradient, bucket, shard, optimizer, parameter.
class TrainingEngine final : public Engine {
 public:
  TrainingEngine(Assembly assembly, const EngineConfig& config,
                 std::shared_ptr<comm::Communicator> communicator);

  at::Tensor backward(const at::Tensor& loss, bool retain_graph, bool scale_wrt_gas) override;
  at::Tensor scale(const at::Tensor& tensor) override;
  void step() override;
  void zero_grad() override;
  bool is_gradient_accumulation_boundary() const override {
    return (counters_.micro_steps + 1) % config_.gradient_accumulation_steps == 0;
  }

  const EngineConfig& config() const override { return config_; }
  const Counters& counters() const override { return counters_; }
  std::optional<double> get_global_grad_norm() const override { return norm_; }
  at::Tensor full_parameter(const std::string& name) override {
    return parameters_->whole(table_.index_of(name));
  }
  std::vector<LocalShard> local_shards() const override { return shards_of({}, {}); }
  void on_step(std::function<void(const std::vector<LocalShard>&)> observer) override {
    observer_ = std::move(observer);
  }
  const trace::Ledger& ledger() const override { return ledger_; }

 private:
  gradient::BackwardPass watch();
  bucket::QueueOptions queue_options() const;
  void end_pass();
  void abandon_pass() noexcept;
  void update();
  template <class Function>
  void or_empty_window(Function&& function) {
    try {
      function();
    } catch (...) {
      zero_grad();
      throw;
    }
  }
  bool may_update(const at::Tensor& gradient, int64_t non_finite_numel);
  std::vector<LocalShard> shards_of(const at::Tensor& gradient,
                                    const std::vector<bool>& used) const;

  EngineConfig config_;
  Stage stage_;
  bool reduce_every_pass_;
  std::shared_ptr<comm::Communicator> communicator_;
  trace::Ledger ledger_;
  std::vector<at::Tensor> tensors_;  // by index of the table
  layout::ParameterTable table_;
  layout::BucketPlan plan_;
  optimizer::ShardedState optimizer_;
  std::unique_ptr<parameter::Parameters> parameters_;
  gradient::Accumulator window_;
  bucket::BucketQueue queue_;
  gradient::Contributions contributions_;
  double pass_weight_ = 1.0;  // of the pass under way
  int64_t passes_since_step_ = 0;
  Counters counters_;
  std::optional<double> norm_;
  std::function<void(const std::vector<LocalShard>&)> observer_;
  gradient::BackwardPass pass_;  // last: its hooks call everything above
};

std::unique_ptr<parameter::Parameters> keep(const parameter::Context& context, const Stage& stage) {
  parameter::fill_masters(context);
  return stage.parameters_sharded ? parameter::make_pages(context)
                                  : parameter::make_replicas(context);
}

TrainingEngine::TrainingEngine(Assembly assembly, const EngineConfig& config,
                               std::shared_ptr<comm::Communicator> communicator)
    : config_(config),
      stage_(stage_row(config.zero.stage)),
      reduce_every_pass_(stage_.gradients_reduced == ReduceWhen::EveryPass),
      communicator_(std::move(communicator)),
      tensors_(std::move(assembly.tensors)),
      table_(std::move(assembly.table)),
      plan_(table_, stage_.shards(communicator_->world_size()), config.zero.reduce_bucket_size),
      optimizer_(config.optimizer, assembly.groups, table_, plan_, communicator_->device(),
                 ledger_),
      parameters_(keep({table_, plan_, config_.zero, *communicator_, ledger_, optimizer_.masters(),
                        tensors_, torch_dtype(config.param_dtype)},
                       stage_)),
      window_(plan_,
              at::TensorOptions()
                  .dtype(torch_dtype(config.accumulate_dtype))
                  .device(communicator_->device()),
              ledger_),
      queue_(
          plan_, *communicator_, queue_options(), ledger_,
          [this](std::size_t bucket, at::Tensor sum) {
            window_.add(bucket, std::move(sum), reduce_every_pass_ ? pass_weight_ : 1.0);
          },
          [this](std::size_t bucket, bool flushing) {
            return parameters_->come_to(parameter::Meeting::Bucket, static_cast<int64_t>(bucket),
                                        flushing);
          }),
      contributions_(table_.size()),
      pass_(watch()) {}

// At the boundary the window's local sums travel; after every pass the gradients themselves do.
bucket::QueueOptions TrainingEngine::queue_options() const {
  const auto accumulate = torch_dtype(config_.accumulate_dtype);
  const auto travels = reduce_every_pass_ ? torch_dtype(config_.param_dtype) : accumulate;
  return {at::TensorOptions().dtype(travels).device(communicator_->device()),
          reduce_every_pass_ ? at::kFloat : accumulate, config_.reduction, reduce_every_pass_};
}

gradient::BackwardPass TrainingEngine::watch() {
  std::vector<gradient::WatchedParameter> watched;
  for (std::size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].trainable) watched.push_back({i, table_[i].name, tensors_[i]});
  }
  return gradient::BackwardPass(std::move(watched),
                                {[] {},
                                 [this](std::size_t parameter, const at::Tensor& gradient) {
                                   contributions_.use(parameter);
                                   queue_.copy_in(parameter, gradient,
                                                  reduce_every_pass_ ? 1.0 : pass_weight_);
                                 },
                                 [this] { end_pass(); }, [this] { abandon_pass(); }});
}

void TrainingEngine::end_pass() {
  if (reduce_every_pass_) queue_.flush();
  parameters_->end_of_pass();
  contributions_.end_pass();
  ++passes_since_step_;
}

// Part of the pass is in the window and cannot be taken out again: the window is emptied. Its end
// stays where it was, since the boundary follows from the calls of step().
void TrainingEngine::abandon_pass() noexcept {
  try {
    parameters_->end_of_pass();
    zero_grad();
  } catch (...) {
    // A peer is lost too. The exception that abandoned the pass is on its way to the caller.
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
  pass_weight_ = loss::pass_weight(config_.gradient_accumulation_steps, scale_wrt_gas);
  try {
    pass_.run([&] { root.backward({}, retain_graph); });
    parameters_->rethrow_failure();  // a gather's, in this pass or in the forward before it
  } catch (...) {
    pass_weight_ = 1.0;
    abandon_pass();  // also where the pass reached no parameter: one rule for all
    parameters_->rethrow_failure();
    throw;
  }
  pass_weight_ = 1.0;
  if (!scale_wrt_gas) return loss;
  return loss / static_cast<double>(config_.gradient_accumulation_steps);
}

void TrainingEngine::zero_grad() {
  queue_.discard();
  window_.clear();
  contributions_.clear();
}

void TrainingEngine::step() {
  or_empty_window([this] { parameters_->rethrow_failure(); });
  if (passes_since_step_ == 0) {
    throw Error("engine.step",
                "expected a backward pass since the last step(), got none. Call "
                "engine.backward(loss), or backward() on a tensor of the model, first.");
  }
  const bool boundary = is_gradient_accumulation_boundary();
  ++counters_.micro_steps;
  passes_since_step_ = 0;
  if (!boundary) return;
  const at::NoGradGuard no_grad;
  or_empty_window([this] { update(); });
}

void TrainingEngine::update() {
  parameters_->come_to(parameter::Meeting::Step, 0, false);
  if (!reduce_every_pass_) queue_.flush();
  const auto used = contributions_.agree(*communicator_);
  const auto gradient = window_.take_averaged(
      loss::averaging_factor(config_.gradient_accumulation_steps, communicator_->world_size()));
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
