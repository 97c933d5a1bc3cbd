#include "engine/core/training_engine.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/core/together.hpp"
#include "engine/kernels/data_types.hpp"
#include "engine/loss/divisors.hpp"
#include "engine/parallel/regions.hpp"
#include "engine/parallel/split_marks.hpp"
#include "engine/shard/gradient_shard.hpp"

namespace equigrad {
namespace {

optimizer::StateOptions state_options(const EngineConfig& config, at::Device device) {
  const bool offload = config.offload_optimizer.to_cpu;
  return {torch_dtype(config.precision.master), torch_dtype(config.precision.optimizer_state),
          offload ? at::Device(at::kCPU) : device, offload && config.offload_optimizer.pin_memory};
}

gradient::WindowOptions window_options(const EngineConfig& config, const comm::Mesh& mesh) {
  return {
      .param_dtype = torch_dtype(config.precision.param),
      .accumulate_dtype = torch_dtype(config.precision.accumulate),
      .reduce_every_pass = stage_row(config.zero.stage).gradients_reduced == ReduceWhen::EveryPass,
      .order = config.reduction,
      .average_dtype = torch_dtype(config.precision.master),
      .communication_dtypes = gradient_communication_dtypes(config.precision),
      .before_sum = loss::factor_before_sum(config.averaging, mesh.sizes().data),
      .expects_one_pass = config.expects_one_pass(),
      .overlaps = config.zero.overlap_comm,
      .eager = config.reduces_eagerly(mesh.zero()->world_size())};
}

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

namespace core {

comm::Communicator* Group::over_model(bool is_sharded) const {
  if (is_sharded) return mesh.world().get();
  return mesh.tensor().get();
}

namespace {

// What tensor rank 0 has too, and counts.
std::vector<shard::Span> repeated_spans(const Model& model, const comm::Mesh& mesh) {
  std::vector<shard::Span> spans;
  if (!mesh.tensor() || mesh.tensor()->rank() == 0) return spans;
  for (const auto& bucket : model.plan.buckets()) {
    for (const auto& slot : bucket.slots) {
      const int64_t begin = bucket.offset + slot.offset;
      if (!model.splits[slot.parameter]) spans.push_back({begin, begin + slot.shard_numel});
    }
  }
  return spans;
}

}  // namespace

Model::Model(std::vector<at::Tensor> parameters, layout::ParameterTable entries,
             const EngineConfig& config, const comm::Mesh& mesh)
    : tensors(std::move(parameters)),
      table(std::move(entries)),
      plan(table, stage_row(config.zero.stage).shards(mesh.zero()->world_size()),
           layout::bucket_size(
               table, config.zero.reduce_bucket_size,
               stage_row(config.zero.stage)
                   .sends_full_buckets(config.reduces_eagerly(mesh.zero()->world_size())))) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    names[tensors[i].unsafeGetTensorImpl()] = &table[i].name;
    splits.push_back(parallel::split_of(tensors[i]));
  }
  repeated = repeated_spans(*this, mesh);
}

namespace {

// That of the user, or the configured one.
optimizer::ShardedState make_optimizer(const Assembly& assembly, const EngineConfig& config,
                                       const comm::Communicator& communicator, const Model& model,
                                       memory::Ledger& ledger) {
  const auto options = state_options(config, communicator.device());
  if (!assembly.client) {
    return {optimizer::by_group(config.optimizer, assembly.groups), model.table, model.plan,
            options, ledger};
  }
  return {optimizer::Client{assembly.client, model.tensors, communicator.rank()}, model.table,
          model.plan, options, ledger};
}

}  // namespace

Parts::Parts(Assembly assembly, const EngineConfig& settings, comm::Mesh mesh,
             std::vector<layout::ModuleEntry> modules)
    : config(settings),
      group{mesh, mesh.zero(), {*mesh.zero(), assembly.table.size()}},
      model(std::move(assembly.tensors), std::move(assembly.table), config, mesh),
      loss{autograd::make_scaler(config.precision.loss_scale)},
      optimizer(make_optimizer(assembly, config, *group.communicator, model, ledger)),
      parameters(parameter::make_keeper(
          {.table = model.table,
           .plan = model.plan,
           .zero = config.zero,
           .communicator = *group.communicator,
           .participant = group.participant,
           .ledger = ledger,
           .masters = optimizer.masters(),
           .tensors = model.tensors,
           .dtype = torch_dtype(config.precision.param),
           .communication_dtypes = weight_communication_dtypes(config.precision),
           .leaves = assembly.leaves},
          stage().parameters_sharded)),
      window(model.plan, model.table.size(), group.participant, window_options(config, group.mesh),
             ledger),
      inspection{
          .stations = {.table = model.table,
                       .plan = model.plan,
                       .communicator = *group.communicator,
                       .participant = group.participant,
                       .window = window,
                       .optimizer = optimizer,
                       .parameters = *parameters,
                       .factor = [this] { return factor(); }},
          .access = Access(inspection.stations),
          .gathering = Gathering(inspection.stations, model.tensors, model.splits, group.mesh),
          .observer = {}},
      schedules{.micro_batches = gradient::MicroBatches(config.gradient_accumulation_steps,
                                                        config.managed_gradient_accumulation),
                .configured_lr = optimizer.lr(),
                .rates = config.scheduler
                             ? schedule::make_schedule(*config.scheduler, optimizer.lr())
                             : nullptr,
                .layer_drop = {},
                .profiled = {config.flops_profiler.enabled && group.mesh.world()->rank() == 0,
                             std::move(modules),
                             model.tensors,
                             config.flops_profiler,
                             {group.mesh.sizes().tensor, averaged_ranks(),
                              config.train_micro_batch_size_per_gpu, 0}}} {
  if (config.progressive_layer_drop.enabled)
    schedules.layer_drop.emplace(config.progressive_layer_drop);
  set_rates();
}

double Parts::factor() const {
  return loss::averaging_factor(config.averaging, config.gradient_accumulation_steps,
                                averaged_ranks()) /
         loss.scaler->scale();  // a power of two: exact
}

void Parts::set_rates() {
  if (!schedules.rates) return;
  const auto rates = schedules.rates->current();
  optimizer.set_rates(rates.lr, rates.beta1);
}

}  // namespace core

