#include "engine/config/config.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/config/load_for_client.hpp"
#include "engine/config/reading.hpp"

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

void check_world_size(const std::string& where, int world_size) {
  if (world_size < 1)
    throw ConfigError(where, {"world_size: expected at least 1 rank, got " +
                              std::to_string(world_size) + ". Give the number of ranks."});
}

EffectiveConfig explain_text(const std::string& text, const std::string& where, int world_size,
                             bool needs_optimizer) {
  check_world_size(where, world_size);
  JsonDocument document = parse_json(text);
  if (!document.root.is_object()) throw ConfigError(where, document.problems);

  ConfigReader reader(document.root);
  Reading reading(schema(), reader, world_size);
  reading.needs_optimizer = needs_optimizer;
  std::vector<Setting> without_effect;
  check_keys(schema(), document.root, reader, without_effect);
  for (const Section& section : schema().sections()) section.read(reading);
  reading.finish();
  Checks checks(schema(), world_size, &reader);
  checks.all(reading.config);

  std::vector<std::string> problems = document.problems;
  problems.insert(problems.end(), reader.problems().begin(), reader.problems().end());
  problems.insert(problems.end(), checks.problems().begin(), checks.problems().end());
  if (!problems.empty()) throw ConfigError(where, problems);
  EffectiveConfig effective{reading.config, reading.settings()};
  effective.settings.insert(effective.settings.end(), without_effect.begin(), without_effect.end());
  return effective;
}

EffectiveConfig explain(const std::string& text_or_path, int world_size, bool needs_optimizer) {
  const std::size_t first = text_or_path.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text_or_path[first] == '{')
    return explain_text(text_or_path, "config", world_size, needs_optimizer);
  std::error_code ignored;
  std::ifstream file(text_or_path);
  if (!file || std::filesystem::is_directory(text_or_path, ignored))
    throw ConfigError("config", {"expected a JSON text that begins with { or the path of a "
                                 "readable file, got \"" +
                                 text_or_path + "\". Check the path."});
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return explain_text(text, "config " + text_or_path, world_size, needs_optimizer);
}

}  // namespace

ConfigError::ConfigError(const std::string& where, std::vector<std::string> problems)
    : Error(where, numbered(problems)), problems_(std::move(problems)) {
  for (auto& problem : problems_) problem = valid_utf8(problem);
}

EngineConfig parse_config(const std::string& text, int world_size) {
  return explain_text(text, "config", world_size, /*needs_optimizer=*/true).config;
}

EffectiveConfig explain_config(const std::string& text_or_path, int world_size) {
  return explain(text_or_path, world_size, /*needs_optimizer=*/true);
}

EffectiveConfig explain_config_for_client(const std::string& text_or_path, int world_size) {
  return explain(text_or_path, world_size, /*needs_optimizer=*/false);
}

EngineConfig load_config_for_client(const std::string& text_or_path, int world_size) {
  return explain_config_for_client(text_or_path, world_size).config;
}

EngineConfig load_config(const std::string& text_or_path, int world_size) {
  return explain_config(text_or_path, world_size).config;
}

void validate(const EngineConfig& config, int world_size) {
  check_world_size("config", world_size);
  Checks checks(schema(), world_size, nullptr);
  checks.all(config);
  if (!checks.problems().empty()) throw ConfigError("config", checks.problems());
}

std::string describe(const EffectiveConfig& effective) {
  constexpr const char* kOrigins[] = {"file", "default", "derived", "no effect here"};
  std::array<std::size_t, 3> widths{};
  const auto cells_of = [&](const Setting& setting) {
    return std::array<std::string, 3>{setting.key, setting.value,
                                      kOrigins[static_cast<int>(setting.origin)]};
  };
  for (const Setting& setting : effective.settings) {
    const auto cells = cells_of(setting);
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text;
  for (const Setting& setting : effective.settings) {
    const auto cells = cells_of(setting);
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i)
      line += cells[i] + std::string(widths[i] - cells[i].size() + 2, ' ');
    line += setting.note;
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace equigrad
