#include "property_tests/parsers/parsers.hpp"

namespace equigrad::property_tests {

std::span<const Parser> parsers() {
  static constexpr Parser kParsers[] = {{"manifest", takes_manifest},
                                        {"safetensors", takes_safetensors},
                                        {"configuration", takes_configuration},
                                        {"run", takes_run}};
  return kParsers;
}

}  // namespace equigrad::property_tests