TrainingEngine::TrainingEngine(Assembly assembly, const EngineConfig& config, comm::Mesh mesh,
                               std::vector<layout::ModuleEntry> modules)
    : parts_(std::move(assembly), config, std::move(mesh), std::move(modules)), pass_(watch()) {}

// Engines that share the scale wait for those that hold it.
TrainingEngine::~TrainingEngine() { parts_.loss.scaler->released(this); }

autograd::BackwardPass TrainingEngine::watch() {
  // Of several engines in a pass those end first that can still fail on another rank.
  const bool waits = parts_.stage().gradients_reduced == ReduceWhen::EveryPass;
  const int64_t order = parts_.group.participant.number() + (waits ? 0 : int64_t{1} << 32);
  const auto& tensors = parts_.model.tensors;
  const auto& table = parts_.model.table;
  std::vector<autograd::WatchedParameter> watched;
  for (std::size_t i = 0; i < table.size(); ++i)
    if (table[i].trainable) watched.push_back({i, table[i].name, tensors[i]});
  return autograd::BackwardPass(
      std::move(watched),
      {.begin = [this] { begin_pass(); },
       .ready =
           [this](std::size_t parameter, at::Tensor gradient) {
             RECORD_USER_SCOPE("gradient.ready");
             parts_.parameters->rethrow_failure();  // this gradient is not real
             parts_.window.ready(parameter, std::move(gradient));
           },
       .end = [this] { end_pass(); },
       .abandoned = [this] { abandon_pass(); },
       .graph_task = [this] { check_scale(); }},
      order);
}

