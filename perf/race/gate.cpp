#include "perf/race/gate.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>

#include "conformance/campaigns/environment.hpp"
#include "perf/race/rank_processes.hpp"
#include "perf/race/suites.hpp"
#include "perf/race/workload.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;

constexpr int64_t kBatch = 2;
constexpr int64_t kLeakSteps = 30;
constexpr int kLeakWindows = 3;

json start_request(const json& model, const Workload& workload, const json& settings, int64_t batch,
                   const json& faults) {
  json request = {{"do", "start"},     {"model", model},
                  {"batch", batch},    {"weights", workload.weights()},
                  {"bf16", false},     {"batches", workload.batches()},
                  {"accumulation", 1}, {"faults", faults}};
  request.update(settings);
  return request;
}

// Small, but with more buckets and pages than one.
json counted_model() { return gpt(2, 24, 2, 16, 64); }

json small_buckets(const std::string& reduction) {
  return {{"reduction", reduction},
          {"zero_optimization",
           {{"reduce_bucket_size", 8'000},
            {"allgather_bucket_size", 8'000},
            {"stage3_prefetch_bucket_size", 4'000},
            {"stage3_max_live_parameters", 8'000},
            {"stage3_param_persistence_threshold", 100}}}};
}

// Makes the ranks train with a configuration, from the start.
void start(RankProcesses& ranks, const Workload& workload, const json& config, const json& faults) {
  const json settings = {{"work", "engine"}, {"config", config.dump()}, {"counted", true}};
  ranks.ask(start_request(counted_model(), workload, settings, kBatch, faults));
}

json counted(RankProcesses& ranks, int64_t steps) {
  ranks.ask({{"do", "block"}, {"warm", 3}, {"steps", 0}});
  json by_rank = json::object();
  const auto answers = ranks.ask({{"do", "counts"}, {"steps", steps}});
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    json kept;
    for (const char* key :
         {"collectives", "overlapped", "payload_bytes", "allocations", "allocated_bytes"})
      kept[key] = answers[rank].at(key);
    kept["held_bytes"] = answers[rank].at("ledger").at("held_bytes");
    kept["held_peak_bytes"] = answers[rank].at("ledger").at("held_peak_bytes");
    kept["gathering"] = answers[rank].at("ledger").at("gathering");
    by_rank["rank " + std::to_string(rank)] = kept;
  }
  return by_rank;
}

void walk(const std::string& where, const json& expected, const json& got,
          std::vector<std::string>& found) {
  if (expected.is_object() && got.is_object()) {
    for (const auto& [key, value] : expected.items())
      walk(where + (where.empty() ? "" : ": ") + key, value, got.value(key, json()), found);
    for (const auto& [key, value] : got.items())
      if (!expected.contains(key))
        found.push_back(where + ": " + key + ": expected nothing, got " + value.dump());
    return;
  }
  if (expected != got)
    found.push_back(where + ": expected " + expected.dump() + ", got " + got.dump());
}

// A block's mean step: the slowest rank's wall clock, and the CPU time of all ranks.
struct BlockTimes {
  double wall_s = 0, cpu_s = 0;
};
BlockTimes time_block(RankProcesses& ranks, int steps) {
  BlockTimes times;
  for (const auto& answer : ranks.ask({{"do", "block"}, {"warm", 1}, {"steps", steps}})) {
    const auto seconds = answer.at("seconds").get<std::vector<double>>();
    times.wall_s = std::max(times.wall_s, std::accumulate(seconds.begin(), seconds.end(), 0.0));
    times.cpu_s += answer.at("cpu_seconds").get<double>();
  }
  return {times.wall_s / steps, times.cpu_s / steps};
}

LifeTimes live(const TimesPlan& plan, const Workload& workload, const std::string& scratch,
               int life) {
  std::vector<std::unique_ptr<RankProcesses>> both;
  for (const auto* contestant : {&plan.older, &plan.newer}) {
    both.push_back(std::make_unique<RankProcesses>(contestant->name, contestant->command,
                                                   plan.world,
                                                   scratch + (both.empty() ? "/older" : "/newer")));
    both.back()->ask(start_request(plan.model, workload, contestant->settings, plan.batch,
                                   contestant->settings.value("faults", json::object())));
    time_block(*both.back(), 3);
  }
  LifeTimes found;
  for (int pair = 0; pair < plan.pairs; ++pair) {
    BlockTimes times[2];
    for (const int turn : {0, 1}) {
      const int which = (pair + life + turn) % 2;
      times[which] = time_block(*both[static_cast<std::size_t>(which)], plan.steps);
    }
    found.ratios.push_back(times[1].wall_s / times[0].wall_s);
    found.cpu_ratios.push_back(times[1].cpu_s / times[0].cpu_s);
  }
  return found;
}

void append(std::vector<double>& to, const std::vector<double>& values) {
  to.insert(to.end(), values.begin(), values.end());
}

}  // namespace

json count_steps(const std::string& worker, const std::string& scratch, const json& faults,
                 const std::vector<int>& worlds) {
  json all = json::object();
  for (const int world : worlds) {
    const Workload workload(counted_model(), world, kBatch, 1, scratch);
    RankProcesses ranks("counted", {worker}, world, scratch + "/counted");
    for (int stage = 0; stage <= 3; ++stage)
      for (const char* reduction : {"pinned", "native"}) {
        const std::string name = "stage " + std::to_string(stage) + ", " + reduction + ", ranks " +
                                 std::to_string(world);
        const auto config = engine_config(stage, kBatch, 1, small_buckets(reduction));
        start(ranks, workload, config, faults);
        all[name] = counted(ranks, 1);
      }
  }
  return all;
}

std::vector<std::string> differences(const json& expected, const json& got) {
  std::vector<std::string> found;
  walk("", expected, got, found);
  return found;
}

LeakReport find_leaks(const std::string& worker, const std::string& scratch, int stage,
                      const json& faults) {
  const Workload workload(counted_model(), 2, kBatch, 1, scratch);
  const auto config = engine_config(stage, kBatch, 1, small_buckets("pinned"));
  RankProcesses ranks("leaks", {worker}, 2, scratch + "/leaks");
  start(ranks, workload, config, faults);
  LeakReport report;
  report.steps = kLeakSteps;
  int64_t held_bytes = 0;
  for (int window = -1; window < kLeakWindows; ++window) {
    int64_t grown_bytes = 0, grown_count = 0, now_held_bytes = 0;
    for (const auto& answer : ranks.ask({{"do", "counts"}, {"steps", kLeakSteps}})) {
      grown_bytes = std::max(grown_bytes, answer.at("grown_bytes").get<int64_t>());
      grown_count = std::max(grown_count, answer.at("grown_count").get<int64_t>());
      now_held_bytes =
          std::max(now_held_bytes, answer.at("ledger").at("held_bytes").get<int64_t>());
    }
    const int64_t ledger_bytes = now_held_bytes - held_bytes;
    held_bytes = now_held_bytes;
    if (window < 0) continue;  // caches fill
    const bool first = window == 0;
    report.grown_bytes = first ? grown_bytes : std::min(report.grown_bytes, grown_bytes);
    report.grown_count = first ? grown_count : std::min(report.grown_count, grown_count);
    report.ledger_bytes = first ? ledger_bytes : std::min(report.ledger_bytes, ledger_bytes);
  }
  return report;
}

// With more questions each has less of 1 - confidence, and needs more lives.
Looks looks_of(const TimesPlan& plan) {
  for (std::size_t questions = 1;; ++questions) {
    // Wall clock and CPU time are asked.
    Looks looks{{}, 1 - (1 - plan.confidence) / (2 * static_cast<double>(questions))};
    for (int lives = values_for(looks.confidence); lives < plan.lives; lives += (lives + 1) / 2)
      looks.lives.push_back(lives);
    looks.lives.push_back(plan.lives);
    if (looks.lives.size() <= questions || plan.lives == 1) return looks;
  }
}

TimesResult compare_times(const TimesPlan& plan, const std::string& scratch) {
  const Workload workload(plan.model, plan.world, plan.batch, 1, scratch);
  return judge_lives(plan, [&](int life) { return live(plan, workload, scratch, life); });
}

std::vector<LifeTimes> lives_of(const TimesResult& result) {
  std::vector<LifeTimes> all(static_cast<std::size_t>(result.lives));
  const auto pairs = result.ratios.size() / std::max<std::size_t>(all.size(), 1);
  for (std::size_t i = 0; i < all.size() * pairs; ++i) {
    all[i / pairs].ratios.push_back(result.ratios[i]);
    all[i / pairs].cpu_ratios.push_back(result.cpu_ratios[i]);
  }
  return all;
}

TimesResult judge_lives(const TimesPlan& plan, const std::function<LifeTimes(int life)>& live) {
  TimesResult result;
  const auto looks = looks_of(plan);
  for (const int next : looks.lives) {
    while (result.lives < next) {
      const auto times = live(++result.lives);
      append(result.ratios, times.ratios);
      append(result.cpu_ratios, times.cpu_ratios);
    }
    const auto ratios = by_life(result.ratios, result.lives);
    result.ratio = median_interval(ratios, looks.confidence);
    result.cpu_ratio = median_interval(by_life(result.cpu_ratios, result.lives), looks.confidence);
    const bool costs_cpu = judge(result.cpu_ratio, plan.margin) == Verdict::Regressed;
    result.verdict = costs_cpu ? Verdict::Regressed : judge(result.ratio, plan.margin);
    if (ratios.size() < static_cast<std::size_t>(values_for(looks.confidence)))
      result.verdict = Verdict::Inconclusive;
    if (result.verdict != Verdict::Inconclusive) break;
  }
  return result;
}

std::vector<TimesResult> judge_drawn(const TimesPlan& plan, const std::vector<LifeTimes>& lives,
                                     int runs) {
  std::mt19937_64 draw(1);
  std::vector<TimesResult> all;
  for (int run = 0; run < runs; ++run)
    all.push_back(judge_lives(plan, [&](int) { return lives.at(draw() % lives.size()); }));
  return all;
}

void Noise::add(const TimesResult& result) {
  ++runs;
  alarms += result.verdict == Verdict::Regressed ? 1 : 0;
  open += result.verdict == Verdict::Inconclusive ? 1 : 0;
  widest = std::max(widest, std::max(result.ratio.median, 1 / result.ratio.median) - 1);
}

std::string Noise::text(const std::string& of) const {
  std::string text = std::to_string(runs) + " runs of " + of + ": " + std::to_string(alarms) +
                     " false alarms, " + std::to_string(open) + " inconclusive; the median ratio";
  char off[64];
  std::snprintf(off, sizeof off, " is off by at most %.2f %%", 100 * widest);
  return text + off;
}

std::string machine_key() {
  const auto here = conformance::environment_here();
  return here.cpu + " x" + std::to_string(here.cores) + ", " + here.os + ", torch " + here.torch;
}

}  // namespace equigrad::perf
