// What libFuzzer calls: EQUIGRAD_PARSER is the parser's function.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "property_tests/parsers/parsers.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  equigrad::property_tests::EQUIGRAD_PARSER({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
