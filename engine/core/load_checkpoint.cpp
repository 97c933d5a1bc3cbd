#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/core/checkpoints.hpp"
#include "engine/core/saved_engine.hpp"
#include "engine/core/together.hpp"
#include "engine/core/training_engine.hpp"
#include "engine/kernels/data_types.hpp"

namespace equigrad::core {
namespace {

using checkpoint::Path;
using checkpoint::SavedCheckpoint;
using nlohmann::json;

constexpr auto kLoadCheckpoint = "load_checkpoint";

// Reads elements [begin, begin + into.numel()) into a flat tensor, of whatever type, device and
// strides.
void read_into(const SavedCheckpoint& saved, const std::string& name, int64_t begin,
               const at::Tensor& into) {
  const auto type = scalar_type_of(saved.entry(name).type);
  const bool at_once = into.is_cpu() && into.is_contiguous() && into.scalar_type() == type;
  const auto here = at_once ? into : at::empty({into.numel()}, at::TensorOptions().dtype(type));
  if (into.numel() > 0) saved.read(name, begin, begin + into.numel(), here.mutable_data_ptr());
  if (!at_once) into.copy_(here.view(into.sizes()));
}

class Load {
 public:
  // Everything that can fail: nothing is written.
  Load(TrainingEngine& engine, const LoadOptions& options, SavedCheckpoint saved, bool one_host);
  void run();
  const SavedCheckpoint& saved() const { return saved_; }

 private:
  bool loads_optimizer() const { return options_.optimizer_states && !options_.module_only; }
  std::string name_in_file(std::size_t parameter) const;
  std::vector<std::string> states_of(std::size_t parameter) const;
  void check_names() const;
  void check_shape(std::size_t parameter) const;
  void check_parameter(std::size_t parameter) const;
  void check_optimizer() const;
  void check_client() const;
  void check_state(std::size_t parameter) const;
  void check_buffers() const;
  void check_rest() const;
  void verify() const;
  int source_rank() const;
  void load_trained(std::size_t parameter);
  void load_whole(std::size_t parameter);
  void load_frozen(std::size_t parameter);
  void load_state(std::size_t parameter);
  void load_state_of_client(std::size_t parameter);
  void load_of_rank();
  void load_progress();

