// Faults of what is loaded from a checkpoint: other values, another place, or not at all.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/faults/fault_groups.hpp"
#include "engine/core/training_engine.hpp"

namespace equigrad::conformance::faults {
namespace {

using checkpoint::ElementType;
using checkpoint::SavedCheckpoint;
using checkpoint::TensorEntry;
using Bytes = std::vector<std::byte>;

Bytes whole_of(const SavedCheckpoint& saved, const TensorEntry& entry) {
  const auto numel = checkpoint::numel_of(entry.shape);
  Bytes bytes(static_cast<std::size_t>(numel * checkpoint::element_bytes(entry.type)));
  if (numel > 0) through::checkpoint_read(saved, entry.name, 0, numel, bytes.data());
  return bytes;
}

// Another whole tensor where one is read; an empty one: the right one.
using Whole = std::function<Bytes(const SavedCheckpoint& saved, const TensorEntry& entry)>;

void change_values(FaultContext& context, Whole change) {
  seams().checkpoint_read = [&context, change](const SavedCheckpoint& self, std::string_view tensor,
                                               std::int64_t begin, std::int64_t end, void* into) {
    through::checkpoint_read(self, tensor, begin, end, into);
    const auto& entry = self.entry(tensor);
    const auto other = change(self, entry);
    if (other.empty()) return;
    const auto width = checkpoint::element_bytes(entry.type);
    const auto bytes = static_cast<std::size_t>((end - begin) * width);
    const auto* from = other.data() + begin * width;
    if (std::memcmp(into, from, bytes) != 0) context.acted();
    std::memcpy(into, from, bytes);
  };
}

// "master", "exp_avg", "parameter"; "rank3" of what each rank has of its own.
std::string_view kind_of(const TensorEntry& entry) {
  return std::string_view(entry.name).substr(0, entry.name.find('/'));
}
bool is_of_rank(const TensorEntry& entry) { return entry.name.starts_with("rank"); }
bool is_state(const TensorEntry& entry) {
  return !is_of_rank(entry) && kind_of(entry) != "master" && kind_of(entry) != "parameter";
}

Bytes join(const SavedCheckpoint& saved, const TensorEntry& entry,
           const std::vector<checkpoint::Piece>& pieces) {
  const auto width = checkpoint::element_bytes(entry.type);
  const auto right = whole_of(saved, entry);
  Bytes joined;
  for (const auto& piece : pieces)
    joined.insert(joined.end(), right.begin() + piece.begin * width,
                  right.begin() + piece.end * width);
  return joined;
}

// "10" comes before "5".
Bytes in_order_of_text(const SavedCheckpoint& saved, const TensorEntry& entry) {
  if (entry.cut) return {};  // each part has shards of its own
  auto pieces = entry.pieces;
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
    return std::to_string(a.begin) < std::to_string(b.begin);
  });
  return join(saved, entry, pieces);
}

bool is_padded(const TensorEntry& entry) {
  const auto& pieces = entry.pieces;
  return !entry.cut && pieces.size() > 1 &&
         pieces.back().end - pieces.back().begin < pieces.front().end - pieces.front().begin;
}

// What comes after the first piece lies one element further on.
Bytes shifted_by_padding(const SavedCheckpoint& saved, const TensorEntry& entry) {
  if (!is_padded(entry)) return {};
  auto bytes = whole_of(saved, entry);
  const auto width = checkpoint::element_bytes(entry.type);
  const auto first = bytes.begin() + entry.pieces.front().end * width;
  std::rotate(first, bytes.end() - width, bytes.end());
  return bytes;
}

Bytes ends_in_padding(const SavedCheckpoint& saved, const TensorEntry& entry) {
  if (!is_padded(entry)) return {};
  auto bytes = whole_of(saved, entry);
  std::fill(bytes.end() - checkpoint::element_bytes(entry.type), bytes.end(), std::byte{0});
  return bytes;
}

// Another tensor's values, if it is as large.
Bytes values_of(const SavedCheckpoint& saved, const TensorEntry& entry, const std::string& name) {
  const auto* other = saved.manifest().find(name);
  const bool fits = other != nullptr && other->shape == entry.shape && other->type == entry.type;
  return fits ? whole_of(saved, *other) : Bytes();
}

