#include "conformance/campaigns/compare_runs.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "conformance/campaigns/process_slots.hpp"
#include "conformance/campaigns/progress.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "conformance/verdict/comparison_judge.hpp"
#include "conformance/verdict/lane_tally.hpp"
#include "conformance/verdict/statistics.hpp"
#include "reports/text.hpp"

namespace equigrad::conformance {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;
using ranks::Outcome;
using reports::ComparedRun;
using reports::ComparisonOutcome;

constexpr int kStepsARequest = 10;
constexpr double kStepsTimeout_s = 300;

// A text that begins with a comment would be taken for a path.
std::string without_comments(const std::string& config) {
  return json::parse(config, nullptr, true, true).dump();
}

int64_t largest(const Outcomes& outcomes, const char* key) {
  int64_t most = 0;
  for (const auto& outcome : outcomes) most = std::max(most, outcome.answer.at(key).get<int64_t>());
  return most;
}

// What is held by the rank that holds most.
std::map<std::string, int64_t> held_of(const Outcomes& outcomes) {
  const auto most = std::max_element(
      outcomes.begin(), outcomes.end(), [](const Outcome& one, const Outcome& other) {
        return one.answer.at("held_bytes") < other.answer.at("held_bytes");
      });
  return most->answer.at("held");
}

// Trains run after run, each in processes of its own, so that one's memory is not another's.
class Comparing {
 public:
  Comparing(const CompareOptions& options, const ranks::Handler& serve, reports::Comparison& to);
  void run();

 private:
  bool train(int configuration, uint64_t seed);
  bool advance(ProcessSlots& slots, const json& start, ComparedRun& run);
  std::optional<Outcomes> ask(ProcessSlots& slots, const json& request, ComparedRun& run);
  void print_head() const;
  void print(const ComparedRun& run) const;

