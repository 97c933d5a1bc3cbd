#include "conformance/campaigns/clean_runs.hpp"

#include <unistd.h>

#include <chrono>

#include "conformance/campaigns/progress.hpp"
#include "conformance/generator/dice.hpp"
#include "conformance/verdict/judge.hpp"

namespace equigrad::conformance {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// What changes the numbers. Small models and few ranks more often: they are as telling.
CaseSpec random_tuple(Dice& dice, bool with_images) {
  CaseSpec spec;
  spec.precision = dice.pick(precisions());
  spec.world = dice.pick<int>({1, 1, 2, 2, 2, 3, 4});
  spec.accumulation = 1 + static_cast<int>(dice.below(5));
  spec.clip = dice.pick<Clip>({Clip::Off, Clip::Below, Clip::Above, Clip::AboveInf});
  spec.optimizer = dice.coin() ? Rule::Sgd : Rule::AdamW;
  const std::vector<std::string> models = {"gpt",       "vision",    "vision",    "vision",
                                           "vision",    "conv",      "conv",      "conv",
                                           "irregular", "irregular", "irregular", "irregular",
                                           "irregular", "irregular", "irregular"};
  spec.model = dice.pick(models);
  if (!with_images && spec.model != "gpt") spec.model = "irregular";
  return spec;
}

void shuffle_stage_and_style(Dice& dice, CaseSpec& spec) {
  spec.style = dice.pick<Style>(
      {Style::EngineBackward, Style::ScaleBackward, Style::LossBackward, Style::TensorBackward});
  spec.stage = static_cast<int>(dice.below(4));
  if (spec.is_refused()) spec.stage = 1 + static_cast<int>(dice.below(3));
}

int64_t any_size(Dice& dice) {
  return dice.coin() ? 1 + dice.below(2'000)
                     : dice.pick<int64_t>({1, 2, 7, 64, 300, 5'000, 100'000, 500'000'000});
}

// Keys which every mode may have, and which may not change a bit.
json random_knobs(Dice& dice, const CaseSpec& spec) {
  auto knobs = json::object();
  json zero = json::object();
  for (const char* key : {"reduce_bucket_size", "allgather_bucket_size"})
    if (dice.coin()) zero[key] = any_size(dice);
  for (const char* key : {"overlap_comm", "contiguous_gradients", "reduce_scatter",
                          "allgather_partitions", "round_robin_gradients"})
    if (dice.below(4) == 0) zero[key] = dice.coin();
  if (dice.below(4) == 0) zero["sub_group_size"] = any_size(dice);
  if (spec.stage == 3) {
    for (const char* key : {"stage3_prefetch_bucket_size", "stage3_max_live_parameters",
                            "stage3_max_reuse_distance", "stage3_param_persistence_threshold"})
      if (dice.coin()) zero[key] = any_size(dice) - 1;
  }
  if (spec.stage > 0 && dice.below(4) == 0) zero["offload_optimizer"]["device"] = "cpu";
  if (!zero.empty()) knobs["zero_optimization"] = zero;
  if (dice.below(4) == 0) knobs["optimizer"]["params"]["foreach"] = dice.coin();
  return knobs;
}

// A slot works through one group at a time: its twin, then its configurations.
struct SlotState {
  CleanGroup group;
  std::string twin;
  bool has_twin = false;
  std::size_t next = 0;
};

class CleanRun {
 public:
  CleanRun(const CleanOptions& options, ProcessSlots& slots)
      : options_(options), slots_(slots), states_(slots.size()) {
    runs_.asked = options.count;
  }
  reports::CleanRuns run();

 private:
  std::optional<Task> next_task(std::size_t slot);
  bool begin(std::size_t slot);
  void take(const CaseSpec& spec, uint64_t seed, const json& knobs, const Outcomes& outcomes);
  std::string replay(const CaseSpec& spec, uint64_t seed, const json& knobs) const;

  const CleanOptions& options_;
  ProcessSlots& slots_;
  std::vector<SlotState> states_;
  int64_t groups_ = 0, begun_ = 0, replaced_ = 0;
  reports::CleanRuns runs_;
};

// The next group, unless there are configurations enough.
bool CleanRun::begin(std::size_t slot) {
  auto& state = states_[slot];
  if (!state.twin.empty()) unlink(state.twin.c_str());
  state = {};
  if (begun_ >= options_.count || options_.is_late()) return false;
  state.group = clean_group(options_.seed, groups_++, !options_.data.images.empty());
  const auto wanted = std::min(options_.count - begun_, kConfigsOfATwin);
  state.group.cases.resize(static_cast<std::size_t>(wanted));
  begun_ += wanted;
  state.twin = slots_.directory() + "/clean." + std::to_string(slot);
  return true;
}

std::optional<Task> CleanRun::next_task(std::size_t slot) {
  if (states_[slot].next == states_[slot].group.cases.size() && !begin(slot)) return std::nullopt;
  auto& state = states_[slot];
  const auto spec = state.group.cases[state.next];
  const uint64_t seed = state.group.seed;
  json asked = {{"do", state.has_twin ? "case" : "twin"},
                {"id", spec.id()},
                {"seed", seed},
                {"data", to_json(options_.data)},
                {state.has_twin ? "twin" : "path", state.twin}};
  if (!state.has_twin) {
    state.has_twin = true;
    return Task{1, asked, kTwinTimeout_s,
                [this, slot, spec, seed](const Outcomes& outcomes, double) {
                  if (ranks::all_ok(outcomes)) return;
                  take(spec, seed, json::object(), outcomes);
                  states_[slot].next = states_[slot].group.cases.size();
                }};
  }
  const json knobs = state.group.knobs[state.next++];
  asked["knobs"] = knobs;
  return Task{spec.world, asked, kCaseTimeout_s,
              [this, spec, seed, knobs](const Outcomes& outcomes, double) {
                take(spec, seed, knobs, outcomes);
              }};
}

std::string CleanRun::replay(const CaseSpec& spec, uint64_t seed, const json& knobs) const {
  return options_.replay_prefix + " " + spec.id() + " --seed " + std::to_string(seed) +
         (knobs.empty() ? "" : " --knobs '" + knobs.dump() + "'") + options_.replay_suffix;
}

void CleanRun::take(const CaseSpec& spec, uint64_t seed, const json& knobs,
                    const Outcomes& outcomes) {
  const auto judged = judge(spec, "", outcomes);
  // Every step overflows, the twin's too: another one takes its place, but not without end.
  if (judged.only_empty && ++replaced_ <= kConfigsOfATwin + options_.count / 10) {
    --begun_;
    return;
  }
  ++runs_.run;
  for (const auto& lane : judged.record.lanes) runs_.compared += lane.compared;
  if (reports::passed(judged.record.verdict)) return;
  runs_.alarms.push_back({spec.id(), judged.record.message, replay(spec, seed, knobs)});
}

reports::CleanRuns CleanRun::run() {
  const auto start = Clock::now();
  Progress progress(options_.count, options_.quiet, "clean configurations");
  slots_.run([this](std::size_t slot) { return next_task(slot); },
             [&] { progress.update(runs_.run, static_cast<int64_t>(runs_.alarms.size()), ""); });
  progress.finish();
  for (const auto& state : states_)
    if (!state.twin.empty()) unlink(state.twin.c_str());
  runs_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return runs_;
}

}  // namespace

CleanGroup clean_group(uint64_t seed, int64_t index, bool with_images) {
  Dice dice(seed, static_cast<uint64_t>(index));
  CleanGroup group;
  group.seed = 1 + static_cast<uint64_t>(dice.below(1'000'000'000));
  auto spec = random_tuple(dice, with_images);
  for (int64_t i = 0; i < kConfigsOfATwin; ++i) {
    shuffle_stage_and_style(dice, spec);
    group.cases.push_back(spec);
    group.knobs.push_back(random_knobs(dice, spec));
  }
  return group;
}

reports::CleanRuns clean_runs(const CleanOptions& options, ProcessSlots& slots) {
  return CleanRun(options, slots).run();
}

}  // namespace equigrad::conformance
