#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/core/checkpoints.hpp"
#include "engine/core/pending_save.hpp"
#include "engine/core/saved_engine.hpp"
#include "engine/core/together.hpp"
#include "engine/core/training_engine.hpp"
#include "engine/core/whole_tensor.hpp"

namespace equigrad::core {
namespace {

using checkpoint::ElementType;
using checkpoint::PieceHeader;
using nlohmann::json;

std::string random_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

json parsed_client_state(const std::string& text) {
  auto parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_discarded()) return parsed;
  throw Error(kSaveCheckpoint, "expected a client_state that is JSON, got \"" +
                                   text.substr(0, 100) + "\". Give an object, or \"null\".");
}

// Of an optimizer of the caller's: it says itself what it has and cannot give.
void check_can_be_saved(Parts& parts) {
  const auto* client = client_of(parts.optimizer);
  if (client == nullptr) return;
  for (std::size_t i = 0; i < parts.model.table.size(); ++i) {
    static_cast<void>(client->numbers(i));
    for (const auto& name : client->names(i)) {
      if (!is_reserved(name)) continue;
      throw Error(kSaveCheckpoint, "expected another name for an optimizer's state than \"" + name +
                                       "\", which a checkpoint's own tensors have. Rename it.");
    }
  }
}

// This rank's part to write of a trained parameter, as the model has it. Where parameters are
// sharded nobody writes into one but through the engine.
at::Tensor as_computed(const Parts& parts, std::size_t parameter) {
  const auto range = written_part(parts, parameter).range;
  return parts.model.tensors[parameter].detach().reshape({-1}).narrow(0, range.begin,
                                                                      range.numel());
}

// Whether its bits are others than those that the masters say.
bool is_written_past(const Parts& parts, std::size_t parameter) {
  const auto& entry = parts.model.table[parameter];
  const auto part = written_part(parts, parameter);
  if (!entry.trainable || parts.stage().parameters_sharded || part.range.numel() == 0) return false;
  const auto master = parts.optimizer.masters().narrow(0, part.begin, part.range.numel());
  const auto held = as_computed(parts, parameter).contiguous();
  const auto seen =
      parts.parameters->as_seen(master.to(held.device()), entry.lower_precision).contiguous();
  if (held.scalar_type() != seen.scalar_type()) return true;  // the caller has put another there
  if (held.is_cpu())                                          // a tenth of at::equal()'s time
    return std::memcmp(held.const_data_ptr(), seen.const_data_ptr(), held.nbytes()) != 0;
  return !held.view(at::kByte).equal(seen.view(at::kByte));
}

// Names, of this rank's parts.
json written_past(const Parts& parts) {
  json names = json::array();
  for (std::size_t i = 0; i < parts.model.table.size(); ++i)
    if (is_written_past(parts, i)) names.push_back(parts.model.table[i].name);
  return names;
}

// What this rank writes of an engine.
class Pieces {
 public:
  Pieces(TrainingEngine& engine, const SaveOptions& options)
      : engine_(engine), parts_(engine.parts()), options_(options) {}
  // `written_past`: the trained parameters that are saved as the model has them, too.
  std::vector<PieceSource> all(const std::set<std::string>& written_past) const;

 private:
  void add(std::vector<PieceSource>& all, std::size_t parameter, const std::string& name,
           const at::Tensor& flat) const;
  void add_trained(std::vector<PieceSource>& all, std::size_t parameter) const;
  void add_frozen(std::vector<PieceSource>& all, std::size_t parameter) const;
  void add_of_rank(std::vector<PieceSource>& all) const;

