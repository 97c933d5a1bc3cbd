// Calls the stations in order: loss, gradient, shard, optimizer, parameter.
#include "engine/engine.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

#include "engine/core/training_engine.hpp"
#include "engine/shard/gradient_shard.hpp"

namespace equigrad {
namespace {

void check_scalar(const at::Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1) {
    throw Error("engine.backward",
                fmt::format("expected a scalar loss, got shape {}. For other outputs call "
                            "output.backward(gradient).",
                            loss.defined() ? fmt::format("[{}]", fmt::join(loss.sizes(), ", "))
                                           : std::string("of an undefined tensor")));
  }
}

}  // namespace

void TrainingEngine::set_rates() {
  if (!schedule_) return;
  const auto rates = schedule_->current();
  optimizer_.set_rates(rates.lr, rates.beta1);
}

void TrainingEngine::end_pass() {
  profiled_.end_pass();
  parameters_->rethrow_failure();  // of a gather in this pass
  window_.end();
  scaler_->hold(this);
  parameters_->end_of_pass();
  const auto traffic = parameters_->traffic();
  counters_.gathering = {traffic.gathered_numel, traffic.planned_numel, traffic.least_numel};
  micro_batches_.end_pass();
}

// The window is as it was before the pass. Where gradients are sent in every pass the other ranks
// wait for this one's: they are told.
void TrainingEngine::abandon_pass() noexcept {
  // A peer may be lost too. The exception that abandoned the pass is on its way to the caller.
  window_.abandon();
  try {
    if (stage_.gradients_reduced == ReduceWhen::EveryPass) participant_.abandon();
  } catch (...) {
  }
  try {
    parameters_->end_of_pass();
  } catch (...) {
  }
}

// A gather that failed in an operator, outside of any pass.
void TrainingEngine::rethrow_failure() {
  gathering_.rethrow_failure();
  try {
    parameters_->rethrow_failure();
  } catch (...) {
    abandon_pass();
    throw;
  }
}

at::Tensor TrainingEngine::full_parameter(const std::string& name) {
  rethrow_failure();
  const auto parameter = table_.index_of(name);
  auto value = parameters_->whole(parameter);
  // A rank that has the page serves those that have not.
  if (stage_.parameters_sharded)
    participant_.meet(
        {comm::SyncKind::Access, (int64_t{15} << 40) + static_cast<int64_t>(parameter)});
  return value;
}

at::Tensor TrainingEngine::scale(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) {
    throw Error("engine.scale",
                "expected a tensor with a graph, got one that requires no gradient. Compute it "
                "from the model's parameters outside of NoGradGuard.");
  }
  return loss::scale(tensor, scaler_);
}

void TrainingEngine::share_loss_scale(Engine& other) {
  auto& owner = dynamic_cast<TrainingEngine&>(other);
  if (!(config_.precision.loss_scale == owner.config_.precision.loss_scale)) {
    throw Error("engine.share_loss_scale",
                "expected engines with the same loss scale in their configurations, got different "
                "ones. Give both the same \"fp16\" or \"torch_autocast\" section.");
  }
  if (window_.passes() != 0) {
    throw Error(
        "engine.share_loss_scale",
        fmt::format("expected an empty accumulation window, got {} backward passes. Call it "
                    "before the first backward, or after step() or zero_grad().",
                    window_.passes()));
  }
  scaler_->released(this);
  scaler_ = owner.scaler_;
}

void TrainingEngine::zero_grad() {
  window_.clear();
  scaler_->released(this);
}

at::Tensor TrainingEngine::backward(const at::Tensor& loss, bool retain_graph, bool scale_wrt_gas) {
  rethrow_failure();
  participant_.begin_pass();
  pass_weight_ = loss::pass_weight(config_.gradient_accumulation_steps, scale_wrt_gas);
  const auto restore = c10::make_scope_exit([this] { pass_weight_ = 1.0; });
  // A loss that is refused on one rank is a pass that throws: the others wait for it.
  pass_.run([&] {
    check_scalar(loss);
    const auto scaled = scale(loss);
    const auto hook = loss.register_hook([this](const at::Tensor&) { pass_.join(); });
    const auto remove = c10::make_scope_exit([&] { loss.remove_hook(hook); });
    scaled.backward({}, retain_graph);
  });
  if (!scale_wrt_gas) return loss;
  return loss / static_cast<double>(config_.gradient_accumulation_steps);
}

std::shared_ptr<void> TrainingEngine::autocast() {
  has_autocast_ = true;
  return make_autocast_guard(config_.precision.autocast, communicator_->device().type());
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

void TrainingEngine::step(const schedule::LrKeywords& lr_kwargs) {
  rethrow_failure();
  if (schedule_) {
    schedule_->check(lr_kwargs);
  } else if (!lr_kwargs.empty()) {
    throw Error("engine.step",
                fmt::format("expected no lr_kwargs without a scheduler, got \"{}\". Configure one "
                            "under \"scheduler\".",
                            lr_kwargs.begin()->first));
  }
  gathering_.check_closed("engine.step");
  micro_batches_.check_step();
  const bool boundary = micro_batches_.is_boundary();
  const at::NoGradGuard no_grad;
  comm::Agreement agreement;
  if (boundary) agreement = window_.agree(observer_ ? 1 : 0);  // if it throws, nothing has changed
  ++counters_.micro_steps;
  micro_batches_.end_step();
  if (!boundary) return;
  applied_ = false;
  try {
    profiled_.begin_update();
    update(agreement);
    if (applied_ && schedule_) schedule_->step(lr_kwargs);
    set_rates();
  } catch (...) {
    zero_grad();
    throw;
  }
  profiled_.boundary(counters_.global_steps);
  scaler_->stepped(this,
                   !applied_);  // last: what this window was scaled by is what it was divided by
}

// The observer is the user's: it may throw, or read parameters, on one rank only.
void TrainingEngine::observe(const at::Tensor& gradient, const comm::Agreement& agreement) {
  if (agreement.greatest_flag == 0) return;  // no rank has one
  participant_.begin_pass();
  try {
    if (observer_) observer_(access_.shards(gradient, agreement.marks));
  } catch (...) {
    participant_.abandon();
    throw;
  }
  participant_.meet({comm::SyncKind::Observed});
}

void TrainingEngine::update(const comm::Agreement& agreement) {
  if (layer_drop_) layer_drop_->update(counters_.global_steps);
  const auto gradient = window_.take_averaged(factor());
  const trace::Charge charge(ledger_, trace::Category::Gradients,
                             static_cast<int64_t>(gradient.nbytes()));
  const auto measure = shard::measure(gradient, plan_.shards() == 1 ? nullptr : communicator_.get(),
                                      config_.gradient_norm);
  norm_ = measure.non_finite_numel == 0 ? measure.norm : std::numeric_limits<double>::quiet_NaN();
  if (!may_update(gradient, measure.non_finite_numel)) return;
  if (config_.gradient_clipping > 0) {
    shard::clip_(gradient, measure.norm, config_.gradient_clipping);
  }
  observe(gradient, agreement);
  optimizer_.update(gradient, agreement.marks);
  parameters_->publish();
  ++counters_.global_steps;
  applied_ = true;
}

// A gradient that is not finite is skipped where the loss is scaled, and in bf16; it is an error in
// fp32. On all ranks alike.
bool TrainingEngine::may_update(const at::Tensor& gradient, int64_t non_finite_numel) {
  if (non_finite_numel == 0) return true;
  if (scaler_->is_needed() || config_.precision.param == DataType::Bf16) {
    if (!scaler_->is_needed() && !config_.precision.check_grad_overflow) return true;
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

}  // namespace equigrad
