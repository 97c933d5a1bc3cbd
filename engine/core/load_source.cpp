#include "engine/core/load_source.hpp"

#include <utility>

#include "engine/core/checkpoints.hpp"

namespace equigrad::core {

LoadSource::LoadSource(Parts& engine, const LoadOptions& wanted,
                       checkpoint::SavedCheckpoint checkpoint)
    : parts(engine),
      options(wanted),
      saved(std::move(checkpoint)),
      from(saved_engine_from(saved.manifest().engine,
                             (saved.folder() / checkpoint::kManifestName).string())),
      buffers(all_buffers(parts, options.buffers, kLoadCheckpoint)),
      client(client_of(parts.optimizer)) {}

std::vector<std::string> LoadSource::states_of(std::size_t parameter) const {
  if (client == nullptr) return parts.optimizer.state_names(parameter);
  const auto* found = from.find(parts.model.table[parameter].name);
  return found == nullptr ? std::vector<std::string>() : from.of_client(*found).states;
}

std::string LoadSource::name_in_file(std::size_t parameter) const {
  const auto* found = from.find(parts.model.table[parameter].name);
  if (found == nullptr) return {};
  const auto name = found->trainable ? master_name(found->name) : parameter_name(found->name);
  return saved.has(name) ? name : std::string();
}

std::string LoadSource::name_written_past(std::size_t parameter) const {
  const auto& entry = parts.model.table[parameter];
  const auto* found = from.find(entry.name);
  if (found == nullptr || !found->trainable || !entry.trainable || entry.numel == 0) return {};
  const auto name = parameter_name(found->name);
  const auto type = parts.model.tensors[parameter].scalar_type();
  if (!saved.has(name) || scalar_type_of(saved.entry(name).type) != type) return {};
  return name;
}

bool LoadSource::is_same_mesh() const {
  return from.mesh.value_or(comm::MeshSizes{.data = saved.manifest().world_size}) ==
         parts.group.mesh.sizes();
}

int LoadSource::source_rank() const {
  return is_same_mesh() ? parts.group.mesh.world()->rank() : 0;
}

}  // namespace equigrad::core
