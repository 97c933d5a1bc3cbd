#include "perf/race/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/config/config.hpp"
#include "perf/race/memory_forecast.hpp"
#include "perf/race/rank_processes.hpp"
#include "perf/race/suites.hpp"
#include "perf/race/workload.hpp"
#include "perf/worker/model.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;

constexpr int kWorld = 2;

int64_t sum_of(const PhaseBytes& phase) {
  return std::accumulate(phase.held_bytes.begin(), phase.held_bytes.end(), int64_t{0});
}

Moment moment_of(const json& said) {
  Moment moment{.begins = said.at("begins"),
                .parameters = said.at("parameters"),
                .start_bytes = said.at("start_bytes"),
                .live_bytes = said.at("live_bytes")};
  const auto& held = said.at("held");
  moment.gradient_bytes = held.value("gradients", int64_t{0});
  for (const char* category : memory::kCategoryNames)
    moment.held_bytes += held.value(category, int64_t{0});
  return moment;
}

// The highest moments of "between", forward, backward and step.
std::vector<PhaseBytes> phases_of(const json& said) {
  std::vector<PhaseBytes> phases;
  for (const auto& moment : said) {
    PhaseBytes phase;
    phase.phase = moment.at("begins");
    phase.live_bytes = moment.at("live_bytes");
    for (std::size_t i = 0; i < phase.held_bytes.size(); ++i)
      phase.held_bytes[i] = moment.at("held").value(memory::kCategoryNames[i], int64_t{0});
    const bool goes_on = phase.phase == "use" || phase.phase == "gradient";
    if (!goes_on) {
      phases.push_back(phase);
    } else if (phase.live_bytes > phases.back().live_bytes) {
      phase.phase = phases.back().phase;
      phases.back() = phase;
    }
  }
  const int64_t base_bytes = phases[0].live_bytes - sum_of(phases[0]);
  for (auto& phase : phases) {
    const int64_t beyond_bytes = phase.live_bytes - sum_of(phase) - base_bytes;
    const bool is_model = phase.phase != "between" && phase.phase != "step";
    phase.other_bytes = base_bytes + (is_model ? 0 : beyond_bytes);
    phase.activation_bytes = is_model ? beyond_bytes : 0;
  }
  return phases;
}

std::string megabytes(int64_t bytes) {
  return bytes == 0 ? "" : fmt::format("{:.2f}", static_cast<double>(bytes) / 1e6);
}

}  // namespace

int64_t MemoryRow::peak_bytes() const {
  int64_t most = 0;
  for (const auto& phase : phases) most = std::max(most, phase.live_bytes);
  return most;
}

std::vector<MemoryRow> measure_memory(const std::string& worker, const std::string& scratch,
                                      const json& model, int64_t batch) {
  const Workload workload(model, kWorld, batch, 1, scratch);
  const auto measure = [&](const std::string& name, const json& settings) {
    RankProcesses ranks(name, {worker}, kWorld, scratch + "/memory");
    json request = {{"do", "start"},     {"model", model},
                    {"batch", batch},    {"weights", workload.weights()},
                    {"bf16", false},     {"batches", workload.batches()},
                    {"accumulation", 1}, {"counted", true}};
    request.update(settings);
    ranks.ask(request);
    ranks.ask({{"do", "block"}, {"warm", 2}, {"steps", 0}});
    return ranks.ask({{"do", "memory"}})[0];
  };
  const json alone = measure("LibTorch alone", {{"work", "libtorch"}});
  std::vector<Moment> moments;
  for (const auto& moment : alone) moments.push_back(moment_of(moment));
  std::vector<int64_t> numels;
  for (const auto& [name, tensor] : Model(model).parameters()) numels.push_back(tensor.numel());
  std::vector<MemoryRow> rows = {{"LibTorch alone", phases_of(alone)}};
  for (int stage = 0; stage <= 3; ++stage) {
    const std::string name = fmt::format("Equigrad stage {}", stage);
    const std::string config = engine_config(stage, batch, 1, json::object()).dump();
    const int64_t forecast_bytes =
        forecast_peak_bytes(numels, parse_config(config, kWorld), kWorld, moments);
    rows.push_back(
        {name, phases_of(measure(name, {{"work", "engine"}, {"config", config}})), forecast_bytes});
  }
  return rows;
}

std::string memory_table(const std::vector<MemoryRow>& rows) {
  std::string table = "| contestant | phase | live, MB |";
  std::string rule = "|:--|:--|--:|";
  for (const char* category : memory::kCategoryNames) {
    table += fmt::format(" {} |", category);
    rule += "--:|";
  }
  table += " activations | other | forecast, MB | off by |\n" + rule + "--:|--:|--:|--:|\n";
  for (const auto& row : rows) {
    for (const auto& phase : row.phases) {
      table +=
          fmt::format("| {} | {} | {} |", row.contestant, phase.phase, megabytes(phase.live_bytes));
      for (const int64_t bytes : phase.held_bytes) table += " " + megabytes(bytes) + " |";
      const bool has_forecast = phase.live_bytes == row.peak_bytes() && row.forecast_bytes > 0;
      table += fmt::format(
          " {} | {} | {} | {} |\n", megabytes(phase.activation_bytes), megabytes(phase.other_bytes),
          has_forecast ? "at most " + megabytes(row.forecast_bytes) : "",
          has_forecast
              ? fmt::format("{:+.2f} %",
                            100.0 * static_cast<double>(row.forecast_bytes - phase.live_bytes) /
                                static_cast<double>(phase.live_bytes))
              : "");
    }
  }
  return table;
}

}  // namespace equigrad::perf
