// equigrad config: what a configuration means, and what it makes a rank hold; every key there is.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "conformance/cli/cli.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/terminal_text.hpp"
#include "conformance/diagnosis/explain.hpp"
#include "engine/config/config.hpp"
#include "engine/config/documents.hpp"
#include "engine/config/load_for_client.hpp"
#include "engine/memory/forecast.hpp"
#include "reports/table.hpp"
#include "reports/text.hpp"

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
  bool is_of_all = false;  // printed where every key is asked for
};

bool is_default(const Setting& one) { return one.origin == Origin::Default; }

bool names_deepspeed(const Setting& one) { return one.note.find("DeepSpeed") != std::string::npos; }

constexpr Group kGroups[] = {
    {"The file sets", [](const Setting& one) { return one.origin == Origin::File; }},
    {"What follows from it", [](const Setting& one) { return one.origin == Origin::Derived; }},
    {"In the file, without effect here",
     [](const Setting& one) { return one.origin == Origin::NoEffect; }},
    {"Defaults, and what DeepSpeed does",
     [](const Setting& one) { return is_default(one) && names_deepspeed(one); }},
    {"All other keys, which have their defaults",
     [](const Setting& one) { return is_default(one) && !names_deepspeed(one); }, true}};

// Values stand under each other: a key that reaches into their column has a line of its own, and so
// has what does not fit into the column.
std::string row_of(const Setting& setting, std::size_t width, std::size_t columns) {
  const std::string& value = setting.value;
  const std::string room(width + 4, ' '),
      name = "  " + setting.key, note = setting.note.empty() ? "" : "(" + setting.note + ")";
  const std::string front =
      name + (setting.key.size() <= width ? room.substr(name.size()) : "\n" + room);
  const std::string all = value + (note.empty() ? "" : "  " + note);
  if (room.size() + all.size() <= columns) return front + all + "\n";
  const std::string below =
      note.empty() ? "" : reports::wrapped("      " + note, columns, std::string(7, ' '));
  if (room.size() + value.size() <= columns) return front + value + "\n" + below;
  return name + "\n" + reports::wrapped("      " + value, columns, std::string(6, ' ')) + below;
}

// The keys that a reader of the file asks about; the others are counted, or all are shown.
std::string settings_text(const EffectiveConfig& effective, bool all, std::size_t columns) {
  std::size_t width = 0, others = effective.settings.size();
  for (const auto& setting : effective.settings)
    for (const auto& group : kGroups)
      if ((all || !group.is_of_all) && group.has(setting))
        width = std::max(width, setting.key.size());
  width = std::min(width, columns / 2);
  std::string text;
  for (const auto& group : kGroups) {
    std::string lines;
    if (group.is_of_all && !all) continue;
    for (const auto& setting : effective.settings) {
      if (!group.has(setting)) continue;
      --others;
      lines += row_of(setting, width, columns);
    }
    if (!lines.empty()) text += std::string(group.head) + "\n" + lines + "\n";
  }
  if (all) return text.substr(0, text.size() - 1);
  return text + std::to_string(others) + " other keys have their defaults: --all shows them.\n";
}

std::string rate_text(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", rate);
  return text;
}

std::string rates_text(const MemoryRates& rates) {
  std::vector<std::vector<std::string>> rows{
      {"bytes/parameter", "between steps", "in a window", "and bytes of a large model"}};
  RateOfBytes total;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const auto& rate = rates[i];
    total.idle += rate.idle;
    rows.push_back({memory::kCategoryNames[i], rate_text(rate.idle), rate_text(rate.peak),
                    rate.constant == 0 ? "" : with_thousands(rate.constant)});
  }
  rows.push_back({"total", rate_text(total.idle)});
  return reports::aligned(rows);
}

std::string sizes_text(const Sized& all) {
  const auto count = all.numels.size();
  std::vector<std::vector<std::string>> rows{{"bytes", "between steps", "at the peak", "at most"}};
  for (std::size_t i = 0; i < all.forecast.categories.size(); ++i) {
    const auto& held = all.forecast.categories[i];
    rows.push_back({memory::kCategoryNames[i], with_thousands(held.idle),
                    (held.is_exact ? "" : "from ") + with_thousands(held.peak),
                    with_thousands(held.most)});
  }
  rows.push_back({"total", with_thousands(all.forecast.idle_bytes()), "",
                  with_thousands(all.forecast.most_bytes())});
  return with_thousands(all.numel) + " parameters in " +
         with_thousands(static_cast<int64_t>(count)) + (count == 1 ? " tensor" : " tensors") +
         ", padding included:\n" + reports::aligned(rows);
}

// Whether it is on the CPU though the model is on another device.
bool is_offloaded(const EngineConfig& config, const std::string& category) {
  if (category == "parameters") return config.zero.offload_param.to_cpu;
  return config.offload_optimizer.to_cpu &&
         (category == "master_weights" || category == "optimizer_state");
}

std::string places_text(const ConfigCommand& command, const EngineConfig& config) {
  std::string names;
  for (const auto* name : memory::kCategoryNames)
    if (command.device != "cpu" && is_offloaded(config, name))
      names += (names.empty() ? "" : ", ") + std::string(name);
  return "on " + command.device + (names.empty() ? "" : ", " + names + " on cpu");
}

