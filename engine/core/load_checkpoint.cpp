#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>
#include <utility>

#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/core/checkpoints.hpp"
#include "engine/core/load_source.hpp"
#include "engine/core/together.hpp"
#include "engine/kernels/data_types.hpp"

namespace equigrad::core {
namespace {

using checkpoint::SavedCheckpoint;
using nlohmann::json;

// Reads stretches of the whole, one behind the other, into a tensor of whatever type, device and
// strides.
void read_into(const SavedCheckpoint& saved, const std::string& name,
               const std::vector<checkpoint::Stretch>& from, const at::Tensor& into) {
  const auto type = scalar_type_of(saved.entry(name).type);
  const bool at_once = into.is_cpu() && into.is_contiguous() && into.scalar_type() == type;
  const auto here = at_once ? into : at::empty({into.numel()}, at::TensorOptions().dtype(type));
  auto* bytes = into.numel() > 0 ? static_cast<std::byte*>(here.mutable_data_ptr()) : nullptr;
  for (const auto& one : from) {
    if (one.numel == 0) continue;
    saved.read(name, one.whole, one.whole + one.numel, bytes);
    bytes += one.numel * static_cast<int64_t>(here.element_size());
  }
  if (!at_once) into.copy_(here.view(into.sizes()));
}

std::vector<checkpoint::Stretch> all_of(const at::Tensor& whole) {
  return {{.part = 0, .whole = 0, .local = 0, .numel = whole.numel()}};
}

class Load {
 public:
  // Everything that can fail: nothing is written.
  Load(TrainingEngine& engine, const LoadOptions& options, SavedCheckpoint saved, bool one_host);
  void run();
  const SavedCheckpoint& saved() const { return source_.saved; }

 private:
  Parts& parts() { return source_.parts; }
  std::vector<checkpoint::Stretch> kept(std::size_t parameter);
  std::vector<checkpoint::Stretch> of_this_rank(std::size_t parameter);
  void load_trained(std::size_t parameter);
  void load_whole(std::size_t parameter);
  void load_frozen(std::size_t parameter);
  void load_written_past(std::size_t parameter);
  void load_state(std::size_t parameter);
  void load_state_of_client(std::size_t parameter);
  void load_of_rank();
  void load_progress();

