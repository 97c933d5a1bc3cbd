#include "conformance/cli/knobs.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "conformance/cases/mode_columns.hpp"
#include "engine/config/config.hpp"

namespace equigrad::conformance::cli {
namespace {

using nlohmann::json;

// What keys of cases are like: some knobs go with one stage or precision only.
std::vector<json> settings() {
  std::vector<json> all;
  for (int stage = 0; stage <= 3; ++stage)
    for (const char* precision : {"", "bf16", "fp16"}) {
      json config = {{"train_micro_batch_size_per_gpu", 1},
                     {"optimizer", {{"type", "AdamW"}}},
                     {"zero_optimization", {{"stage", stage}}}};
      if (*precision != '\0') config[precision] = {{"enabled", true}};
      all.push_back(std::move(config));
    }
  return all;
}

std::vector<std::string> problems_of(json config, const json& knobs) {
  config.merge_patch(knobs);
  try {
    static_cast<void>(parse_config(config.dump(), 1));
    return {};
  } catch (const ConfigError& error) {
    return error.problems();
  }
}

using Pointer = json::json_pointer;

// What cases differ in: with another value a case would not be what its name says.
std::vector<Pointer> owned_by_cases() {
  std::set<std::string> paths = {"/zero_optimization/stage",
                                 "/bfloat16/enabled",  // as bf16.enabled
                                 "/gradient_accumulation_steps",
                                 "/gradient_clipping",
                                 "/train_batch_size",
                                 "/train_micro_batch_size_per_gpu",
                                 "/optimizer/type",
                                 "/optimizer/params/lr",
                                 "/tensor_parallel/autotp_size",
                                 "/sequence_parallel_size"};
  for (const auto precision : precisions())
    for (const int accumulation : {1, 3, 4}) {
      const auto keys = engine_keys(precision, accumulation).flatten();
      for (const auto& [path, value] : keys.items())
        if (!path.empty()) paths.insert(path);  // which is all there is of no keys
    }
  return {paths.begin(), paths.end()};
}

// The key that changes it; null takes a section away, with all that is in it.
std::optional<Pointer> changed_by(const json& knobs, Pointer at) {
  if (knobs.contains(at)) return at;
  for (at.pop_back(); !at.empty(); at.pop_back())
    if (knobs.contains(at)) return knobs[at].is_null() ? std::optional(at) : std::nullopt;
  return std::nullopt;
}

std::string what_is_owned(const json& knobs) {
  std::set<std::string> said;
  for (const auto& owned : owned_by_cases()) {
    const auto at = changed_by(knobs, owned);
    if (!at) continue;
    std::string key = at->to_string().substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    said.insert(key + ": expected a key that changes nothing, got " + knobs[*at].dump() +
                " for what cases differ in. Choose cases by a filter, --stages or --dtypes, or " +
                "train with a file: equigrad train --config.");
  }
  std::string words;
  for (const auto& one : said) words += (words.empty() ? "" : "\n") + one;
  return words;
}

}  // namespace

std::string knobs_problem(const std::string& text) {
  const auto knobs = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!knobs.is_object()) return "expected a JSON object, got \"" + text + "\"";
  if (const auto owned = what_is_owned(knobs); !owned.empty()) return owned;
  std::vector<std::string> always;
  bool is_first = true;
  for (const auto& setting : settings()) {
    const auto found = problems_of(setting, knobs);
    if (is_first) always = found;
    is_first = false;
    std::erase_if(always, [&](const std::string& one) {
      return std::find(found.begin(), found.end(), one) == found.end();
    });
  }
  std::string words;
  for (const auto& one : always) words += (words.empty() ? "" : "\n") + one;
  return words;
}

}  // namespace equigrad::conformance::cli
