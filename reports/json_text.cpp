#include "reports/json_text.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

// JSON has no numbers for them.
void name_nonfinite(Json& json) {
  if (json.is_number_float() && !std::isfinite(json.get<double>()))
    json = shortest(json.get<double>());
  else if (json.is_structured())
    for (Json& one : json) name_nonfinite(one);
}

// `lists`: how many lists it is in.
std::string laid_out(const Json& json, std::size_t lists) {
  const bool is_list = json.is_array() && !json.empty() && json.front().is_object();
  if (!json.is_object() && !is_list)
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  for (const auto& [key, value] : json.items()) {
    out += out.empty() ? "" : ",";
    out += is_list ? "\n" + std::string(lists + 1, ' ') : Json(key).dump() + ":";
    out += laid_out(value, lists + (is_list ? 1 : 0));
  }
  return is_list ? "[" + out + "]" : "{" + out + "}";
}

}  // namespace

void read(const Json& json, double& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (json.is_number()) return void(value = json.get<double>());
  const auto text = json.get<std::string>();
  for (const double named : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity})
    if (text == shortest(named)) return void(value = named);
  throw std::runtime_error("expected a number, \"nan\", \"inf\" or \"-inf\", got \"" + text + "\"");
}

std::runtime_error no_whole_number(uint64_t largest, const Json& got) {
  return std::runtime_error("expected a whole number from 0 to " + std::to_string(largest) +
                            ", got " + (got.is_primitive() ? got.dump() : got.type_name()));
}

std::string document_lines(Json document) {
  name_nonfinite(document);
  std::string out;
  for (const auto& [key, value] : document.items())
    out += (out.empty() ? "{" : ",\n") + Json(key).dump() + ": " + laid_out(value, 0);
  return out + "}\n";
}

std::string indented_lines(Json document) {
  name_nonfinite(document);
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace equigrad::reports
