#include "perf/race/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>

#include "engine/comm/reduction.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/memory_model.hpp"
#include "perf/race/course.hpp"
#include "perf/race/rank_processes.hpp"
#include "perf/race/suites.hpp"
#include "perf/worker/model.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;

constexpr auto kTimeout = std::chrono::minutes(4);
constexpr int kWorld = 2;

int64_t sum_of(const PhaseBytes& phase) {
  return std::accumulate(phase.held_bytes.begin(), phase.held_bytes.end(), int64_t{0});
}

PhaseBytes phase_of(const std::string& name, const json& said) {
  PhaseBytes phase;
  phase.phase = name;
  phase.live_bytes = said.at("live_bytes");
  const auto& held = said.at("held");
  for (std::size_t i = 0; i < phase.held_bytes.size(); ++i)
    phase.held_bytes[i] = held.value(trace::kCategoryNames[i], int64_t{0});
  return phase;
}

std::vector<PhaseBytes> phases_of(const json& said) {
  std::vector<PhaseBytes> phases;
  for (const char* name : {"between", "forward", "backward", "first gradient", "step"})
    if (said.contains(name)) phases.push_back(phase_of(name, said.at(name)));
  const int64_t base_bytes = phases[0].live_bytes - sum_of(phases[0]);
  for (auto& phase : phases) {
    const int64_t beyond_bytes = phase.live_bytes - sum_of(phase) - base_bytes;
    const bool is_model = phase.phase != "between" && phase.phase != "step";
    phase.other_bytes = base_bytes + (is_model ? 0 : beyond_bytes);
    phase.activation_bytes = is_model ? beyond_bytes : 0;
  }
  return phases;
}

json engine_request(int stage, int64_t batch) {
  return {{"work", "engine"}, {"config", engine_config(stage, batch, 1, json::object()).dump()}};
}

// What reductions receive into: of two groups, while the first bucket is being added.
int64_t room_bytes(const layout::BucketPlan& plan) {
  using comm::Reduction;
  const auto& buckets = plan.buckets();
  int64_t most = 0, largest_numel = 0;
  for (std::size_t begin = 0; begin < buckets.size(); begin = plan.end_of_group(begin)) {
    int64_t pieces = 1;
    for (std::size_t i = begin; i < buckets.size() && buckets[i].group < buckets[begin].group + 2;
         ++i) {
      const int64_t all =
          (buckets[i].shard_numel + Reduction::kPieceNumel - 1) / Reduction::kPieceNumel;
      pieces += std::min<int64_t>(all, Reduction::kInFlight);
      largest_numel =
          std::max(largest_numel, std::min(buckets[i].shard_numel, Reduction::kPieceNumel));
    }
    most = std::max(most, pieces);
  }
  return most * largest_numel * kWorld * 4;
}

// Of buckets that several gradients are copied into: all of them are open at the first.
int64_t shared_bytes(const layout::BucketPlan& plan) {
  int64_t numel = 0;
  for (const auto& bucket : plan.buckets())
    if (bucket.slots.size() > 1) numel += plan.shards() * bucket.shard_numel;
  return numel * 4;
}

// Stages 0, 1: in backward gradients stay where plain LibTorch has them, but for those that share
// buckets; in step() all of them and the window. Stages 2, 3: when the backward begins, or when the
// first gradient is there, with buckets and the window; what may be whole is.
int64_t forecast_of(int stage, const json& model, int64_t batch,
                    const std::vector<PhaseBytes>& alone) {
  const auto config = parse_config(engine_config(stage, batch, 1, json::object()).dump(), kWorld);
  std::vector<int64_t> numels;
  for (const auto& [name, tensor] : Model(model).parameters()) numels.push_back(tensor.numel());
  const auto table = table_of_sizes(numels, config);
  const layout::BucketPlan plan(
      table, stage == 0 ? 1 : kWorld,
      layout::bucket_size(table, config.zero.reduce_bucket_size, stage >= 2));
  const auto held = forecast(table, config, {kWorld, false, {}});
  const auto& gathered = held.of(trace::Category::Gathered);
  const int64_t reduced_bytes =
      held.of(trace::Category::Buckets).peak + held.of(trace::Category::Gradients).peak;
  const int64_t backward_bytes = alone[2].activation_bytes + (stage < 2 ? shared_bytes(plan) : 0);
  const int64_t later_bytes = reduced_bytes + (stage < 2 ? 0 : alone[3].activation_bytes);
  return held.idle_bytes() + (stage == 3 ? gathered.most - gathered.idle : 0) + room_bytes(plan) +
         alone[0].other_bytes + std::max(backward_bytes, later_bytes);
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
  const Course course(model, kWorld, batch, 1, scratch);
  const auto measure = [&](const std::string& name, const json& settings) {
    const std::string folder = scratch + "/memory";
    std::filesystem::create_directories(folder);
    RankProcesses ranks(name, {worker}, kWorld, folder, kTimeout);
    json request = {{"do", "start"},     {"model", model},
                    {"batch", batch},    {"weights", course.weights()},
                    {"bf16", false},     {"batches", course.batches()},
                    {"accumulation", 1}, {"counted", true}};
    request.update(settings);
    ranks.ask(request);
    ranks.ask({{"do", "block"}, {"warm", 2}, {"steps", 0}});
    return MemoryRow{name, phases_of(ranks.ask({{"do", "memory"}})[0])};
  };
  std::vector<MemoryRow> rows = {measure("LibTorch alone", {{"work", "libtorch"}})};
  for (int stage = 0; stage <= 3; ++stage) {
    rows.push_back(measure(fmt::format("Equigrad stage {}", stage), engine_request(stage, batch)));
    rows.back().forecast_bytes = forecast_of(stage, model, batch, rows[0].phases);
  }
  return rows;
}

std::string memory_table(const std::vector<MemoryRow>& rows) {
  std::string table = "| contestant | phase | live, MB |";
  std::string rule = "|:--|:--|--:|";
  for (const char* category : trace::kCategoryNames) {
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