  TrainingEngine& engine_;
  Parts& parts_;
  const SaveOptions& options_;
};

// Of this rank's part of a trained parameter.
void Pieces::add(std::vector<PieceSource>& all, std::size_t parameter, const std::string& name,
                 const at::Tensor& flat) const {
  const auto range = written_part(parts_, parameter).range;
  const auto whole = whole_tensor(parts_, parameter);
  all.push_back({{.name = name,
                  .type = element_type_of(flat.scalar_type(), name),
                  .shape = whole.shape,
                  .begin = range.begin,
                  .end = range.end,
                  .cut = whole.cut,
                  .part = whole.part},
                 [flat] { return flat; }});
}

void Pieces::add_trained(std::vector<PieceSource>& all, std::size_t parameter) const {
  const auto& name = parts_.model.table[parameter].name;
  const auto part = written_part(parts_, parameter);
  if (part.range.numel() == 0) return;
  auto& optimizer = parts_.optimizer;
  add(all, parameter, master_name(name),
      optimizer.masters().narrow(0, part.begin, part.range.numel()));
  const auto states = optimizer.state_names(parameter);
  const auto skipped = part.begin - kept_part(parts_, parameter).begin;  // of the whole, stage 0
  for (std::size_t i = 0; i < states.size(); ++i) {
    add(all, parameter, state_name(states[i], name),
        optimizer.state(parameter, i).narrow(0, skipped, part.range.numel()));
  }
}

void Pieces::add_frozen(std::vector<PieceSource>& all, std::size_t parameter) const {
  const auto& entry = parts_.model.table[parameter];
  const auto& ranks = *parts_.group.mesh.world();
  const auto shape = whole_tensor(parts_, parameter).shape;
  const auto range =
      layout::Partition(checkpoint::numel_of(shape), ranks.world_size()).range(ranks.rank());
  const auto name = parameter_name(entry.name);
  all.push_back(
      {{.name = name,
        .type = element_type_of(parts_.model.tensors[parameter].scalar_type(), entry.name),
        .shape = shape,
        .begin = range.begin,
        .end = range.end},
       [&engine = engine_, range, parameter = entry.name] {
         return engine.full_parameter(parameter).reshape({-1}).narrow(0, range.begin,
                                                                      range.numel());
       }});
}

void Pieces::add_of_rank(std::vector<PieceSource>& all) const {
  const auto rank = parts_.group.mesh.world()->rank();
  const auto add = [&](const std::string& name, const at::Tensor& values) {
    if (values.numel() == 0) return;
    all.push_back({{.name = name,
                    .type = element_type_of(values.scalar_type(), name),
                    .shape = values.sizes().vec(),
                    .begin = 0,
                    .end = values.numel()},
                   [values] { return values; }});
  };
  for (const auto& [name, tensor] : all_buffers(parts_, options_.buffers, kSaveCheckpoint))
    add(buffer_name(rank, name), tensor.detach());
  for (const auto& device : random_devices(parts_)) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    add(rng_name(rank, device.is_cpu() ? "cpu" : "cuda"), generator.get_state());
  }
}

// Larger elements first, so that each lies where its type may be read in place.
std::vector<PieceSource> Pieces::all(const std::set<std::string>& written_past) const {
  std::vector<PieceSource> all;
  const auto& table = parts_.model.table;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].numel == 0) continue;
    if (table[i].trainable)
      add_trained(all, i);
    else if (!options_.exclude_frozen_parameters)
      add_frozen(all, i);
    if (written_past.contains(table[i].name) && written_part(parts_, i).range.numel() > 0)
      add(all, i, parameter_name(table[i].name), as_computed(parts_, i));
  }
  add_of_rank(all);
  std::stable_sort(all.begin(), all.end(), [](const PieceSource& a, const PieceSource& b) {
    return checkpoint::element_bytes(a.header.type) > checkpoint::element_bytes(b.header.type);
  });
  return all;
}

// The ranks of a tensor group have parts of one parameter, which has had as many updates on each.
void check_steps(const json& mine, const json& first, int rank) {
  for (const auto& [name, steps] : first.items()) {
    if (mine.value(name, steps) == steps) continue;
    throw Error(
        kSaveCheckpoint,
        fmt::format("expected as many updates of \"{}\" on every rank, got {} on rank {} and "
                    "{} on rank 0: a part of it had no gradient. Save with a model that uses "
                    "all parts of it or none.",
                    name, mine.value(name, steps).dump(), rank, steps.dump()));
  }
}

// By name.
json steps_of(Parts& parts) {
  json steps = json::object();
  for (std::size_t i = 0; i < parts.model.table.size(); ++i)
    steps[parts.model.table[i].name] = parts.optimizer.steps()[i];
  return steps;
}

// Said by every rank, and the same on all but for the id, which is rank 0's, and what has been
// written past the engine, which is of each rank's parts.
SaveAgreement agreed(const std::vector<std::string>& said) {
  const auto first = json::parse(said.front());
  for (std::size_t rank = 1; rank < said.size(); ++rank) {
    auto other = json::parse(said[rank]);
    check_steps(other["steps"], first["steps"], static_cast<int>(rank));
    other["id"] = first["id"];
    other["written_past"] = first["written_past"];
    if (other == first) continue;
    throw Error(kSaveCheckpoint,
                fmt::format("expected the same directory, tag and options on every rank, "
                            "got {} on rank {} and {} on rank 0. Make the same call on "
                            "every rank.",
                            other.dump(), rank, first.dump()));
  }
  return {.directory = first["directory"],
          .tag = first["tag"],
          .id = first["id"],
          .save_latest = first["save_latest"]};
}

