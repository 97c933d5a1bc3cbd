#include "engine/config/config.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/config/schema.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

std::string numbered(const std::vector<std::string>& problems) {
  std::string text;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    text += problems[i];
    if (problems.size() > 1)
      text += " (" + std::to_string(i + 1) + " of " + std::to_string(problems.size()) +
              " problems)" + (i + 1 < problems.size() ? "\n" : "");
  }
  return text;
}

EffectiveConfig explain_text(const std::string& text, const std::string& where, int world_size) {
  check_world_size(where, world_size);
  JsonDocument document = parse_json(text);
  if (!document.root.is_object()) throw ConfigError(where, document.problems);

  EffectiveConfig effective;
  Notes notes;
  ConfigReader reader(document.root);
  std::vector<Setting> without_effect;
  check_keys(document.root, reader, without_effect);
  effective.config = read_config(reader, notes, world_size);

  std::vector<std::string> problems = document.problems;
  problems.insert(problems.end(), reader.problems().begin(), reader.problems().end());
  const std::vector<std::string> more = problems_of(effective.config, world_size);
  problems.insert(problems.end(), more.begin(), more.end());
  if (!problems.empty()) throw ConfigError(where, problems);
  effective.settings = settings_of(effective.config, reader, notes, without_effect);
  return effective;
}

}  // namespace

ConfigError::ConfigError(const std::string& where, std::vector<std::string> problems)
    : Error(where, numbered(problems)), problems_(std::move(problems)) {}

EngineConfig parse_config(const std::string& text, int world_size) {
  return explain_text(text, "config", world_size).config;
}

EffectiveConfig explain_config(const std::string& text_or_path, int world_size) {
  const std::size_t first = text_or_path.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text_or_path[first] == '{')
    return explain_text(text_or_path, "config", world_size);
  std::error_code ignored;
  std::ifstream file(text_or_path);
  if (!file || std::filesystem::is_directory(text_or_path, ignored))
    throw ConfigError("config", {"expected a JSON text that begins with { or the path of a "
                                 "readable file, got \"" +
                                 text_or_path + "\". Check the path."});
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return explain_text(text, "config " + text_or_path, world_size);
}

EngineConfig load_config(const std::string& text_or_path, int world_size) {
  return explain_config(text_or_path, world_size).config;
}

void validate(const EngineConfig& config, int world_size) {
  check_world_size("config", world_size);
  const std::vector<std::string> problems = problems_of(config, world_size);
  if (!problems.empty()) throw ConfigError("config", problems);
}

}  // namespace equigrad