void TrainingEngine::begin_pass() {
  parts_.group.participant.begin_pass();
  parts_.parameters->rethrow_failure();
  check_autocast();
  parts_.window.begin(parts_.loss.pass_weight, parts_.schedules.micro_batches.expects_step());
}

void TrainingEngine::end_pass() {
  RECORD_USER_SCOPE("gradient.end_pass");
  parts_.schedules.profiled.end_pass();
  parts_.parameters->rethrow_failure();  // of a gather in this pass
  parts_.window.end();
  // From here on the pass counts, on all ranks.
  parts_.loss.scaler->hold(this);
  parts_.schedules.micro_batches.end_pass();
  const auto traffic = parts_.parameters->end_of_pass();
  parts_.outcome.counters.gathering = {traffic.gathered_numel, traffic.planned_numel,
                                       traffic.least_numel};
}

// The window is as it was before the pass. Where gradients are sent in every pass the other ranks
// wait for this one's: they are told.
void TrainingEngine::abandon_pass() noexcept {
  parts_.window.abandon(gradient::WindowPart::Pass);
  try {
    if (parts_.stage().gradients_reduced == ReduceWhen::EveryPass)
      parts_.group.participant.abandon();
  } catch (...) {
    // A peer may be lost too. The exception that abandoned the pass is on its way to the caller.
  }
  parts_.parameters->end_of_pass();
}

// A gather that failed in an operator, outside of any pass.
void TrainingEngine::rethrow_failure() {
  parts_.inspection.gathering.rethrow_failure();
  try {
    parts_.parameters->rethrow_failure();
  } catch (...) {
    abandon_pass();
    throw;
  }
}

// What is checked is the pass at hand: how its gradients reach this engine's parameters.
void TrainingEngine::check_scale() const {
  const auto& names = parts_.model.names;
  autograd::check_pass(parts_.loss.scaler.get(), [&names](const at::Tensor& leaf) {
    const auto found = names.find(leaf.unsafeGetTensorImpl());
    return found == names.end() ? nullptr : found->second;
  });
}

void TrainingEngine::check_autocast() const {
  if (!parts_.config.precision.autocast.enabled || parts_.loss.has_autocast) return;
  throw Error("backward",
              "expected a forward pass under torch_autocast, got none. Call engine.forward(model, "
              "...), or hold engine.autocast() while the model runs.");
}

at::Tensor TrainingEngine::backward(const at::Tensor& loss, bool retain_graph, bool scale_wrt_gas) {
  RECORD_USER_SCOPE("engine.backward");
  rethrow_failure();
  parts_.group.participant.begin_pass();
  const int64_t accumulation_steps = parts_.config.gradient_accumulation_steps;
  parts_.loss.pass_weight = loss::pass_weight(accumulation_steps, scale_wrt_gas);
  const auto restore = c10::make_scope_exit([this] { parts_.loss.pass_weight = 1.0; });
  // A loss that is refused on one rank is a pass that throws: the others wait for it.
  pass_.run([&] {
    check_scalar(loss);
    const auto scaled = scale(loss);
    const auto hook = loss.register_hook([this](const at::Tensor&) { pass_.join(); });
    const auto remove = c10::make_scope_exit([&] { loss.remove_hook(hook); });
    scaled.backward({}, retain_graph);
  });
  if (!scale_wrt_gas) return loss;
  return loss / static_cast<double>(accumulation_steps);
}

at::Tensor TrainingEngine::scale(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) {
    throw Error("engine.scale",
                "expected a tensor with a graph, got one that requires no gradient. Compute it "
                "from the model's parameters outside of NoGradGuard.");
  }
  return autograd::scale(tensor, parts_.loss.scaler);
}