std::string memory_text(const ConfigCommand& command, const EngineConfig& config,
                        const MemoryRates& rates, const std::optional<Sized>& all,
                        std::size_t columns) {
  std::string text = reports::wrapped("What a rank of " + std::to_string(command.world) +
                                          " holds, " + places_text(command, config) + ":",
                                      columns, "  ") +
                     rates_text(rates);
  if (all) text += "\n" + sizes_text(*all);
  if (!all)
    text += "\n" + reports::wrapped(
                       "Of a smaller model the last column holds less: --parameters 7B says what "
                       "all of one's bytes are.",
                       columns, "");
  if (config.precision.autocast.enabled)
    text += "\n" +
            reports::wrapped("Every parameter is taken to be one of lower_precision_safe_modules.",
                             columns, "");
  return "\n" + text + "\n" +
         reports::wrapped(
             "Not in it: activations, the memory that collectives receive into, the allocator. "
             "Categories do not all peak at one time.",
             columns, "");
}

// The most that a rank holds on its device, and beside it on the CPU.
struct Most {
  int64_t on_device = 0, beside = 0;
};

Most most_of(const ConfigCommand& command, const EngineConfig& config, const Sized& all) {
  Most most;
  for (std::size_t i = 0; i < all.forecast.categories.size(); ++i) {
    const bool is_beside =
        command.device != "cpu" && is_offloaded(config, memory::kCategoryNames[i]);
    (is_beside ? most.beside : most.on_device) += all.forecast.categories[i].most;
  }
  return most;
}

// Whether all of a rank's bytes fit; empty where that was not asked.
std::string fit_text(const ConfigCommand& command, const Most& most) {
  if (command.memory_bytes == 0) return "";
  const auto room = static_cast<int64_t>(command.memory_bytes);
  std::string text = std::string(most.on_device <= room ? "\nIt fits: " : "\nIt does NOT fit: ") +
                     with_thousands(most.on_device) + " bytes at most, of " + with_thousands(room) +
                     ".\n";
  if (most.beside > 0)
    text += "Beside, on the CPU: " + with_thousands(most.beside) + " bytes at most.\n";
  return text + "Activations and the rest are not in it.\n";
}

bool fits(const ConfigCommand& command, const Most& most) {
  return most.on_device <= static_cast<int64_t>(command.memory_bytes);
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
  if (command.memory_bytes == 0) return record;
  const auto most = most_of(command, effective.config, *all);
  record["fits"] = fits(command, most);
  record["most_bytes"] = most.on_device;
  record["most_bytes_beside"] = most.beside;
  return record;
}

json parsed(const std::string& file) {
  return json::parse(read_file(file), nullptr, /*allow_exceptions=*/false, /*comments=*/true);
}

// 0: it is not there.
uint64_t number_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

constexpr uint64_t kMostRanks = uint64_t{1} << 20;

// Ranks that share samples; each size as far as kMostRanks, above which nothing is derived.
uint64_t group_of(const json& file) {
  const auto size = [](const json& object, const char* key) {
    return std::clamp<uint64_t>(number_at(object, key), 1, kMostRanks);
  };
  const auto tensor = file.find("tensor_parallel");
  const bool has_tensor = tensor != file.end() && tensor->is_object();
  return (has_tensor ? size(*tensor, "autotp_size") : 1) * size(file, "sequence_parallel_size");
}

// 0: its batch sizes do not say.
int ranks_of(const json& file) {
  const auto all = number_at(file, "train_batch_size"),
             micro = number_at(file, "train_micro_batch_size_per_gpu"),
             steps = number_at(file, "gradient_accumulation_steps"), group = group_of(file);
  if (all == 0 || micro == 0 || steps == 0) return 0;
  if (std::max({micro, steps, group}) >= kMostRanks) return 0;
  const auto samples = all / (micro * steps);
  const bool is_whole = all % (micro * steps) == 0 && samples <= kMostRanks / group;
  return is_whole ? static_cast<int>(samples * group) : 0;
}

}  // namespace

int config_check_command(const ConfigCommand& given) {
  auto command = given;
  if (given.device.empty()) command.device = given.memory_bytes > 0 ? "cuda" : "cpu";
  const auto file = parsed(given.file);
  std::string notes;
  if (given.world == 0) {
    const int said = file.is_object() ? ranks_of(file) : 0;
    command.world = std::max(said, 1);
    if (said > 1)
      notes = "For " + std::to_string(said) + " ranks, as the three batch sizes" +
              (group_of(file) > 1 ? " and the sizes of groups" : "") + " say.\n";
  }
  const bool brings_none = file.is_object() && !file.contains("optimizer");
  if (brings_none)
    notes += "No optimizer in the file: initialize() is to be given one, or add \"optimizer\".\n";
  const auto effective = brings_none ? explain_config_for_client(command.file, command.world)
                                     : explain_config(command.file, command.world);
  const MemoryOptions options{command.world, command.device == "cuda", {}};
  const auto all = sized(command, effective.config, options);
  const auto held = rates(effective.config, options);
  const bool pure = command.json == "-";
  check_writable(command.json);
  if (command.memory_bytes > 0 && !all)
    throw ConfigError(
        "config check",
        {"expected a model's size with --memory, got none. Give --parameters or --numels."});
  const auto most = all ? most_of(command, effective.config, *all) : Most{};
  const auto columns = columns_of(pure ? STDERR_FILENO : STDOUT_FILENO);
  (pure ? std::cerr : std::cout) << notes << (notes.empty() ? "" : "\n")
                                 << settings_text(effective, command.all, columns)
                                 << memory_text(command, effective.config, held, all, columns)
                                 << fit_text(command, most);
  const int code = command.memory_bytes == 0 || fits(command, most) ? kHeld : kFailed;
  if (command.json.empty()) return code;
  write_file(command.json, record_of(command, effective, held, all).dump(2) + "\n");
  return code;
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