  Parts& parts_;
  const LoadOptions& options_;
  SavedCheckpoint saved_;
  SavedEngine from_;
  std::vector<NamedTensor> buffers_;
  optimizer::ClientState* client_;  // null: the optimizer is the configured one
  bool reads_whole_;  // every rank all of a trained parameter, where ranks would gather it
};

Load::Load(TrainingEngine& engine, const LoadOptions& options, SavedCheckpoint saved, bool one_host)
    : parts_(engine.parts()),
      options_(options),
      saved_(std::move(saved)),
      from_(saved_engine_from(saved_.manifest().engine,
                              (saved_.folder() / checkpoint::kManifestName).string())),
      buffers_(all_buffers(parts_, options.buffers, kLoadCheckpoint)),
      client_(client_of(parts_.optimizer)),
      reads_whole_(one_host && parts_.model.plan.shards() > 1 &&
                   !parts_.stage().parameters_sharded) {
  check_names();
  for (std::size_t i = 0; i < parts_.model.table.size(); ++i) check_shape(i);
  if (loads_optimizer()) check_optimizer();
  for (std::size_t i = 0; i < parts_.model.table.size(); ++i) check_parameter(i);
  check_buffers();
  check_rest();
  verify();
  if (options_.check) options_.check(saved_.manifest().client_state.dump());
}

// Of the optimizer, as large as the parameter, by name.
std::vector<std::string> Load::states_of(std::size_t parameter) const {
  if (client_ == nullptr) return parts_.optimizer.state_names(parameter);
  const auto* from = from_.find(parts_.model.table[parameter].name);
  return from == nullptr ? std::vector<std::string>() : from_.of_client(*from).states;
}

// Where the values of a parameter are: of one that was trained its master; empty: nowhere.
std::string Load::name_in_file(std::size_t parameter) const {
  const auto* from = from_.find(parts_.model.table[parameter].name);
  if (from == nullptr) return {};
  const auto name = from->trainable ? master_name(from->name) : frozen_name(from->name);
  return saved_.has(name) ? name : std::string();
}

void Load::check_names() const {
  if (!options_.module_strict) return;
  std::vector<std::string> missing, unknown;
  const auto& table = parts_.model.table;
  for (const auto& entry : table.entries())
    if (from_.find(entry.name) == nullptr) missing.push_back('"' + entry.name + '"');
  for (const auto& from : from_.parameters)
    if (!table.contains(from.name)) unknown.push_back('"' + from.name + '"');
  if (missing.empty() && unknown.empty()) return;
  std::vector<std::string> wrong;
  if (!missing.empty()) wrong.push_back(fmt::format("none called {}", fmt::join(missing, ", ")));
  if (!unknown.empty())
    wrong.push_back(fmt::format("{}, which the model has not", fmt::join(unknown, ", ")));
  throw Error(kLoadCheckpoint,
              fmt::format("expected the parameters of this model in {}, got {}. Load it "
                          "into the model that was saved, or with load_module_strict "
                          "false.",
                          saved_.folder().string(), fmt::join(wrong, ", and ")));
}

void Load::check_shape(std::size_t parameter) const {
  const auto& entry = parts_.model.table[parameter];
  const auto* from = from_.find(entry.name);
  if (from == nullptr || from->shape == entry.shape) return;
  throw Error(kLoadCheckpoint,
              fmt::format("expected shape [{}] for \"{}\" in {}, got [{}]. It is a "
                          "checkpoint of another model.",
                          fmt::join(entry.shape, ", "), entry.name, saved_.folder().string(),
                          fmt::join(from->shape, ", ")));
}

void Load::check_parameter(std::size_t parameter) const {
  const auto& entry = parts_.model.table[parameter];
  const auto* from = from_.find(entry.name);
  if (from == nullptr) return;
  const auto name = name_in_file(parameter);
  if (entry.numel == 0) return;
  if (name.empty()) {
    if (!options_.module_strict) return;
    throw Error(kLoadCheckpoint,
                fmt::format("expected the values of \"{}\" in {}, got a checkpoint that "
                            "was saved without its frozen parameters. Load it with "
                            "load_module_strict false.",
                            entry.name, saved_.folder().string()));
  }
  if (saved_.entry(name).shape != entry.shape) {
    throw Error(kLoadCheckpoint,
                fmt::format("expected \"{}\" of one shape in {}, got two. Load another "
                            "tag.",
                            name, saved_.folder().string()));
  }
  const auto dtype = entry.trainable ? parts_.optimizer.masters().scalar_type()
                                     : parts_.model.tensors[parameter].scalar_type();
  const bool same = scalar_type_of(saved_.entry(name).type) == dtype;
  if (same || !loads_optimizer() || from->trainable != entry.trainable) return;
  throw Error(
      kLoadCheckpoint,
      fmt::format("expected \"{}\" as {}, got {}: rounding it would make another "
                  "run of this one. Configure the precision that was saved, or "
                  "load without optimizer states.",
                  name, c10::toString(dtype), checkpoint::to_text(saved_.entry(name).type)));
}

void Load::check_optimizer() const {
  auto& optimizer = parts_.optimizer;
  const auto& groups = optimizer.hyper_parameters();
  const auto param_type =
      checkpoint::to_text(element_type_of(torch_dtype(parts_.config.precision.param), ""));
  if (from_.param_type != param_type) {
    throw Error(kLoadCheckpoint,
                fmt::format("expected a checkpoint of a run that computes in {}, got one "
                            "that computes in {}: it would not be the same run. Configure "
                            "the precision that was saved, or load without optimizer "
                            "states.",
                            param_type, from_.param_type));
  }
  if (client_ != nullptr || from_.client) {
    check_client();
  } else if (groups.front().kind != from_.groups.front().kind ||
             groups.size() != from_.groups.size()) {
    throw Error(kLoadCheckpoint,
                fmt::format("expected an optimizer of this kind with {} parameter groups, "
                            "got \"{}\" with {}. Configure what was saved, or load without "
                            "optimizer states.",
                            groups.size(), from_.optimizer, from_.groups.size()));
  }
  for (std::size_t i = 0; i < parts_.model.table.size(); ++i) check_state(i);
}

void Load::check_client() const {
  const std::string configured = "the configured optimizer";
  const auto mine = client_ != nullptr ? client_->optimizer().kind() : configured;
  const auto saved = from_.client ? from_.client->kind : configured;
  const bool is_other = (client_ == nullptr) != !from_.client || mine != saved;
  const auto groups = parts_.optimizer.lr().size();
  if (!is_other && groups == from_.client->rates.size()) return;
  throw Error(kLoadCheckpoint,
              fmt::format("expected states of {}{}, got those of {}{}. Give initialize() an "
                          "optimizer like that which saved, or load without optimizer states.",
                          mine, is_other ? "" : fmt::format(" with {} groups", groups), saved,
                          is_other ? "" : fmt::format(" with {}", from_.client->rates.size())));
}

void Load::check_state(std::size_t parameter) const {
  const auto& entry = parts_.model.table[parameter];
  const auto* from = from_.find(entry.name);
  if (from == nullptr) return;
  if (from->trainable != entry.trainable || from->group != entry.group || from->steps < 0) {
    throw Error(kLoadCheckpoint,
                fmt::format("expected \"{}\" {} in group {}, got it {} in group {}. Load "
                            "it into what was saved, or without optimizer states.",
                            entry.name, entry.trainable ? "trained" : "frozen", entry.group,
                            from->trainable ? "trained" : "frozen", from->group));
  }
  if (!entry.trainable || entry.numel == 0) return;
  const auto names = states_of(parameter);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& state = saved_.entry(state_name(names[i], from->name));
    // A client's states are made as they come.
    const auto dtype = client_ != nullptr ? scalar_type_of(state.type)
                                          : parts_.optimizer.state(parameter, i).scalar_type();
    if (state.shape == entry.shape && scalar_type_of(state.type) == dtype) continue;
    throw Error(kLoadCheckpoint,
                fmt::format("expected \"{}\" as {} of the parameter's shape, got {}. "
                            "Configure what was saved, or load without optimizer states.",
                            state.name, c10::toString(dtype), checkpoint::to_text(state.type)));
  }
}

void Load::check_buffers() const {
  std::set<std::string> mine;
  for (const auto& [name, tensor] : buffers_) {
    const auto full = buffer_name(source_rank(), name);
    mine.insert(full);
    if (tensor.numel() == 0 || (!options_.module_strict && !saved_.has(full))) continue;
    const auto& entry = saved_.entry(full);
    if (entry.shape == tensor.sizes().vec() && scalar_type_of(entry.type) == tensor.scalar_type())
      continue;
    throw Error(
        kLoadCheckpoint,
        fmt::format("expected buffer \"{}\" as {} of shape [{}], got {} of [{}]. "
                    "It is a checkpoint of another model.",
                    name, c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                    checkpoint::to_text(entry.type), fmt::join(entry.shape, ", ")));
  }
  if (!options_.module_strict) return;
  const auto prefix = buffer_name(source_rank(), "");
  for (const auto& entry : saved_.manifest().tensors) {
    if (!entry.name.starts_with(prefix) || mine.contains(entry.name)) continue;
    throw Error(kLoadCheckpoint,
                fmt::format("expected the buffers of this model, got \"{}\" too. Load it "
                            "into the model that was saved, or with load_module_strict "
                            "false.",
                            entry.name.substr(prefix.size())));
  }
}

// What else run() would find out too late.
void Load::check_rest() const {
  if (options_.module_only) return;
  if (from_.counters.micro_steps < 0 || from_.counters.global_steps < 0 ||
      from_.counters.skipped_steps < 0 || from_.last_batch_iteration.value_or(0) < -1)
    throw Error(kLoadCheckpoint, "expected counts of steps, got negative ones. Load another tag.");
  if (loads_optimizer() && from_.loss_scale_policy == to_text(*parts_.loss.scaler))
    loss::LossScaler(parts_.config.precision.loss_scale).restore(from_.loss_scale);
  if (from_.theta && parts_.schedules.layer_drop)
    schedule::ProgressiveLayerDrop(parts_.config.progressive_layer_drop).restore(*from_.theta);
  if (loads_optimizer()) {
    auto checked = parts_.config;
    for (const auto& group : from_.groups) {
      checked.optimizer = group;
      validate(checked, parts_.world_size());
    }
  }
}

// Every element by one rank at least: what is wrong for one is loaded by none.
void Load::verify() const {
  for (std::size_t i = 0; i < parts_.model.table.size(); ++i) {
    const auto& entry = parts_.model.table[i];
    const auto name = name_in_file(i);
    if (name.empty() || entry.numel == 0) continue;
    if (!entry.trainable) {
      saved_.verify(name, 0, entry.numel);
      continue;
    }
    const auto [begin, end] = kept_part(parts_, i).range;
    saved_.verify(name, begin, end);
    if (!loads_optimizer()) continue;
    for (const auto& state : states_of(i))
      saved_.verify(state_name(state, from_.find(entry.name)->name), begin, end);
  }
  for (const auto& entry : saved_.manifest().tensors)
    if (entry.name.starts_with(fmt::format("rank{}/", source_rank())))
      saved_.verify(entry.name, 0, checkpoint::numel_of(entry.shape));
}

// Whose own tensors this rank takes.
int Load::source_rank() const {
  const auto& communicator = *parts_.group.communicator;
  return saved_.manifest().world_size == communicator.world_size() ? communicator.rank() : 0;
}

void Load::load_trained(std::size_t parameter) {
  const auto part = kept_part(parts_, parameter);
  const auto masters = parts_.optimizer.masters().narrow(0, part.begin, part.range.numel());
  read_into(saved_, name_in_file(parameter), part.range.begin, masters);
}

// What publish() would leave, without asking other ranks.
void Load::load_whole(std::size_t parameter) {
  const auto& entry = parts_.model.table[parameter];
  const auto tensor = parts_.model.tensors[parameter].detach();
  const auto type = parts_.optimizer.masters().scalar_type();
  const bool in_place = tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == type;
  const auto flat = in_place ? tensor.view({-1}) : at::empty({entry.numel}, type);
  read_into(saved_, name_in_file(parameter), 0, flat);
  const auto seen = parts_.parameters->as_seen(flat.to(tensor.device()), entry.lower_precision);
  if (!in_place || !seen.is_same(flat)) tensor.copy_(seen.view(tensor.sizes()));
  tensor.unsafeGetTensorImpl()->bump_version();  // as any other update in place
}

// One at a time: whole on every rank while it is written.
void Load::load_frozen(std::size_t parameter) {
  const auto& entry = parts_.model.table[parameter];
  const auto name = name_in_file(parameter);
  parts_.parameters->pin(parameter);
  parts_.group.participant.meet(agreement::GatherStands{});
  const auto whole = parts_.model.tensors[parameter].detach();
  if (from_.find(entry.name)->trainable) {
    const auto master = at::empty({entry.numel}, scalar_type_of(saved_.entry(name).type));
    read_into(saved_, name, 0, master);
    whole.copy_(parts_.parameters->as_seen(master.to(whole.device()), entry.lower_precision)
                    .view(entry.shape));
  } else {
    const auto flat = at::empty({entry.numel}, whole.options().device(at::kCPU));
    read_into(saved_, name, 0, flat);
    whole.copy_(flat.view(entry.shape));
  }
  parts_.parameters->unpin(parameter, /*keep=*/true);
}

void Load::load_state(std::size_t parameter) {
  if (client_ != nullptr) {
    load_state_of_client(parameter);
    return;
  }
  auto& optimizer = parts_.optimizer;
  const auto names = optimizer.state_names(parameter);
  const auto range = kept_part(parts_, parameter).range;
  const auto* from = from_.find(parts_.model.table[parameter].name);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto state = optimizer.state(parameter, i).narrow(0, 0, range.numel());
    if (loads_optimizer())
      read_into(saved_, state_name(names[i], from->name), range.begin, state);
    else
      state.zero_();
  }
  optimizer.steps()[parameter] = loads_optimizer() ? from->steps : 0;
}