// By the place in the list: the next one of the same shape.
Bytes of_the_next_parameter(const SavedCheckpoint& saved, const TensorEntry& entry) {
  if (!is_state(entry)) return {};
  const auto& all = saved.manifest().tensors;
  auto at =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == entry.name; });
  for (++at; at != all.end() && kind_of(*at) == kind_of(entry); ++at)
    if (at->shape == entry.shape) return whole_of(saved, *at);
  return {};
}

// Masters that were made of the weights as the model has them.
Bytes rounded_to_the_models_type(const SavedCheckpoint& saved, const TensorEntry& entry) {
  const auto type = saved.manifest().engine.at("param_type").get<std::string>();
  if (kind_of(entry) != "master" || entry.type != ElementType::F32 || type == "F32") return {};
  auto bytes = whole_of(saved, entry);
  const auto numel = checkpoint::numel_of(entry.shape);
  const auto wide = at::from_blob(bytes.data(), {numel}, at::kFloat);
  wide.copy_(wide.to(type == "BF16" ? at::kBFloat16 : at::kHalf));
  return bytes;
}

std::string of_rank_0(const TensorEntry& entry) {
  return "rank0" + entry.name.substr(entry.name.find('/'));
}

// What the engine was is told otherwise.
void change_engine(FaultContext& context, std::function<bool(core::SavedEngine& engine)> change) {
  seams().saved_engine = [&context, change](const nlohmann::json& from, const std::string& where) {
    auto engine = through::saved_engine(from, where);
    if (change(engine)) context.acted();
    return engine;
  };
}

bool drop_steps(core::SavedEngine& engine) {
  bool changed = false;
  for (auto& parameter : engine.parameters) changed |= std::exchange(parameter.steps, 0) != 0;
  return changed;
}

bool give_all_the_first_group(core::SavedEngine& engine) {
  bool changed = false;
  for (auto& group : engine.groups) {
    changed |= !(group == engine.groups.front());
    group = engine.groups.front();
  }
  return changed;
}

bool forget_the_scale(core::SavedEngine& engine) {
  return std::exchange(engine.loss_scale_policy, "forgotten") != "none";
}

// The scale itself is kept.
bool forget_the_scales_history(core::SavedEngine& engine) {
  const auto before = engine.loss_scale;
  engine.loss_scale = {.scale = before.scale, .hysteresis_left = before.hysteresis_left};
  return !(engine.loss_scale == before);
}

// Where one was borne and another may be.
bool refill_hysteresis(core::SavedEngine& engine) {
  auto& history = engine.loss_scale;
  if (history.last_overflow < 0 || history.hysteresis_left < 2) return false;
  ++history.hysteresis_left;
  return true;
}

bool forget_counters(core::SavedEngine& engine) {
  return std::exchange(engine.counters, {}).micro_steps != 0;
}

bool is_bf16_at_stage_0(const nlohmann::json& engine) {
  return engine.at("param_type") == "BF16" && engine.at("stage") == 0;
}

// Where a flag takes bf16 for ZeRO, states have no one who loads them.
void skip_states_of_bf16(FaultContext& context) {
  change_values(context, [](const SavedCheckpoint& saved, const TensorEntry& entry) {
    if (!is_state(entry) || !is_bf16_at_stage_0(saved.manifest().engine)) return Bytes();
    return Bytes(whole_of(saved, entry).size());
  });
  seams().saved_engine = [&context](const nlohmann::json& from, const std::string& where) {
    auto engine = through::saved_engine(from, where);
    if (is_bf16_at_stage_0(from) && drop_steps(engine)) context.acted();
    return engine;
  };
}

// The model has the loaded weights, the masters those of before.
void keep_old_masters(FaultContext& context) {
  seams().load_checkpoint = [&context](TrainingEngine& engine, const std::string& directory,
                                       const std::string& tag, const LoadOptions& options) {
    auto& masters = engine.parts().optimizer.masters();
    const auto before = masters.clone();
    const auto loaded = through::load_checkpoint(engine, directory, tag, options);
    if (!same_bits(before, masters)) context.acted();
    const at::NoGradGuard no_grad;
    masters.copy_(before);
    return loaded;
  };
}

