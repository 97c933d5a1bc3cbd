#include "reports/json_text.hpp"

#include <cmath>

#include "reports/text.hpp"

namespace equigrad::reports {
namespace {

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

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(shortest(value)); }

Json write(const Environment& env) {
  return {{"version", env.version}, {"commit", env.commit},
          {"torch", env.torch},     {"compiler", env.compiler},
          {"device", env.device},   {"cpu", env.cpu},
          {"cores", env.cores},     {"threads_per_rank", env.threads_per_rank},
          {"os", env.os},           {"time", env.time}};
}

std::string document_lines(const Json& document) {
  std::string out;
  for (const auto& [key, value] : document.items())
    out += (out.empty() ? "{" : ",\n") + Json(key).dump() + ": " + laid_out(value, 0);
  return out + "}\n";
}

}  // namespace equigrad::reports