// By any rank.
std::set<std::string> all_written_past(const std::vector<std::string>& said) {
  std::set<std::string> names;
  for (const auto& one : said) {
    const auto words = json::parse(one);
    for (const auto& name : words["written_past"]) names.insert(name);
  }
  return names;
}

std::shared_ptr<checkpoint::Storage> storage_of(const SaveOptions& options) {
  if (options.storage) return options.storage;
  return {std::shared_ptr<void>(), &checkpoint::disk()};  // which is there for good
}

}  // namespace

std::vector<at::Device> random_devices(const Parts& parts) {
  const auto device = parts.group.communicator->device();
  if (device.is_cpu()) return {at::Device(at::kCPU)};
  return {at::Device(at::kCPU), device};
}

void check_idle(const Parts& parts, const std::string& where) {
  parts.inspection.gathering.check_closed("engine." + where);
  const auto passes = parts.window.progress().passes;
  if (passes != 0 || !parts.schedules.micro_batches.is_between_windows()) {
    throw Error(where, fmt::format("expected to be between two accumulation windows, got one with "
                                   "{} backward passes. Call it after the step() of a boundary "
                                   "(is_gradient_accumulation_boundary()).",
                                   passes));
  }
  if (parts.loss.scaler->is_held()) {
    throw Error(where,
                "expected no gradients of the loss scale that this engine shares, got a window of "
                "another engine that holds some. Call it after the step() of all of them.");
  }
}

std::vector<NamedTensor> all_buffers(const Parts& parts, const std::vector<NamedTensor>& given,
                                     const std::string& where) {
  auto all = parts.model.buffers;
  all.insert(all.end(), given.begin(), given.end());
  std::set<std::string> names;
  for (const auto& [name, tensor] : all) {
    if (!tensor.defined())
      throw Error(where, "expected values in buffer \"" + name +
                             "\", got an undefined tensor. Leave it out.");
    if (!names.insert(name).second)
      throw Error(where, "expected buffers with different names, got \"" + name +
                             "\" twice. Those of the engine's own module need not be given.");
  }
  return all;
}

void finish_checkpoint(TrainingEngine& engine) {
  const auto pending = std::exchange(engine.parts().pending_save, nullptr);
  if (pending) pending->finish();
}

void save_checkpoint(TrainingEngine& engine, const std::string& directory, const std::string& tag,
                     const SaveOptions& options) {
  RECORD_USER_SCOPE("engine.save_checkpoint");
  const at::NoGradGuard no_grad;
  engine.rethrow_failure();
  auto& parts = engine.parts();
  auto& communicator = *parts.group.mesh.world();
  const auto name =
      tag.empty() ? fmt::format("global_step{}", parts.outcome.counters.global_steps) : tag;
  parts.group.participant.meet(agreement::SaveCheckpoint{});
  finish_checkpoint(engine);
  json client_state;
  const auto said = together(communicator, kSaveCheckpoint, [&] {
    check_idle(parts, kSaveCheckpoint);
    checkpoint::check_tag(name, kSaveCheckpoint);
    check_can_be_saved(parts);
    client_state = parsed_client_state(options.client_state);
    static_cast<void>(Pieces(engine, options).all({}));  // types that no file has, names that clash
    return json{{"directory", directory},
                {"tag", name},
                {"save_latest", options.save_latest},
                {"exclude_frozen_parameters", options.exclude_frozen_parameters},
                {"asynchronous", options.asynchronous},
                {"steps", parts.group.mesh.tensor() ? steps_of(parts) : json::object()},
                {"written_past", written_past(parts)},
                {"id", communicator.rank() == 0 ? random_id() : std::string()}}
        .dump(-1, ' ', false, json::error_handler_t::replace);
  });
  const auto agreement = agreed(said);
  const auto pieces = Pieces(engine, options).all(all_written_past(said));
  auto save = std::make_unique<PendingSave>(
      communicator, storage_of(options), agreement,
      SaveWords{.engine = to_json(saved_engine(parts)), .client_state = std::move(client_state)});
  if (options.asynchronous) {
    save->write_beside(pieces);
    parts.pending_save = std::move(save);
  } else {
    save->write(pieces);
    save->finish();
  }
}

}  // namespace equigrad::core
