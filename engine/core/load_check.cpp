// What must hold of a checkpoint before any of it is written into an engine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "engine/core/load_source.hpp"
#include "engine/kernels/data_types.hpp"

namespace equigrad::core {
namespace {

class LoadCheck {
 public:
  explicit LoadCheck(const LoadSource& source) : source_(source) {}
  void run() const;

 private:
  void check_names() const;
  void check_shape(std::size_t parameter) const;
  void check_packing(std::size_t parameter) const;
  void check_parameter(std::size_t parameter) const;
  void check_optimizer() const;
  void check_client() const;
  void check_state(std::size_t parameter) const;
  void check_buffers() const;
  void check_written_past() const;
  void check_rest() const;
  void verify() const;

  const LoadSource& source_;
};

void LoadCheck::run() const {
  const auto parameters = source_.parts.model.table.size();
  check_names();
  for (std::size_t i = 0; i < parameters; ++i) {
    check_shape(i);
    check_packing(i);
  }
  if (source_.loads_optimizer()) check_optimizer();
  for (std::size_t i = 0; i < parameters; ++i) check_parameter(i);
  check_buffers();
  check_written_past();
  check_rest();
  if (source_.options.check_digests) verify();
  if (source_.options.check) source_.options.check(source_.saved.manifest().client_state.dump());
}

void LoadCheck::check_names() const {
  if (!source_.options.module_strict) return;
  std::vector<std::string> missing, unknown;
  const auto& table = source_.parts.model.table;
  for (const auto& entry : table.entries())
    if (source_.from.find(entry.name) == nullptr) missing.push_back('"' + entry.name + '"');
  for (const auto& from : source_.from.parameters)
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
                          source_.saved.folder().string(), fmt::join(wrong, ", and ")));
}

void LoadCheck::check_shape(std::size_t parameter) const {
  const auto& entry = source_.parts.model.table[parameter];
  const auto* from = source_.from.find(entry.name);
  const auto shape = whole_tensor(source_.parts, parameter).shape;
  if (from == nullptr || from->shape == shape) return;
  throw Error(kLoadCheckpoint,
              fmt::format("expected shape [{}] for \"{}\" in {}, got [{}]. It is a "
                          "checkpoint of another model.",
                          fmt::join(shape, ", "), entry.name, source_.saved.folder().string(),
                          fmt::join(from->shape, ", ")));
}

// Two readings of how matrices are packed in one: not both can be the model's.
void LoadCheck::check_packing(std::size_t parameter) const {
  const auto name = source_.name_in_file(parameter);
  const auto mine = whole_tensor(source_.parts, parameter).cut;
  if (name.empty() || !mine) return;
  const auto& saved = source_.saved.entry(name).cut;
  if (!saved || saved->dimension != mine->dimension || saved->segments == mine->segments) return;
  throw Error(kLoadCheckpoint,
              fmt::format("expected \"{}\" packed as [{}] along dimension {}, got [{}] in {}. Give "
                          "\"tensor_parallel\" the shapes that were saved.",
                          source_.parts.model.table[parameter].name,
                          fmt::join(mine->segments, ", "), mine->dimension,
                          fmt::join(saved->segments, ", "), source_.saved.folder().string()));
}

void LoadCheck::check_parameter(std::size_t parameter) const {
  const auto& entry = source_.parts.model.table[parameter];
  const auto* from = source_.from.find(entry.name);
  if (from == nullptr) return;
  const auto name = source_.name_in_file(parameter);
  if (entry.numel == 0) return;
  if (name.empty()) {
    if (!source_.options.module_strict) return;
    throw Error(kLoadCheckpoint,
                fmt::format("expected the values of \"{}\" in {}, got a checkpoint that "
                            "was saved without its frozen parameters. Load it with "
                            "load_module_strict false.",
                            entry.name, source_.saved.folder().string()));
  }
  if (source_.saved.entry(name).shape != whole_tensor(source_.parts, parameter).shape) {
    throw Error(kLoadCheckpoint,
                fmt::format("expected \"{}\" of one shape in {}, got two. Load another "
                            "tag.",
                            name, source_.saved.folder().string()));
  }
  const auto dtype = entry.trainable ? source_.parts.optimizer.masters().scalar_type()
                                     : source_.parts.model.tensors[parameter].scalar_type();
  const bool same = scalar_type_of(source_.saved.entry(name).type) == dtype;
  if (same || !source_.loads_optimizer() || from->trainable != entry.trainable) return;
  throw Error(
      kLoadCheckpoint,
      fmt::format("expected \"{}\" as {}, got {}: rounding it would make another "
                  "run of this one. Configure the precision that was saved, or "
                  "load without optimizer states.",
                  name, c10::toString(dtype), checkpoint::to_text(source_.saved.entry(name).type)));
}

