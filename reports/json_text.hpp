// JsonText: what all JSON documents have in common: numbers, the environment, lines.
//
// Invariants: keys stay in the order in which they were given. A float is a number that reads back
//   to the same double; NaN and infinities are the strings "nan", "inf", "-inf". 64-bit numbers are
//   given as decimal strings by the callers: not every reader has them.
// Units: none.   Errors: none; bytes that are not UTF-8 become U+FFFD.
// Depends on: record.hpp, text.hpp, nlohmann-json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "reports/record.hpp"

namespace equigrad::reports {

using Json = nlohmann::ordered_json;

Json number(double value);
Json write(const Environment& env);

// A line for each member, and for each object in a list, so that two documents can be compared
// line by line; ends with a newline.
std::string document_lines(const Json& document);

}  // namespace equigrad::reports
