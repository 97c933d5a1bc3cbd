#include "perf/perf_ranks.hpp"

#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <equigrad_build_info.hpp>
#include <fstream>
#include <map>
#include <numeric>
#include <stdexcept>

#include "conformance/ranks/pool.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::perf {
namespace {

using conformance::ranks::Pool;
using conformance::ranks::RankContext;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUps = 3;
constexpr double kMib = 1 << 20;

// A line of /proc/self/status such as "VmHWM:  123 kB", in bytes.
int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind(key + ":", 0) == 0) return std::stoll(line.substr(key.size() + 1)) * 1024;
  throw std::runtime_error("[perf] expected " + key + " in /proc/self/status, got none.");
}

void barrier(RankContext& context) { comm::exchange(*context.group(), at::zeros({1}, at::kLong)); }

// The rank's side: "start" makes all variants, "round" gives the nanoseconds of each.
class Side {
 public:
  Side(const Group& group, const MakeVariant& make, RankContext& context) : context_(context) {
    for (const auto& name : group.variants) {
      context_.note("warming up " + name);
      variants_.push_back(make(name, group.settings, context_));
      variants_.back()->prepare();
      for (int i = 0; i < kWarmUps; ++i) variants_.back()->run();
    }
  }

  json round(std::size_t number) {
    std::vector<int64_t> ns(variants_.size());
    for (std::size_t turn = 0; turn < ns.size(); ++turn) {
      const std::size_t index = (turn + number) % ns.size();
      variants_[index]->prepare();
      barrier(context_);
      const auto begin = Clock::now();
      variants_[index]->run();
      ns[index] = std::chrono::nanoseconds(Clock::now() - begin).count();
    }
    return ns;
  }

 private:
  RankContext& context_;
  std::vector<std::unique_ptr<Variant>> variants_;
};

json memory_of(const Group& group, const MakeVariant& make, const std::string& variant,
               RankContext& context) {
  barrier(context);  // connections cost memory too, and belong to nobody
  const int64_t before_bytes = status_bytes("VmRSS");
  const auto made = make(variant, group.settings, context);
  for (int i = 0; i < kWarmUps; ++i) made->run();
  return {made->peak_bytes(), status_bytes("VmHWM") - before_bytes};
}

struct Row {
  std::vector<double> ns;  // by round, the slowest rank's
  int64_t held_bytes = 0;  // by the variant's own books, the fullest rank's
  int64_t process_bytes = 0;
};

class Measurement {
 public:
  Measurement(Group group, MakeVariant make) : group_(std::move(group)), make_(std::move(make)) {}

  // Everything is measured when the first row is asked for.
  const std::vector<Row>& rows() {
    if (rows_.empty()) measure();
    return rows_;
  }
  const Group& group() const { return group_; }

 private:
  std::vector<conformance::ranks::Outcome> ask(Pool& pool, const json& request) const {
    std::vector<int> ranks(static_cast<std::size_t>(group_.world));
    std::iota(ranks.begin(), ranks.end(), 0);
    auto outcomes = pool.run(ranks, request);
    if (!all_ok(outcomes)) throw std::runtime_error("[perf] " + failures(outcomes));
    return outcomes;
  }

  Pool pool() const {
    const auto side = std::make_shared<std::unique_ptr<Side>>();  // each rank has its own
    return Pool(group_.world,
                [this, side](const json& request, RankContext& context) -> json {
                  if (request.contains("memory"))
                    return memory_of(group_, make_, request.at("memory"), context);
                  if (request.contains("round")) return (*side)->round(request.at("round"));
                  *side = std::make_unique<Side>(group_, make_, context);
                  return nullptr;
                },
                {std::chrono::minutes(10)});
  }

  void measure() {
    std::vector<Row> rows(group_.variants.size());
    for (std::size_t v = 0; group_.memory && v < rows.size(); ++v) {
      auto fresh = pool();
      for (const auto& outcome : ask(fresh, {{"memory", group_.variants[v]}})) {
        rows[v].held_bytes = std::max(rows[v].held_bytes, outcome.answer[0].get<int64_t>());
        rows[v].process_bytes = std::max(rows[v].process_bytes, outcome.answer[1].get<int64_t>());
      }
    }
    auto ranks = pool();
    ask(ranks, {{"start", true}});
    for (int number = 0; number < group_.rounds; ++number) {
      const auto outcomes = ask(ranks, {{"round", number}});
      for (std::size_t v = 0; v < rows.size(); ++v) {
        double slowest = 0;
        for (const auto& outcome : outcomes)
          slowest = std::max(slowest, outcome.answer[v].get<double>());
        rows[v].ns.push_back(slowest);
      }
    }
    rows_ = std::move(rows);
  }

  Group group_;
  MakeVariant make_;
  std::vector<Row> rows_;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void report(benchmark::State& state, Measurement& measurement, std::size_t v) {
  const auto& rows = measurement.rows();
  const auto& row = rows[v];
  const auto& group = measurement.group();
  for (std::size_t round = 0; state.KeepRunning(); ++round)
    state.SetIterationTime(row.ns[round % row.ns.size()] * 1e-9);
  state.counters["median_ms"] = median(row.ns) * 1e-6;
  // What the machine can do when nothing else runs on it.
  state.counters["best_ms"] = *std::min_element(row.ns.begin(), row.ns.end()) * 1e-6;
  for (const auto& base : group.bases) {
    const auto at = std::find(group.variants.begin(), group.variants.end(), base);
    const auto& other = rows[static_cast<std::size_t>(at - group.variants.begin())];
    std::vector<double> ratios;
    for (std::size_t i = 0; i < row.ns.size(); ++i) ratios.push_back(row.ns[i] / other.ns[i]);
    state.counters["to_" + base] = median(ratios);
  }
  if (!group.memory) return;
  if (row.held_bytes > 0) state.counters["held_MiB"] = static_cast<double>(row.held_bytes) / kMib;
  state.counters["process_MiB"] = static_cast<double>(row.process_bytes) / kMib;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

void describe_this_build() {
  benchmark::AddCustomContext("commit", build_info::commit());
  benchmark::AddCustomContext("build_type", build_info::build_type());
  benchmark::AddCustomContext("compiler", build_info::compiler());
  benchmark::AddCustomContext("torch", build_info::torch_version());
  benchmark::AddCustomContext("processor", processor());
  benchmark::AddCustomContext("threads_per_rank", "1, or as a row says");
  if (!kSanitized) return;
  benchmark::AddCustomContext("sanitized", "true: these are no timings");
  std::fprintf(stderr, "warning: built with sanitizers; use a release build for timings.\n");
}

}  // namespace

void register_group(const Group& group, const MakeVariant& make) {
  [[maybe_unused]] static const bool described = (describe_this_build(), true);
  const auto measurement = std::make_shared<Measurement>(group, make);
  for (std::size_t v = 0; v < group.variants.size(); ++v)
    benchmark::RegisterBenchmark(
        (group.name + "/" + group.variants[v]).c_str(),
        [measurement, v](benchmark::State& state) { report(state, *measurement, v); })
        ->UseManualTime()
        ->Iterations(group.rounds)
        ->Unit(benchmark::kMillisecond);
}

}  // namespace equigrad::perf