void LoadCheck::check_optimizer() const {
  auto& optimizer = source_.parts.optimizer;
  const auto& groups = optimizer.hyper_parameters();
  const auto param_type =
      checkpoint::to_text(element_type_of(torch_dtype(source_.parts.config.precision.param), ""));
  if (source_.from.param_type != param_type) {
    throw Error(kLoadCheckpoint,
                fmt::format("expected a checkpoint of a run that computes in {}, got one "
                            "that computes in {}: it would not be the same run. Configure "
                            "the precision that was saved, or load without optimizer "
                            "states.",
                            param_type, source_.from.param_type));
  }
  if (source_.client != nullptr || source_.from.client) {
    check_client();
  } else if (groups.front().kind != source_.from.groups.front().kind ||
             groups.size() != source_.from.groups.size()) {
    throw Error(kLoadCheckpoint,
                fmt::format("expected an optimizer of this kind with {} parameter groups, "
                            "got \"{}\" with {}. Configure what was saved, or load without "
                            "optimizer states.",
                            groups.size(), source_.from.optimizer, source_.from.groups.size()));
  }
  for (std::size_t i = 0; i < source_.parts.model.table.size(); ++i) check_state(i);
}

void LoadCheck::check_client() const {
  const std::string configured = "the configured optimizer";
  const auto mine = source_.client != nullptr ? source_.client->optimizer().kind() : configured;
  const auto saved = source_.from.client ? source_.from.client->kind : configured;
  const bool is_other = (source_.client == nullptr) != !source_.from.client || mine != saved;
  const auto groups = source_.parts.optimizer.lr().size();
  if (!is_other && groups == source_.from.client->rates.size()) return;
  throw Error(
      kLoadCheckpoint,
      fmt::format("expected states of {}{}, got those of {}{}. Give initialize() an "
                  "optimizer like that which saved, or load without optimizer states.",
                  mine, is_other ? "" : fmt::format(" with {} groups", groups), saved,
                  is_other ? "" : fmt::format(" with {}", source_.from.client->rates.size())));
}

void LoadCheck::check_state(std::size_t parameter) const {
  const auto& entry = source_.parts.model.table[parameter];
  const auto* from = source_.from.find(entry.name);
  if (from == nullptr) return;
  if (from->trainable != entry.trainable || from->group != entry.group || from->steps < 0) {
    throw Error(kLoadCheckpoint,
                fmt::format("expected \"{}\" {} in group {}, got it {} in group {}. Load "
                            "it into what was saved, or without optimizer states.",
                            entry.name, entry.trainable ? "trained" : "frozen", entry.group,
                            from->trainable ? "trained" : "frozen", from->group));
  }
  if (!entry.trainable || entry.numel == 0) return;
  const auto shape = whole_tensor(source_.parts, parameter).shape;
  const auto names = source_.states_of(parameter);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& state = source_.saved.entry(state_name(names[i], from->name));
    // A client's states are made as they come.
    const auto dtype = source_.client != nullptr
                           ? scalar_type_of(state.type)
                           : source_.parts.optimizer.state(parameter, i).scalar_type();
    if (state.shape == shape && scalar_type_of(state.type) == dtype) continue;
    throw Error(kLoadCheckpoint,
                fmt::format("expected \"{}\" as {} of the parameter's shape, got {}. "
                            "Configure what was saved, or load without optimizer states.",
                            state.name, c10::toString(dtype), checkpoint::to_text(state.type)));
  }
}

