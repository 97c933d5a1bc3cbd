#include "engine/profile/flops_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/error.hpp"

namespace equigrad::profile {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNsPerS = 1e9;

// Two digits after the point, as few as there are: 3.5 G.
std::string rounded(double value) { return fmt::format("{:g}", std::round(value * 100) / 100); }

std::string with_unit(double value, const char* giga = "G") {
  const std::pair<double, const char*> units[] = {{1e12, "T"}, {1e9, giga}, {1e6, "M"}, {1e3, "K"}};
  for (const auto& [size, unit] : units) {
    if (value >= size) return rounded(value / size) + " " + unit;
  }
  if (value >= 1 || value == 0) return rounded(value) + " ";
  return value >= 1e-3 ? rounded(value * 1e3) + " m" : rounded(value * 1e6) + " u";
}

std::string with_unit(int64_t value) { return with_unit(static_cast<double>(value)); }

std::string params(int64_t numel) {
  auto text = with_unit(static_cast<double>(numel), "B");
  while (text.back() == ' ') text.pop_back();
  return text;
}

std::string seconds(int64_t time_ns) {
  return with_unit(static_cast<double>(time_ns) / kNsPerS) + "s";
}

std::string per_second(double flops, int64_t time_ns) {
  if (time_ns <= 0) return "0 FLOPS";
  return with_unit(flops / (static_cast<double>(time_ns) / kNsPerS)) + "FLOPS";
}

std::string percent(int64_t part, int64_t whole) {
  if (whole == 0) return "0%";
  return rounded(100.0 * static_cast<double>(part) / static_cast<double>(whole)) + "%";
}

class Text {
 public:
  void line(const std::string& text) { text_ += text + "\n"; }
  void row(const std::string& name, const std::string& value) {
    text_ += fmt::format("{:<70}  {:<8}\n", name + ":", value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_summary(const FlopsReport& report, const ProfiledRun& run, double recompute_fwd_factor,
                 Text& text) {
  const auto& model = report.modules.front();
  const auto fwd_flops = static_cast<double>(model.forward.flops);
  const double bwd_factor = 2 + recompute_fwd_factor;
  text.row("world size", std::to_string(run.world_size));
  text.row("data parallel size", std::to_string(run.world_size));
  text.row("batch size per GPU", std::to_string(run.micro_batch_size));
  text.row("params per GPU", params(model.params_numel));
  text.row("fwd MACs per GPU", with_unit(model.forward.macs) + "MACs");
  text.row("fwd flops per GPU", with_unit(model.forward.flops));
  text.row("bwd MACs per GPU, counted", with_unit(model.backward.macs) + "MACs");
  text.row("bwd flops per GPU, counted", with_unit(model.backward.flops));
  text.row("fwd latency", seconds(report.forward_ns));
  text.row("fwd FLOPS per GPU = fwd flops per GPU / fwd latency",
           per_second(fwd_flops, report.forward_ns));
  text.row("bwd latency", seconds(report.backward_ns));
  text.row(fmt::format("bwd FLOPS per GPU = {:g} * fwd flops per GPU / bwd latency", bwd_factor),
           per_second(bwd_factor * fwd_flops, report.backward_ns));
  text.row(fmt::format("fwd+bwd FLOPS per GPU = {:g} * fwd flops per GPU / (fwd+bwd latency)",
                       bwd_factor + 1),
           per_second((bwd_factor + 1) * fwd_flops, report.forward_ns + report.backward_ns));
  text.row("step latency", seconds(run.step_ns));
  const int64_t iter_ns = report.forward_ns + report.backward_ns + run.step_ns;
  text.row("iter latency", seconds(iter_ns));
  text.row(fmt::format("FLOPS per GPU = {:g} * fwd flops per GPU / iter latency", bwd_factor + 1),
           per_second((bwd_factor + 1) * fwd_flops, iter_ns));
  const auto samples = static_cast<double>(run.micro_batch_size * run.world_size) * kNsPerS;
  text.row("samples/second", iter_ns == 0 ? "0" : rounded(samples / static_cast<double>(iter_ns)));
}

// The `count` types of modules at one depth that have most of something.
template <class Value, class Print>
std::string top(const std::map<std::string, ModuleProfile>& types, int64_t count, Value value,
                Print print) {
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [type, sum] : types) sorted.emplace_back(-value(sum), type);
  std::sort(sorted.begin(), sorted.end());
  sorted.resize(std::min(sorted.size(), static_cast<std::size_t>(std::max(count, int64_t{0}))));
  std::string text;
  for (const auto& [minus, type] : sorted) {
    text += fmt::format("{}'{}': '{}'", text.empty() ? "" : ", ", type, print(-minus));
  }
  return "{" + text + "}";
}

void add_aggregate(const FlopsReport& report, const FlopsProfilerConfig& config, Text& text) {
  std::map<int64_t, std::map<std::string, ModuleProfile>> by_depth;
  for (const auto& module : report.modules) {
    auto& sum = by_depth[module.depth][module.type];
    sum.params_numel += module.params_numel;
    sum.forward += module.forward;
  }
  text.line(
      fmt::format("Top {} modules in terms of params, MACs or fwd latency at different model "
                  "depths:",
                  config.top_modules));
  for (const auto& [depth, types] : by_depth) {
    if (config.module_depth >= 0 && depth > config.module_depth) break;
    const auto count = config.top_modules;
    text.line(fmt::format("depth {}:", depth));
    text.line("    params      - " +
              top(
                  types, count, [](const auto& sum) { return sum.params_numel; }, params));
    text.line("    MACs        - " + top(
                                         types, count,
                                         [](const auto& sum) { return sum.forward.macs; },
                                         [](int64_t macs) { return with_unit(macs) + "MACs"; }));
    text.line("    fwd latency - " +
              top(
                  types, count, [](const auto& sum) { return sum.forward.time_ns; }, seconds));
  }
}

void add_details(const FlopsReport& report, Text& text) {
  const auto& model = report.modules.front();
  text.line(
      "Each module profile is listed after its name in the following order:\n"
      "params, percentage of total params, MACs, percentage of total MACs, fwd latency, percentage "
      "of total fwd latency, fwd FLOPS\n"
      "A module's numbers include its submodules'. What a module computes itself, without a "
      "submodule, makes up the difference.\n");
  for (const auto& module : report.modules) {
    const auto name = module.name.substr(module.name.rfind('.') + 1);
    text.line(fmt::format(
        "{}{}{}: {} = {} Params, {}MACs = {} MACs, {} = {} latency, {}",
        std::string(static_cast<std::size_t>(2 * module.depth), ' '),
        name.empty() ? "" : "(" + name + "): ", module.type, params(module.params_numel),
        percent(module.params_numel, model.params_numel), with_unit(module.forward.macs),
        percent(module.forward.macs, model.forward.macs), seconds(module.forward.time_ns),
        percent(module.forward.time_ns, model.forward.time_ns),
        per_second(static_cast<double>(module.forward.flops), module.forward.time_ns)));
  }
}

Json as_json(const Tally& tally) {
  return {{"flops", tally.flops}, {"macs", tally.macs}, {"time_ns", tally.time_ns}};
}

}  // namespace

Tally& Tally::operator+=(const Tally& other) {
  flops += other.flops;
  macs += other.macs;
  time_ns += other.time_ns;
  return *this;
}

std::string table(const FlopsReport& report, const ProfiledRun& run,
                  const FlopsProfilerConfig& config) {
  Text text;
  text.line("\n-------------------------- Equigrad Flops Profiler --------------------------");
  text.line(fmt::format("Profile Summary at step {}:", run.step));
  text.line(
      "Notations:\n"
      "number of parameters (params), number of multiply-accumulate operations (MACs),\n"
      "number of floating-point operations (flops), floating-point operations per second (FLOPS),\n"
      "fwd latency (forward propagation latency), bwd latency (backward propagation latency),\n"
      "step (weights update latency), iter latency (sum of fwd, bwd and step latency)\n");
  add_summary(report, run, config.recompute_fwd_factor, text);
  if (!report.unknown.empty()) {
    text.line("\nOperators without a formula, counted as 0 flops:");
    for (const auto& [name, count] : report.unknown) {
      text.line(fmt::format("    {} - {} calls", name, count));
    }
  }
  text.line(
      "\n----------------------------- Aggregated Profile per GPU ----------------------------");
  add_aggregate(report, config, text);
  if (config.detailed) {
    text.line(
        "\n------------------------------ Detailed Profile per GPU -----------------------------");
    add_details(report, text);
  }
  text.line("------------------------------------------------------------------------------");
  return text.take();
}

std::string json(const FlopsReport& report, const ProfiledRun& run) {
  Json modules = Json::array(), unknown = Json::array();
  for (const auto& module : report.modules) {
    modules.push_back({{"name", module.name},
                       {"type", module.type},
                       {"depth", module.depth},
                       {"params", module.params_numel},
                       {"own_forward", as_json(module.own_forward)},
                       {"own_backward", as_json(module.own_backward)},
                       {"forward", as_json(module.forward)},
                       {"backward", as_json(module.backward)}});
  }
  for (const auto& [name, count] : report.unknown) {
    unknown.push_back({{"name", name}, {"count", count}});
  }
  const Json root{{"step", run.step},
                  {"world_size", run.world_size},
                  {"micro_batch_size", run.micro_batch_size},
                  {"forward_ns", report.forward_ns},
                  {"backward_ns", report.backward_ns},
                  {"step_ns", run.step_ns},
                  {"modules", modules},
                  {"unknown_operators", unknown}};
  return root.dump(2) + "\n";
}

void write(const FlopsReport& report, const ProfiledRun& run, const FlopsProfilerConfig& config) {
  const std::filesystem::path path = config.output_file;
  if (path.empty()) {
    fmt::print("{}", table(report, run, config));
    std::fflush(stdout);
    return;
  }
  std::error_code ignored;  // the file below says it
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
  std::ofstream file(path);
  file << (path.extension() == ".json" ? json(report, run) : table(report, run, config));
  file.flush();
  if (!file) {
    throw Error("flops_profiler.output_file",
                "expected a file that can be written, got \"" + path.string() +
                    "\". Name another one, or none for standard output.");
  }
}

}  // namespace equigrad::profile