  const CompareOptions& options_;
  const ranks::Handler serve_;
  reports::Comparison& to_;
  Progress progress_;
  std::vector<double> seconds_;  // by step of the run under way
  std::optional<Ending> ending_;
};

Comparing::Comparing(const CompareOptions& options, const ranks::Handler& serve,
                     reports::Comparison& to)
    : options_(options),
      serve_(serve),
      to_(to),
      progress_(int64_t{2} * options.steps * options.seeds, options.quiet, "steps") {}

// Nothing where it was interrupted or a rank did not answer; why is in ending_ then.
std::optional<Outcomes> Comparing::ask(ProcessSlots& slots, const json& request, ComparedRun& run) {
  auto outcomes = slots.ask(options_.world, request, kStepsTimeout_s);
  if (!outcomes) {
    run.trouble = "interrupted";
    to_.signal = ranks::interrupted();
    ending_ = {ComparisonOutcome::Interrupted, "Stopped in run " +
                                                   std::to_string(to_.runs.size() + 1) + " of " +
                                                   std::to_string(2 * options_.seeds) + "."};
    return std::nullopt;
  }
  if (ranks::all_ok(*outcomes)) return outcomes;
  run.trouble = ranks::failures(*outcomes);
  const bool thrown = std::any_of(outcomes->begin(), outcomes->end(), [](const Outcome& outcome) {
    return outcome.kind == Outcome::Kind::Error && !ranks::is_infrastructure_error(outcome);
  });
  ending_ = {thrown ? ComparisonOutcome::Failed : ComparisonOutcome::Broken,
             std::string(run.configuration == 0 ? "A" : "B") + " with seed " +
                 std::to_string(run.seed) + ", step " + std::to_string(run.losses.size() + 1) +
                 ": " + run.trouble};
  return std::nullopt;
}

// The next steps of a run.
bool Comparing::advance(ProcessSlots& slots, const json& start, ComparedRun& run) {
  json request = start;
  request["verb"] = "steps";
  const auto done = static_cast<int>(run.losses.size());
  const int count = std::min(kStepsARequest, options_.steps - done);
  request["count"] = count;
  const auto outcomes = ask(slots, request, run);
  if (!outcomes) return false;
  for (int step = 0; step < count; ++step) {
    double loss = 0, slowest_s = 0;
    for (const auto& outcome : *outcomes) {
      const auto index = static_cast<std::size_t>(step);
      loss += exact_value(outcome.answer.at("losses").at(index)) / options_.world;
      slowest_s = std::max(slowest_s, outcome.answer.at("seconds").at(index).get<double>());
    }
    run.losses.push_back(loss);
    seconds_.push_back(slowest_s);
  }
  progress_.update(
      static_cast<int64_t>(to_.runs.size()) * options_.steps + done + count, 0,
      std::string(run.configuration == 0 ? "A" : "B") + ", seed " + std::to_string(run.seed));
  return true;
}

bool Comparing::train(int configuration, uint64_t seed) {
  const auto of = static_cast<std::size_t>(configuration);
  ComparedRun run;
  run.configuration = configuration;
  run.seed = seed;
  seconds_.clear();
  ProcessSlots slots({.slots = 1,
                      .widest = options_.world,
                      .timeout_scale = options_.timeout_scale,
                      .serve = serve_,
                      .device = options_.device});
  json request = {{"do", "compare"},
                  {"verb", "start"},
                  {"kind", options_.data},
                  {"seed", seed},
                  {"config", without_comments(to_.configurations[of].text)},
                  {"layers", options_.layers},
                  {"dim", options_.dim},
                  {"heads", options_.heads},
                  {"context", options_.context},
                  {"data", to_json(find_data(options_.data_dir, true))}};
  const auto started = ask(slots, request, run);
  if (started && to_.runs.empty()) {
    to_.parameters = started->front().answer.at("parameters");
    to_.tokens_per_step = started->front().answer.at("tokens");
    print_head();
  }
  bool going = started.has_value();
  while (going && static_cast<int>(run.losses.size()) < options_.steps)
    going = advance(slots, request, run);
  request["verb"] = "finish";
  if (const auto outcomes = going ? ask(slots, request, run) : std::nullopt) {
    run.complete = true;
    run.step_s = median_of(seconds_);
    run.held = held_of(*outcomes);
    run.held_bytes = largest(*outcomes, "held_bytes");
    run.held_peak_bytes = largest(*outcomes, "held_peak_bytes");
    run.process_peak_bytes = largest(*outcomes, "process_peak_bytes");
    run.process_growth_bytes = largest(*outcomes, "process_growth_bytes");
    run.skipped_steps = largest(*outcomes, "skipped_steps");
    summarize(run, to_.final_steps);
    print(run);
  }
  to_.runs.push_back(run);
  return run.complete;
}

void Comparing::print_head() const {
  std::printf("# compare: %s, %s, %s parameters, %d rank%s, %d steps, %d seeds from %llu\n",
              to_.data.c_str(), to_.model.c_str(), reports::grouped(to_.parameters).c_str(),
              to_.ranks, to_.ranks == 1 ? "" : "s", options_.steps, options_.seeds,
              static_cast<unsigned long long>(options_.seed));
  std::printf("# A: %s\n# B: %s\n# final loss: mean of the last %lld steps; margin: %s\n#\n",
              to_.configurations[0].name.c_str(), to_.configurations[1].name.c_str(),
              static_cast<long long>(to_.final_steps), reports::margin_text(to_).c_str());
  std::printf("#      seed  run  final loss   mean loss  step (ms)  held, peak  process, peak\n");
  std::fflush(stdout);
}

void Comparing::print(const ComparedRun& run) const {
  progress_.clear();
  std::printf("%11llu  %s    %10.4f  %10.4f  %9.1f  %10s  %13s\n",
              static_cast<unsigned long long>(run.seed), run.configuration == 0 ? "A" : "B",
              run.final_loss, run.mean_loss, run.step_s * 1e3,
              reports::bytes_text(run.held_peak_bytes).c_str(),
              reports::bytes_text(run.process_peak_bytes).c_str());
  std::fflush(stdout);
}

// A first with every other seed, so that a machine which slows down slows both.
void Comparing::run() {
  const auto start = Clock::now();
  bool going = true;
  for (std::size_t i = 0; i < to_.seeds.size() && going; ++i)
    for (int turn = 0; turn < 2 && going; ++turn)
      going = train((static_cast<int>(i % 2) + turn) % 2, to_.seeds[i]);
  progress_.finish();
  to_.wall_s = std::chrono::duration<double>(Clock::now() - start).count();
  conclude(to_, ending_);
}

}  // namespace

void run_comparison(const CompareOptions& options, const ranks::Handler& serve,
                    reports::Comparison& comparison) {
  Comparing(options, serve, comparison).run();
}

}  // namespace equigrad::conformance