void LoadCheck::check_buffers() const {
  std::set<std::string> mine;
  for (const auto& [name, tensor] : source_.buffers) {
    const auto full = buffer_name(source_.source_rank(), name);
    mine.insert(full);
    if (tensor.numel() == 0 || (!source_.options.module_strict && !source_.saved.has(full)))
      continue;
    const auto& entry = source_.saved.entry(full);
    if (entry.shape == tensor.sizes().vec() && scalar_type_of(entry.type) == tensor.scalar_type())
      continue;
    throw Error(
        kLoadCheckpoint,
        fmt::format("expected buffer \"{}\" as {} of shape [{}], got {} of [{}]. "
                    "It is a checkpoint of another model.",
                    name, c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                    checkpoint::to_text(entry.type), fmt::join(entry.shape, ", ")));
  }
  if (!source_.options.module_strict) return;
  const auto prefix = buffer_name(source_.source_rank(), "");
  for (const auto& entry : source_.saved.manifest().tensors) {
    if (!entry.name.starts_with(prefix) || mine.contains(entry.name)) continue;
    throw Error(kLoadCheckpoint,
                fmt::format("expected the buffers of this model, got \"{}\" too. Load it "
                            "into the model that was saved, or with load_module_strict "
                            "false.",
                            entry.name.substr(prefix.size())));
  }
}

// What else run() would find out too late.
void LoadCheck::check_written_past() const {
  for (std::size_t i = 0; i < source_.parts.model.table.size(); ++i) {
    const auto name = source_.name_written_past(i);
    if (name.empty()) continue;
    const auto& entry = source_.parts.model.table[i];
    if (source_.saved.entry(name).shape != whole_tensor(source_.parts, i).shape)
      throw Error(kLoadCheckpoint, "expected \"" + name + "\" in the shape of \"" + entry.name +
                                       "\", got another one. Load another tag.");
    if (source_.parts.stage().parameters_sharded)
      throw Error(kLoadCheckpoint,
                  "expected parameters that are their master weights, rounded, as stage 3 has no "
                  "others, got \"" +
                      entry.name +
                      "\", which was written past the engine before it was saved. Load it at "
                      "stage 0, 1 or 2, take a step and save it there, or load an export of it.");
  }
}

void LoadCheck::check_rest() const {
  if (source_.options.module_only) return;
  if (source_.from.counters.micro_steps < 0 || source_.from.counters.global_steps < 0 ||
      source_.from.counters.skipped_steps < 0 || source_.from.last_batch_iteration.value_or(0) < -1)
    throw Error(kLoadCheckpoint, "expected counts of steps, got negative ones. Load another tag.");
  if (source_.loads_optimizer() &&
      source_.from.loss_scale_policy == to_text(*source_.parts.loss.scaler))
    loss::LossScaler(source_.parts.config.precision.loss_scale).restore(source_.from.loss_scale);
  if (source_.from.theta && source_.parts.schedules.layer_drop)
    schedule::ProgressiveLayerDrop(source_.parts.config.progressive_layer_drop)
        .restore(*source_.from.theta);
  if (source_.loads_optimizer()) {
    auto checked = source_.parts.config;
    for (const auto& group : source_.from.groups) {
      checked.optimizer = group;
      validate(checked, source_.parts.world_size());
    }
  }
}

// Every element by one rank at least: what is wrong for one is loaded by none.
void LoadCheck::verify() const {
  for (std::size_t i = 0; i < source_.parts.model.table.size(); ++i) {
    const auto& entry = source_.parts.model.table[i];
    const auto name = source_.name_in_file(i);
    if (name.empty() || entry.numel == 0) continue;
    const auto whole = whole_tensor(source_.parts, i);
    if (!entry.trainable) {
      source_.saved.verify(name, stretches(whole, {0, entry.numel}));
      continue;
    }
    const auto kept = stretches(whole, kept_part(source_.parts, i).range);
    source_.saved.verify(name, kept);
    if (const auto written = source_.name_written_past(i); !written.empty())
      source_.saved.verify(written, stretches(whole, {0, entry.numel}));
    if (!source_.loads_optimizer()) continue;
    for (const auto& state : source_.states_of(i))
      source_.saved.verify(state_name(state, source_.from.find(entry.name)->name), kept);
  }
  for (const auto& entry : source_.saved.manifest().tensors)
    if (entry.name.starts_with(fmt::format("rank{}/", source_.source_rank())))
      source_.saved.verify(entry.name, 0, checkpoint::numel_of(entry.shape));
}

}  // namespace

void check_load(const LoadSource& source) { LoadCheck(source).run(); }

}  // namespace equigrad::core
