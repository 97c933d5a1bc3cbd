#include "engine/config/values.hpp"

#include "engine/config/schema.hpp"

namespace equigrad {
namespace {

bool is_of_one_rank(const std::string& path) {
  return path.starts_with("flops_profiler.") || path == "communication_timeout_s";
}

}  // namespace

std::vector<std::string> values_of(const EngineConfig& config) {
  std::vector<std::string> lines;
  for (const Row& row : schema().rows()) {
    const Field& field = row.field;
    if (field.get == nullptr || (field.of != nullptr && !field.of(config))) continue;
    if (!is_of_one_rank(row.path)) lines.push_back(row.path + (" " + field.get(config).dump()));
  }
  return lines;
}

}  // namespace equigrad