  LoadSource source_;
  bool reads_whole_;  // every rank all of a trained parameter, where ranks would gather it
};

Load::Load(TrainingEngine& engine, const LoadOptions& options, SavedCheckpoint saved, bool one_host)
    : source_(engine.parts(), options, std::move(saved)),
      reads_whole_(one_host && parts().model.plan.shards() > 1 &&
                   !parts().stage().parameters_sharded) {
  check_load(source_);
}

// Of the whole parameter: what this rank's shard keeps, and all that it has in its model.
std::vector<checkpoint::Stretch> Load::kept(std::size_t parameter) {
  return stretches(whole_tensor(parts(), parameter), kept_part(parts(), parameter).range);
}
std::vector<checkpoint::Stretch> Load::of_this_rank(std::size_t parameter) {
  return stretches(whole_tensor(parts(), parameter), {0, parts().model.table[parameter].numel});
}

void Load::load_trained(std::size_t parameter) {
  const auto part = kept_part(parts(), parameter);
  const auto masters = parts().optimizer.masters().narrow(0, part.begin, part.range.numel());
  read_into(source_.saved, source_.name_in_file(parameter), kept(parameter), masters);
}

// What publish() would leave, without asking other ranks.
void Load::load_whole(std::size_t parameter) {
  const auto& entry = parts().model.table[parameter];
  const auto tensor = parts().model.tensors[parameter].detach();
  const auto type = parts().optimizer.masters().scalar_type();
  const bool in_place = tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == type;
  const auto flat = in_place ? tensor.view({-1}) : at::empty({entry.numel}, type);
  read_into(source_.saved, source_.name_in_file(parameter), of_this_rank(parameter), flat);
  const auto seen = parts().parameters->as_seen(flat.to(tensor.device()), entry.lower_precision);
  if (!in_place || !seen.is_same(flat)) tensor.copy_(seen.view(tensor.sizes()));
  tensor.unsafeGetTensorImpl()->bump_version();  // as any other update in place
}

// One at a time: whole on every rank while it is written.
void Load::load_frozen(std::size_t parameter) {
  const auto& entry = parts().model.table[parameter];
  const auto name = source_.name_in_file(parameter);
  parts().parameters->pin(parameter);
  parts().group.participant.meet(agreement::GatherStands{});
  const auto whole = parts().model.tensors[parameter].detach();
  if (source_.from.find(entry.name)->trainable) {
    const auto master = at::empty({entry.numel}, scalar_type_of(source_.saved.entry(name).type));
    read_into(source_.saved, name, of_this_rank(parameter), master);
    whole.copy_(parts()
                    .parameters->as_seen(master.to(whole.device()), entry.lower_precision)
                    .view(entry.shape));
  } else {
    const auto flat = at::empty({entry.numel}, whole.options().device(at::kCPU));
    read_into(source_.saved, name, of_this_rank(parameter), flat);
    whole.copy_(flat.view(entry.shape));
  }
  parts().parameters->unpin(parameter, /*keep=*/true);
}

// As the model had it, until the next update takes it from its master.
void Load::load_written_past(std::size_t parameter) {
  const auto tensor = parts().model.tensors[parameter].detach();
  const auto flat = at::empty({tensor.numel()}, tensor.options().device(at::kCPU));
  read_into(source_.saved, source_.name_written_past(parameter), of_this_rank(parameter), flat);
  tensor.copy_(flat.view(tensor.sizes()));
}

void Load::load_state(std::size_t parameter) {
  if (source_.client != nullptr) {
    load_state_of_client(parameter);
    return;
  }
  auto& optimizer = parts().optimizer;
  const auto names = optimizer.state_names(parameter);
  const auto range = kept_part(parts(), parameter).range;
  const auto* from = source_.from.find(parts().model.table[parameter].name);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto state = optimizer.state(parameter, i).narrow(0, 0, range.numel());
    if (source_.loads_optimizer())
      read_into(source_.saved, state_name(names[i], from->name), kept(parameter), state);
    else
      state.zero_();
  }
  optimizer.steps()[parameter] = source_.loads_optimizer() ? from->steps : 0;
}

// Without the saved states it keeps its own: nobody else knows how they begin.
void Load::load_state_of_client(std::size_t parameter) {
  const auto* from = source_.from.find(parts().model.table[parameter].name);
  if (!source_.loads_optimizer() || from == nullptr) return;
  const auto range = kept_part(parts(), parameter).range;
  const auto& masters = parts().optimizer.masters();
  SliceStates states;
  for (const auto& name : source_.states_of(parameter)) {
    const auto full = state_name(name, from->name);
    const auto type = scalar_type_of(source_.saved.entry(full).type);
    states[name] = at::empty({range.numel()}, masters.options().dtype(type));
    read_into(source_.saved, full, kept(parameter), states[name]);
  }
  source_.client->restore(parameter, states, source_.from.of_client(*from).numbers);
}

void Load::load_of_rank() {
  for (const auto& [name, tensor] : source_.buffers) {
    const auto full = buffer_name(source_.source_rank(), name);
    if (tensor.numel() > 0 && source_.saved.has(full))
      read_into(source_.saved, full, all_of(tensor), tensor.detach());
  }
  if (source_.options.module_only || !source_.is_same_mesh()) return;
  for (const auto& device : random_devices(parts())) {
    const auto name = rng_name(source_.source_rank(), device.is_cpu() ? "cpu" : "cuda");
    if (!source_.saved.has(name)) continue;
    const auto state = at::empty(source_.saved.entry(name).shape, at::kByte);
    read_into(source_.saved, name, all_of(state), state);
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

// Rates come last: those of the groups, which set_lr() may have set, and not the schedule's.
void Load::load_progress() {
  auto& [counters, applied, norm] = parts().outcome;
  counters.micro_steps = source_.from.counters.micro_steps;
  counters.global_steps = source_.from.counters.global_steps;
  counters.skipped_steps = source_.from.counters.skipped_steps;
  applied = source_.from.applied;
  norm = source_.from.norm;
  auto& schedules = parts().schedules;
  if (schedules.layer_drop && source_.from.theta)
    schedules.layer_drop->restore(*source_.from.theta);
  if (schedules.rates && source_.options.lr_scheduler_states && source_.from.last_batch_iteration) {
    auto at = *parts().config.scheduler;
    at.last_batch_iteration = *source_.from.last_batch_iteration;
    schedules.rates = schedule::make_schedule(at, schedules.configured_lr);
    parts().set_rates();
  }
  if (!source_.loads_optimizer()) return;
  if (source_.from.loss_scale_policy == to_text(*parts().loss.scaler))
    parts().loss.scaler->restore(source_.from.loss_scale);
  if (source_.client != nullptr) {
    if (source_.options.lr_scheduler_states || !schedules.rates)
      parts().optimizer.set_rates(source_.from.client->rates, {});
    return;
  }
  auto& groups = parts().optimizer.hyper_parameters();
  const auto rates = groups;
  groups = source_.from.groups;
  if (!source_.options.lr_scheduler_states && schedules.rates) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      groups[i].lr = rates[i].lr;
      groups[i].beta1 = rates[i].beta1;
    }
  }
}

void Load::run() {
  const auto& table = parts().model.table;
  parts().parameters->settle();
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (source_.name_in_file(i).empty() || table[i].numel == 0) continue;
    if (!table[i].trainable) {
      load_frozen(i);
      continue;
    }
    load_trained(i);
    if (reads_whole_) load_whole(i);
    if (!source_.options.module_only) load_state(i);
  }
  load_of_rank();
  if (!source_.options.module_only) load_progress();
  if (!reads_whole_) parts().parameters->publish();
  for (std::size_t i = 0; i < table.size(); ++i)
    if (!source_.name_written_past(i).empty()) load_written_past(i);
}

}  // namespace

