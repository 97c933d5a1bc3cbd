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

// What is there when the backward pass begins, beyond what is there between steps.
int64_t left_by_forward(const json& said) {
  for (const auto& moment : said)
    if (moment.at("begins") == "backward")
      return moment.at("start_bytes").get<int64_t>() - said.at(0).at("start_bytes").get<int64_t>();
  return 0;
}

// Of the parts that a tensor rank has (perf/worker/shared_gpt.hpp).
std::vector<int64_t> numels_of(const json& model, int tensor) {
  std::vector<int64_t> numels;
  for (const auto& [name, tensor_of] : Model(model).parameters()) {
    const auto ends = [&, of = name](const char* end) { return of.ends_with(end); };
    const bool is_cut = ends("qkv.weight") || ends("qkv.bias") || ends("projection.weight") ||
                        ends("up.weight") || ends("up.bias") || ends("down.weight");
    numels.push_back(tensor_of.numel() / (is_cut ? tensor : 1));
  }
  return numels;
}

// The keys of a mesh in the engine's configuration.
json keys_of(const comm::MeshSizes& ranks) {
  json keys = json::object();
  if (ranks.tensor > 1) keys["tensor_parallel"]["autotp_size"] = ranks.tensor;
  if (ranks.sequence > 1) keys["sequence_parallel_size"] = ranks.sequence;
  return keys;
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
                                      const json& model, int64_t batch,
                                      const comm::MeshSizes& ranks) {
  const int world = ranks.world_size(), shards = ranks.data * ranks.sequence;
  const bool is_shared = ranks.sequence * ranks.tensor > 1;
  const Workload workload(model, ranks.data, batch, 1, scratch);
  int lives = 0;  // whose files are theirs alone
  const auto measure = [&](const std::string& name, int processes, const json& settings) {
    const std::string folder = scratch + "/memory" + std::to_string(lives++);
    RankProcesses all(name, {worker}, processes, folder);
    json request = {{"do", "start"},
                    {"model", model},
                    {"batch", batch},
                    {"weights", workload.weights()},
                    {"bf16", false},
                    {"batches", workload.batches()},
                    {"accumulation", 1},
                    {"counted", true},
                    {"sequence", ranks.sequence},
                    {"tensor", ranks.tensor}};
    request.update(settings);
    all.ask(request);
    all.ask({{"do", "block"}, {"warm", 2}, {"steps", 0}});
    return all.ask({{"do", "memory"}})[0];
  };
  const json alone = measure("LibTorch alone", is_shared ? 1 : world,
                             {{"work", "libtorch"}, {"empty", is_shared}});
  std::vector<Moment> moments;
  for (const auto& moment : alone) moments.push_back(moment_of(moment));
  const auto numels = numels_of(model, ranks.tensor);
  std::vector<MemoryRow> rows = {{"LibTorch alone", phases_of(alone), 0, left_by_forward(alone)}};
  for (int stage = 0; stage <= (ranks.tensor > 1 ? 2 : 3); ++stage) {
    const std::string name = fmt::format("Equigrad stage {}", stage);
    const std::string config = engine_config(stage, batch, 1, keys_of(ranks)).dump();
    const int64_t forecast_bytes =
        forecast_peak_bytes(numels, parse_config(config, world), shards, moments);
    const json said = measure(name, world, {{"work", "engine"}, {"config", config}});
    rows.push_back({name, phases_of(said), forecast_bytes, left_by_forward(said)});
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
