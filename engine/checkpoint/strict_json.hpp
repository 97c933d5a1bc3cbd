// Strict JSON: a JSON text from a disk, read as text that anybody may have written: a key that is
// given twice, a number that overflows, nesting without end and bytes behind the text are errors.
//
// Invariants: what is allocated is bounded by the text's length.
// Errors: equigrad::Error, which `where` names.
// Depends on: nlohmann-json.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace equigrad::checkpoint {

using Json = nlohmann::json;

// Calls `take` with each member of the text's object, in the text's order; only one is held at a
// time.
void read_members(std::string_view text, const std::string& where, int most_levels,
                  const std::function<void(const std::string& key, Json&& value)>& take);

// The text's value, whole, and the same of a text that must be an object.
Json read_value(std::string_view text, const std::string& where, int most_levels);
Json read_object(std::string_view text, const std::string& where, int most_levels);

// Throws for what a JSON text cannot say: NaN and infinity, bytes that are no UTF-8, and for more
// levels than will be read.
void check_writable(const Json& value, const std::string& where, int most_levels);

// As JSON, cut to a length that fits an error.
std::string shown(const Json& value);
std::string quote(std::string_view text);

}  // namespace equigrad::checkpoint