Fault of_values(const std::string& name, const std::string& what, std::vector<std::string> bugs,
                Whole change) {
  return at_seams("checkpoint." + name, what, std::move(bugs), "update",
                  [change](FaultContext& context) { change_values(context, change); });
}

Fault of_engine(const std::string& name, const std::string& what, std::vector<std::string> bugs,
                const std::string& phase, bool (*change)(core::SavedEngine&)) {
  return at_seams("checkpoint." + name, what, std::move(bugs), phase,
                  [change](FaultContext& context) { change_engine(context, change); });
}

std::vector<Fault> faults_of_values() {
  return {
      of_values("shards_in_order_of_text", "shards are joined with 10 before 5", {"DS-80"},
                in_order_of_text),
      of_values("padding_shifts", "shards behind the first begin one element late", {"DS-83"},
                shifted_by_padding),
      of_values("padding_as_data", "the last element is one of the padding", {}, ends_in_padding),
      of_values("states_of_another_parameter", "states are those of the next parameter of a shape",
                {}, of_the_next_parameter),
      of_values("second_state_is_the_first", "the averages of squares are those of gradients", {},
                [](const SavedCheckpoint& saved, const TensorEntry& entry) {
                  if (kind_of(entry) != "exp_avg_sq") return Bytes();
                  return values_of(saved, entry, "exp_avg" + entry.name.substr(10));
                }),
      of_values("masters_rounded", "masters are made of the model's 16 bits", {},
                rounded_to_the_models_type),
      of_values("frozen_left_out", "what is not trained is loaded as zeros", {},
                [](const SavedCheckpoint& saved, const TensorEntry& entry) {
                  if (kind_of(entry) != "parameter") return Bytes();
                  return Bytes(whole_of(saved, entry).size());
                }),
      of_values("buffers_of_rank_0", "every rank gets the running means of rank 0", {},
                [](const SavedCheckpoint& saved, const TensorEntry& entry) {
                  const bool is_buffer = entry.name.find("/buffer/") != std::string::npos;
                  return is_buffer ? values_of(saved, entry, of_rank_0(entry)) : Bytes();
                }),
      of_values("draws_of_rank_0", "every rank draws as rank 0 does", {},
                [](const SavedCheckpoint& saved, const TensorEntry& entry) {
                  const bool is_state = entry.name.find("/rng/") != std::string::npos;
                  return is_state ? values_of(saved, entry, of_rank_0(entry)) : Bytes();
                }),
      at_seams("checkpoint.states_skipped_in_bf16", "at stage 0 states of bf16 are not loaded",
               {"DS-81"}, "update", skip_states_of_bf16),
      at_seams("checkpoint.masters_not_refreshed", "the first step writes the old weights back",
               {"CA-03", "DS-82"}, "update", keep_old_masters)};
}

}  // namespace

std::vector<Fault> checkpoint_faults() {
  auto all = faults_of_values();
  for (auto& fault :
       {of_engine("step_counts_dropped", "the first step after a load counts as the first",
                  {"DS-73"}, "update", drop_steps),
        of_engine("first_group_for_all", "every group gets the settings of the first", {}, "update",
                  give_all_the_first_group),
        of_engine("loss_scale_dropped", "the loss scale begins anew", {}, "scale",
                  forget_the_scale),
        of_engine("growth_begins_anew", "good steps before the save do not count", {}, "scale",
                  forget_the_scales_history),
        of_engine("hysteresis_refilled", "an overflow that was borne is borne again", {}, "scale",
                  refill_hysteresis),
        of_engine("counters_dropped", "steps are counted from the load on", {}, "scale",
                  forget_counters),
        of_engine("schedule_dropped", "the schedule begins anew", {}, "update",
                  [](core::SavedEngine& engine) {
                    return std::exchange(engine.last_batch_iteration, {}).has_value();
                  }),
        of_engine(
            "layer_drop_dropped", "theta begins anew", {}, "forward",
            [](core::SavedEngine& engine) { return std::exchange(engine.theta, {}).has_value(); })})
    all.push_back(fault);
  return all;
}

}  // namespace equigrad::conformance::faults