void TrainingEngine::share_loss_scale(TrainingEngine& owner) {
  if (!(parts_.config.precision.loss_scale == owner.parts_.config.precision.loss_scale)) {
    throw Error("engine.share_loss_scale",
                "expected engines with the same loss scale in their configurations, got different "
                "ones. Give both the same \"fp16\" or \"torch_autocast\" section.");
  }
  if (parts_.window.progress().passes != 0) {
    throw Error(
        "engine.share_loss_scale",
        fmt::format("expected an empty accumulation window, got {} backward passes. Call it "
                    "before the first backward, or after step() or zero_grad().",
                    parts_.window.progress().passes));
  }
  parts_.loss.scaler->released(this);
  parts_.loss.scaler = owner.parts_.loss.scaler;
}

void TrainingEngine::zero_grad() {
  parts_.window.abandon(gradient::WindowPart::All);
  parts_.loss.scaler->released(this);
}

void TrainingEngine::set_train_batch_size(int64_t train_batch_size) {
  auto& config = parts_.config;
  auto& micro_batches = parts_.schedules.micro_batches;
  micro_batches.set_train_batch_size(
      train_batch_size, config.train_micro_batch_size_per_gpu * parts_.averaged_ranks());
  config.train_batch_size = train_batch_size;
  config.gradient_accumulation_steps = micro_batches.accumulation_steps();
  parts_.window.expect_one_pass(config.expects_one_pass());
}

at::Tensor TrainingEngine::full_parameter(const std::string& name) {
  rethrow_failure();
  const auto parameter = parts_.model.table.index_of(name);
  auto value = parts_.parameters->whole(parameter);
  const auto& tensor = parts_.group.mesh.tensor();
  if (const auto& split = parts_.model.splits[parameter]; split && tensor)
    value = parallel::whole_over(value, *split, *tensor);
  // A rank that has the page serves those that have not.
  if (parts_.stage().parameters_sharded)
    parts_.group.participant.meet(agreement::ReadParameter{.parameter = parameter});
  return value;
}

void TrainingEngine::step(const schedule::LrKeywords& lr_kwargs) {
  RECORD_USER_SCOPE("engine.step");
  rethrow_failure();
  auto& [micro_batches, configured_lr, rates, layer_drop, profiled] = parts_.schedules;
  auto& [counters, applied, norm] = parts_.outcome;
  if (rates) {
    rates->check(lr_kwargs);
  } else if (!lr_kwargs.empty()) {
    throw Error("engine.step",
                fmt::format("expected no lr_kwargs without a scheduler, got \"{}\". Configure one "
                            "under \"scheduler\".",
                            lr_kwargs.begin()->first));
  }
  parts_.inspection.gathering.check_closed("engine.step");
  micro_batches.check_step();
  const bool boundary = micro_batches.is_boundary();
  const at::NoGradGuard no_grad;
  agreement::Agreement agreement;
  if (boundary) agreement = agree();  // if it throws, nothing has changed
  ++counters.micro_steps;
  micro_batches.end_step();
  if (!boundary) return;
  applied = false;
  try {
    profiled.begin_update();
    update(agreement);
    if (applied && rates) {
      rates->step(lr_kwargs);
      parts_.set_rates();  // in place of those that set_lr() has set
    }
  } catch (...) {
    zero_grad();
    throw;
  }
  profiled.boundary(counters.global_steps);
  // Last: what this window was scaled by is what it was divided by.
  parts_.loss.scaler->stepped(this, !applied);
}

// The ranks of a tensor group step together or not at all. Each of them is in another of the groups
// that ZeRO shards over, in which all ranks throw if one does: so one tensor group tells them all.
std::vector<std::string> TrainingEngine::together(const std::function<std::string()>& attempt) {
  const auto& tensor = parts_.group.mesh.tensor();
  if (!tensor) return {attempt()};
  return core::together(*tensor, "engine.step", attempt);
}

agreement::Agreement TrainingEngine::agree() {
  RECORD_USER_SCOPE("gradient.agree");
  const bool observes = parts_.inspection.observer != nullptr;
  agreement::Agreement agreement;
  const auto flags = together([&] {
    agreement = parts_.window.agree(observes);
    return std::to_string(agreement.greatest_flag);
  });
  // Of any of those groups.
  for (const auto& flag : flags)
    agreement.greatest_flag = std::max<int64_t>(agreement.greatest_flag, std::stoll(flag));
  return agreement;
}

