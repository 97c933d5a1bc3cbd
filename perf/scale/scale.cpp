#include "perf/scale/scale.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "engine/config/config.hpp"
#include "engine/memory/forecast.hpp"
#include "perf/race/suites.hpp"
#include "perf/race/workload.hpp"
#include "perf/scale/others.hpp"
#include "perf/scale/play.hpp"
#include "perf/worker/model.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;

constexpr int64_t kPlayedBatch = 1;

std::vector<int64_t> numels_of(const json& settings) {
  std::vector<int64_t> numels;
  Model model(settings);
  for (const auto& [name, parameter] : model.parameters()) numels.push_back(parameter.numel());
  return numels;
}

// The engine's forecast, beside the books of the rank that was played.
MemoryForecast checked_forecast(const std::vector<int64_t>& numels, const std::string& config_text,
                                int world, const PlayedStep& played) {
  const auto config = parse_config(config_text, world);
  const auto held = forecast(table_of_sizes(numels, config), config, {.world_size = world});
  const auto& gathered = held.of(memory::Category::Gathered);
  if (held.idle_bytes() != played.held_bytes && gathered.is_exact)
    throw std::runtime_error(
        fmt::format("[scale] expected a rank of {} to hold {} bytes between "
                    "steps, got {}.",
                    world, held.idle_bytes(), played.held_bytes));
  return held;
}

ScaleRow engine_row(const ScaleOptions& options, const Workload& workload,
                    const std::vector<int64_t>& numels, int stage, int world,
                    const std::string& worker, const std::string& scratch) {
  const auto config = engine_config(stage, kPlayedBatch, options.accumulation, options.config);
  const Piece piece{options.model, workload, kPlayedBatch, config};
  auto player = Player::played(worker, scratch,
                               {.world = world, .local = options.network.local_ranks(world)});
  const auto played = player.step(piece).front();
  const auto held = checked_forecast(numels, config.dump(), world, played);
  const auto step = traffic_of(played.calls, world, options.network);
  return {.who = "Equigrad",
          .stage = stage,
          .world = world,
          .calls = step.calls,
          .agreements = step.agreements,
          .all = step.all,
          .words = step.words,
          .held_bytes = held.idle_bytes(),
          .peak_bytes = played.held_peak_bytes + played.under_way_bytes};
}

ScaleRow other_row(const ScaleOptions& options, const std::vector<int64_t>& numels, int stage,
                   int world) {
  const auto step =
      deepspeed_step(stage, numels, static_cast<int>(options.accumulation), world, options.network);
  return {.who = stage == 0 ? "ring (DDP)" : "DeepSpeed",
          .stage = stage,
          .world = world,
          .calls = step.collectives,
          .all = step.all,
          .held_bytes = step.held_bytes};
}

double in_mb(int64_t bytes) { return static_cast<double>(bytes) * 1e-6; }

std::string line_of(const ScaleRow& row, double compute_s) {
  const bool is_played = row.peak_bytes != 0;
  return fmt::format(
      "| {} | {} | {} | {} | {} | {} | {:.1f} | {:.1f} | {:.2f} | {} | {:.1f} | {} |\n", row.world,
      row.who, row.calls, is_played ? std::to_string(row.agreements) : "", row.all.messages,
      row.all.messages_between, in_mb(row.all.bytes), in_mb(row.all.bytes_between),
      (compute_s + row.all.seconds) * 1e3,
      is_played ? fmt::format("{:.2f}", row.words.seconds * 1e3) : "", in_mb(row.held_bytes),
      is_played ? fmt::format("{:.1f}", in_mb(row.peak_bytes)) : "");
}

json json_of(const Traffic& traffic) {
  return {{"messages", traffic.messages},
          {"messages_between", traffic.messages_between},
          {"bytes", traffic.bytes},
          {"bytes_between", traffic.bytes_between},
          {"seconds", traffic.seconds}};
}

json json_of(const Link& link) {
  return {{"latency_s", link.latency_s}, {"bytes_per_s", link.bytes_per_s}};
}

}  // namespace

std::vector<ScaleRow> scale_rows(const ScaleOptions& options, const std::string& worker,
                                 const std::string& scratch) {
  const Workload workload(options.model, 1, kPlayedBatch, 1, scratch);
  const auto numels = numels_of(options.model);
  std::vector<ScaleRow> rows;
  for (const int stage : options.stages)
    for (const int world : options.worlds) {
      rows.push_back(engine_row(options, workload, numels, stage, world, worker, scratch));
      rows.push_back(other_row(options, numels, stage, world));
    }
  return rows;
}

std::string to_markdown(const std::vector<ScaleRow>& rows, const ScaleOptions& options) {
  const auto& net = options.network;
  std::string text = fmt::format(
      "{} ranks a host; within a host {:g} us and {:g} GB/s a rank, between hosts {:g} us and {:g} "
      "GB/s a host; accumulation {}; a step is {:g} ms of computing and its messages, nothing "
      "overlapped.\n",
      net.ranks_per_host, net.within.latency_s * 1e6, net.within.bytes_per_s * 1e-9,
      net.between.latency_s * 1e6, net.between.bytes_per_s * 1e-9, options.accumulation,
      options.compute_s * 1e3);
  int stage = -1;
  for (const auto& row : rows) {
    if (row.stage != stage)
      text += fmt::format(
          "\n## Stage {}\n\n| ranks | | calls | of them agreements | messages | to other hosts "
          "| "
          "MB sent | to other hosts | step ms | of it agreements | MB held | at the peak |\n"
          "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
          row.stage);
    stage = row.stage;
    text += line_of(row, options.compute_s);
  }
  return text;
}

json to_json(const std::vector<ScaleRow>& rows, const ScaleOptions& options) {
  json all = json::array();
  for (const auto& row : rows)
    all.push_back({{"who", row.who},
                   {"stage", row.stage},
                   {"ranks", row.world},
                   {"calls", row.calls},
                   {"agreements", row.agreements},
                   {"all", json_of(row.all)},
                   {"words", json_of(row.words)},
                   {"step_s", options.compute_s + row.all.seconds},
                   {"held_bytes", row.held_bytes},
                   {"peak_bytes", row.peak_bytes}});
  return {{"model", options.model},
          {"accumulation", options.accumulation},
          {"compute_s", options.compute_s},
          {"ranks_per_host", options.network.ranks_per_host},
          {"within", json_of(options.network.within)},
          {"between", json_of(options.network.between)},
          {"rows", all}};
}

}  // namespace equigrad::perf