// Without the saved states it keeps its own: nobody else knows how they begin.
void Load::load_state_of_client(std::size_t parameter) {
  const auto* from = from_.find(parts_.model.table[parameter].name);
  if (!loads_optimizer() || from == nullptr) return;
  const auto range = kept_part(parts_, parameter).range;
  const auto& masters = parts_.optimizer.masters();
  SliceStates states;
  for (const auto& name : states_of(parameter)) {
    const auto full = state_name(name, from->name);
    const auto type = scalar_type_of(saved_.entry(full).type);
    states[name] = at::empty({range.numel()}, masters.options().dtype(type));
    read_into(saved_, full, range.begin, states[name]);
  }
  client_->restore(parameter, states, from_.of_client(*from).numbers);
}

void Load::load_of_rank() {
  for (const auto& [name, tensor] : buffers_) {
    const auto full = buffer_name(source_rank(), name);
    if (tensor.numel() > 0 && saved_.has(full)) read_into(saved_, full, 0, tensor.detach());
  }
  if (options_.module_only || saved_.manifest().world_size != parts_.world_size()) return;
  for (const auto& device : random_devices(parts_)) {
    const auto name = rng_name(source_rank(), device.is_cpu() ? "cpu" : "cuda");
    if (!saved_.has(name)) continue;
    const auto state = at::empty(saved_.entry(name).shape, at::kByte);
    read_into(saved_, name, 0, state);
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

// Rates come last: those of the groups, which set_lr() may have set, and not the schedule's.
void Load::load_progress() {
  auto& [counters, applied, norm] = parts_.outcome;
  counters.micro_steps = from_.counters.micro_steps;
  counters.global_steps = from_.counters.global_steps;
  counters.skipped_steps = from_.counters.skipped_steps;
  applied = from_.applied;
  norm = from_.norm;
  auto& schedules = parts_.schedules;
  if (schedules.layer_drop && from_.theta) schedules.layer_drop->restore(*from_.theta);
  if (schedules.rates && options_.lr_scheduler_states && from_.last_batch_iteration) {
    auto at = *parts_.config.scheduler;
    at.last_batch_iteration = *from_.last_batch_iteration;
    schedules.rates = schedule::make_schedule(at, schedules.configured_lr);
    parts_.set_rates();
  }
  if (!loads_optimizer()) return;
  if (from_.loss_scale_policy == to_text(*parts_.loss.scaler))
    parts_.loss.scaler->restore(from_.loss_scale);
  if (client_ != nullptr) {
    if (options_.lr_scheduler_states || !schedules.rates)
      parts_.optimizer.set_rates(from_.client->rates, {});
    return;
  }
  auto& groups = parts_.optimizer.hyper_parameters();
  const auto rates = groups;
  groups = from_.groups;
  if (!options_.lr_scheduler_states && schedules.rates) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      groups[i].lr = rates[i].lr;
      groups[i].beta1 = rates[i].beta1;
    }
  }
}

void Load::run() {
  const auto& table = parts_.model.table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (name_in_file(i).empty() || table[i].numel == 0) continue;
    if (!table[i].trainable) {
      load_frozen(i);
      continue;
    }
    load_trained(i);
    if (reads_whole_) load_whole(i);
    if (!options_.module_only) load_state(i);
  }
  load_of_rank();
  if (!options_.module_only) load_progress();
  if (!reads_whole_) parts_.parameters->publish();
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
  const bool one_host = are_on_one_host(*parts.group.communicator, kLoadCheckpoint);
  std::optional<Load> load;
  const auto said = together(*parts.group.communicator, kLoadCheckpoint, [&]() -> std::string {
    check_idle(parts, kLoadCheckpoint);
    const auto meant = tag.empty() ? checkpoint::newest_tag(directory) : tag;
    if (meant) load.emplace(engine, options, SavedCheckpoint::open(directory, *meant), one_host);
    return json{{"tag", meant.value_or("")},
                {"manifest", load ? checkpoint::to_text(load->saved().digest()) : ""},
                {"module_strict", options.module_strict},
                {"optimizer_states", options.optimizer_states},
                {"lr_scheduler_states", options.lr_scheduler_states},
                {"module_only", options.module_only}}
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