// What is the user's may throw, or read parameters, on one rank only.
void TrainingEngine::call_user(const std::function<void()>& call) {
  together([&]() -> std::string {
    auto& participant = parts_.group.participant;
    participant.begin_pass();
    try {
      call();
    } catch (...) {
      participant.abandon();
      throw;
    }
    participant.meet(agreement::ObservedUpdate{});
    return {};
  });
}

void TrainingEngine::observe(const at::Tensor& gradient, const agreement::Agreement& agreement) {
  if (agreement.greatest_flag == 0) return;  // no rank has one
  const auto& inspection = parts_.inspection;
  call_user([&] {
    if (inspection.observer)
      inspection.observer(local_shards(inspection.stations, gradient, agreement.marks));
  });
}

void TrainingEngine::update(const agreement::Agreement& agreement) {
  auto& [counters, applied, norm] = parts_.outcome;
  const auto& config = parts_.config;
  if (parts_.schedules.layer_drop) parts_.schedules.layer_drop->update(counters.global_steps);
  const auto gradient = [&] {
    RECORD_USER_SCOPE("gradient.reduce");
    return parts_.window.take_averaged(parts_.factor());
  }();
  const memory::Charge charge(parts_.ledger, memory::Category::Gradients,
                              static_cast<int64_t>(gradient.nbytes()));
  const auto measure = [&] {
    RECORD_USER_SCOPE("shard.norm");
    return shard::measure(gradient, parts_.group.over_model(parts_.model.plan.shards() > 1),
                          config.gradient_norm, parts_.model.repeated);
  }();
  norm = measure.non_finite_numel == 0 ? measure.norm : std::numeric_limits<double>::quiet_NaN();
  if (!may_update(gradient, measure.non_finite_numel)) return;
  if (config.gradient_clipping > 0) {
    RECORD_USER_SCOPE("shard.clip");
    shard::clip_(gradient, measure.norm, config.gradient_clipping);
  }
  observe(gradient, agreement);
  parts_.parameters->settle();  // a forward that has no backward yet may gather ahead
  {
    RECORD_USER_SCOPE("optimizer.update");
    update_masters(gradient, agreement);
  }
  {
    RECORD_USER_SCOPE("parameter.publish");
    parts_.parameters->publish();
  }
  ++counters.global_steps;
  applied = true;
}

void TrainingEngine::update_masters(const at::Tensor& gradient,
                                    const agreement::Agreement& agreement) {
  auto& optimizer = parts_.optimizer;
  if (!optimizer.hyper_parameters().empty()) return optimizer.update(gradient, agreement.marks);
  call_user([&] { optimizer.update(gradient, agreement.marks); });
}

// A gradient that is not finite is skipped where the loss is scaled, and in bf16; it is an error in
// fp32. On all ranks alike.
bool TrainingEngine::may_update(const at::Tensor& gradient, int64_t non_finite_numel) {
  if (non_finite_numel == 0) return true;
  const auto& precision = parts_.config.precision;
  const bool is_scaled = parts_.loss.scaler->is_needed();
  auto& counters = parts_.outcome.counters;
  if (is_scaled || precision.param == DataType::Bf16) {
    if (!is_scaled && !precision.check_grad_overflow) return true;
    ++counters.global_steps;
    ++counters.skipped_steps;
    return false;
  }
  const auto& table = parts_.model.table;
  const auto bad = shard::first_non_finite(gradient, parts_.model.plan, table.size(),
                                           *parts_.group.mesh.world());
  throw Error(
      "engine.step",
      fmt::format("expected finite gradients, got {} elements that are not, the first in parameter "
                  "\"{}\". Nothing was written; look at the inputs, or lower the learning rate.",
                  non_finite_numel, bad ? table[*bad].name : std::string("?")));
}

}  // namespace equigrad
