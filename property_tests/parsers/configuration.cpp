#include <stdexcept>
#include <string>

#include "engine/config/config.hpp"
#include "property_tests/parsers/parsers.hpp"

namespace equigrad::property_tests {

bool takes_configuration(std::string_view bytes) {
  constexpr int kRanks = 2;
  const std::string text(bytes);
  EngineConfig config;
  try {
    config = parse_config(text, kRanks);
  } catch (const Error&) {
    return false;
  }
  validate(config, kRanks);
  const std::size_t first = text.find_first_not_of(" \t\n\r\v\f");
  if (text.at(first) != '{') return true;  // load_config would take it for a path
  if (load_config(text, kRanks) != config) throw std::logic_error("two readings of one text");
  const EffectiveConfig effective = explain_config(text, kRanks);
  if (effective.config != config || effective.settings.empty() || describe(effective).empty())
    throw std::logic_error("an explanation of another configuration");
  return true;
}

}  // namespace equigrad::property_tests