std::optional<LoadedCheckpoint> load_checkpoint(TrainingEngine& engine,
                                                const std::string& directory,
                                                const std::string& tag,
                                                const LoadOptions& options) {
  RECORD_USER_SCOPE("engine.load_checkpoint");
  const at::NoGradGuard no_grad;
  engine.rethrow_failure();
  auto& parts = engine.parts();
  parts.group.participant.meet(agreement::LoadCheckpoint{});
  finish_checkpoint(engine);
  const bool one_host = are_on_one_host(*parts.group.mesh.world(), kLoadCheckpoint);
  std::optional<Load> load;
  const auto said = together(*parts.group.mesh.world(), kLoadCheckpoint, [&]() -> std::string {
    check_idle(parts, kLoadCheckpoint);
    const auto meant = tag.empty() ? checkpoint::newest_tag(directory) : tag;
    if (meant) load.emplace(engine, options, SavedCheckpoint::open(directory, *meant), one_host);
    return json{{"tag", meant.value_or("")},
                {"manifest", load ? checkpoint::to_text(load->saved().digest()) : ""},
                {"module_strict", options.module_strict},
                {"optimizer_states", options.optimizer_states},
                {"lr_scheduler_states", options.lr_scheduler_states},
                {"module_only", options.module_only},
                {"check_digests", options.check_digests}}
        .dump(-1, ' ', false, json::error_handler_t::replace);
  });
  for (std::size_t rank = 1; rank < said.size(); ++rank) {
    if (said[rank] == said.front()) continue;
    throw Error(kLoadCheckpoint,
                fmt::format("expected the same checkpoint and options on every rank, got "
                            "{} on rank {} and {} on rank 0. Make the same call on every "
                            "rank, with a folder that they share.",
                            said[rank], rank, said.front()));
  }
  if (!load) return {};
  load->run();
  return LoadedCheckpoint{load->saved().folder().string(),
                          load->saved().manifest().client_state.dump()};
}

}  // namespace equigrad::core
