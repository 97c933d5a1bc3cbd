// equigrad config: what a configuration means, and what it makes a rank hold; every key there is.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "conformance/cli/cli.hpp"
#include "conformance/diagnosis/explain.hpp"
#include "engine/config/config.hpp"
#include "engine/config/documents.hpp"
#include "engine/memory/forecast.hpp"

namespace equigrad::conformance::cli {
namespace {

using nlohmann::json;
using oracle::with_thousands;

constexpr int64_t kTensorNumel = int64_t{1} << 20;  // 1,024 x 1,024
constexpr int64_t kMostTensors = 10'000;
constexpr int64_t kMostNumel = 1'000'000'000'000'000;

struct Sized {
  std::vector<int64_t> numels;
  int64_t numel = 0;
  MemoryForecast forecast;
};

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

// As many elements in equal tensors and a last one that is smaller.
std::vector<int64_t> cut(int64_t numel) {
  const int64_t size = std::max(kTensorNumel, (numel + kMostTensors - 1) / kMostTensors);
  std::vector<int64_t> numels(static_cast<std::size_t>(numel / size), size);
  if (numel % size != 0) numels.push_back(numel % size);
  return numels;
}

std::optional<Sized> sized(const ConfigCommand& command, const EngineConfig& config,
                           const MemoryOptions& options) {
  if (command.parameters == 0 && command.numels.empty()) return std::nullopt;
  Sized all;
  all.numels = command.numels.empty() ? cut(command.parameters) : command.numels;
  for (const int64_t numel : all.numels) {
    if (numel < 0 || numel > kMostNumel - all.numel)
      throw ConfigError("config check", {"expected sizes of at least 0, of together at most " +
                                         with_thousands(kMostNumel) + " elements, got " +
                                         std::to_string(numel) + ". Give each tensor's numel."});
    all.numel += numel;
  }
  all.forecast = forecast(table_of_sizes(all.numels, config), config, options);
  return all;
}

using Origin = Setting::Origin;

struct Group {
  const char* head;
  bool (*has)(const Setting& setting);
};

constexpr Group kGroups[] = {
    {"The file sets", [](const Setting& one) { return one.origin == Origin::File; }},
    {"What follows from it", [](const Setting& one) { return one.origin == Origin::Derived; }},
    {"In the file, without effect here",
     [](const Setting& one) { return one.origin == Origin::NoEffect; }},
    {"Defaults, and what DeepSpeed does", [](const Setting& one) {
       return one.origin == Origin::Default && one.note.find("DeepSpeed") != std::string::npos;
     }}};

// The keys that a reader of the file asks about; the others are counted.
std::string settings_text(const EffectiveConfig& effective) {
  std::size_t width = 0, others = effective.settings.size();
  for (const auto& setting : effective.settings)
    for (const auto& group : kGroups)
      if (group.has(setting)) width = std::max(width, setting.key.size());
  std::string text;
  for (const auto& group : kGroups) {
    std::string lines;
    for (const auto& setting : effective.settings) {
      if (!group.has(setting)) continue;
      --others;
      lines += "  " + setting.key + std::string(width - setting.key.size() + 2, ' ') +
               setting.value + (setting.note.empty() ? "" : "  (" + setting.note + ")") + "\n";
    }
    if (!lines.empty()) text += std::string(group.head) + "\n" + lines + "\n";
  }
  return text + std::to_string(others) + " other keys have their defaults: --all shows them.\n";
}

std::string rate_text(double rate) { return formatted("%.6g", rate); }

std::string rates_text(const MemoryRates& rates) {
  std::string text = formatted("%-16s %14s %14s  %s\n", "bytes/parameter", "between steps",
                               "in a window", "and about");
  RateOfBytes total;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const auto& rate = rates[i];
    total.idle += rate.idle;
    const std::string constant =
        rate.constant == 0 ? "" : with_thousands(rate.constant) + " bytes by the sizes configured";
    text += formatted("%-16s %14s %14s  %s", memory::kCategoryNames[i],
                      rate_text(rate.idle).c_str(), rate_text(rate.peak).c_str(), constant.c_str());
    text.resize(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text + formatted("%-16s %14s\n", "total", rate_text(total.idle).c_str());
}

std::string sizes_text(const Sized& all) {
  const auto count = all.numels.size();
  std::string text =
      with_thousands(all.numel) + " parameters in " + with_thousands(static_cast<int64_t>(count)) +
      (count == 1 ? " tensor" : " tensors") + ", padding included:\n" +
      formatted("%-16s %22s %22s %22s\n", "bytes", "between steps", "at the peak", "at most");
  for (std::size_t i = 0; i < all.forecast.categories.size(); ++i) {
    const auto& held = all.forecast.categories[i];
    text += formatted("%-16s %22s %22s %22s\n", memory::kCategoryNames[i],
                      with_thousands(held.idle).c_str(),
                      ((held.is_exact ? "" : "from ") + with_thousands(held.peak)).c_str(),
                      with_thousands(held.most).c_str());
  }
  return text + formatted("%-16s %22s %22s %22s\n", "total",
                          with_thousands(all.forecast.idle_bytes()).c_str(), "",
                          with_thousands(all.forecast.most_bytes()).c_str());
}

std::string memory_text(const ConfigCommand& command, const EngineConfig& config,
                        const MemoryRates& rates, const std::optional<Sized>& all) {
  std::string text = "\nWhat a rank of " + std::to_string(command.world) + " holds, on " +
                     command.device +
                     (config.offload_optimizer.to_cpu && command.device != "cpu"
                          ? ", master_weights and optimizer_state on cpu"
                          : "") +
                     ":\n" + rates_text(rates);
  if (all) text += "\n" + sizes_text(*all);
  if (config.precision.autocast.enabled)
    text += "\nEvery parameter is taken to be one of lower_precision_safe_modules.\n";
  return text +
         "\nNot in it: activations, the memory that collectives receive into, the allocator.\n"
         "Categories do not all peak at one time.\n";
}

// Whether all of a rank's bytes fit; empty where that was not asked.
std::string fit_text(const ConfigCommand& command, const std::optional<Sized>& all) {
  if (command.fits_bytes == 0) return "";
  const auto most = all->forecast.most_bytes();
  const auto room = static_cast<int64_t>(command.fits_bytes);
  return "\n" + std::string(most <= room ? "It fits: " : "It does NOT fit: ") +
         with_thousands(most) + " bytes at most, of " + with_thousands(room) +
         ", activations and the rest excluded.\n";
}

bool fits(const ConfigCommand& command, const std::optional<Sized>& all) {
  return command.fits_bytes == 0 ||
         all->forecast.most_bytes() <= static_cast<int64_t>(command.fits_bytes);
}

json record_of(const ConfigCommand& command, const EffectiveConfig& effective,
               const MemoryRates& rates, const std::optional<Sized>& all) {
  constexpr std::array kOrigins{"file", "default", "derived", "no_effect"};
  json record{{"world", command.world}, {"device", command.device}};
  for (const auto& setting : effective.settings)
    record["settings"].push_back({{"key", setting.key},
                                  {"value", json::parse(setting.value, nullptr, false)},
                                  {"origin", kOrigins.at(static_cast<std::size_t>(setting.origin))},
                                  {"note", setting.note}});
  for (std::size_t i = 0; i < rates.size(); ++i) {
    auto& category = record["memory"][memory::kCategoryNames[i]];
    category = {{"idle_per_parameter", rates[i].idle},
                {"peak_per_parameter", rates[i].peak},
                {"constant_bytes", rates[i].constant}};
    if (!all) continue;
    const auto& held = all->forecast.categories[i];
    category.update({{"idle_bytes", held.idle},
                     {"peak_bytes", held.peak},
                     {"most_bytes", held.most},
                     {"is_exact", held.is_exact}});
  }
  record["parameters"] = all ? json(all->numel) : json();
  if (command.fits_bytes > 0) record["fits"] = fits(command, all);
  return record;
}

}  // namespace

int config_check_command(const ConfigCommand& command) {
  const auto effective = explain_config(command.file, command.world);
  const MemoryOptions options{command.world, command.device == "cuda", {}};
  const auto all = sized(command, effective.config, options);
  const auto held = rates(effective.config, options);
  const bool pure = command.json == "-";
  if (command.fits_bytes > 0 && !all)
    throw ConfigError(
        "config check",
        {"expected a model's size with --fits, got none. Give --parameters or --numels."});
  (pure ? std::cerr : std::cout) << (command.all ? describe(effective) : settings_text(effective))
                                 << memory_text(command, effective.config, held, all)
                                 << fit_text(command, all);
  const int code = fits(command, all) ? kHeld : kFailed;
  if (command.json.empty()) return code;
  const auto record = record_of(command, effective, held, all).dump(2) + "\n";
  if (pure) {
    std::cout << record;
    return code;
  }
  if (std::ofstream(command.json) << record << std::flush) return code;
  throw Error("config check", "expected a file that can be written, got \"" + command.json +
                                  "\". Name another with --json.");
}

int config_keys_command() {
  std::cout << markdown_page();
  return kHeld;
}

int config_schema_command() {
  std::cout << json_schema();
  return kHeld;
}

}  // namespace equigrad::conformance::cli
