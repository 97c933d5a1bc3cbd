#include "conformance/campaigns/generated_runs.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <utility>

#include "conformance/campaigns/kept_failures.hpp"
#include "conformance/campaigns/progress.hpp"
#include "conformance/campaigns/seconds.hpp"
#include "conformance/generator/coverage.hpp"
#include "conformance/generator/draw.hpp"
#include "conformance/generator/simpler.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "conformance/verdict/failure_kind.hpp"
#include "conformance/verdict/judge.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kShrunk = 3;  // failures, the first ones
constexpr double kCandidateTimeout_s = 20;
constexpr int64_t kReplaced = 100;  // cases, beside half of those that are asked for

reports::Case record_of(const GeneratedCase& one, const GeneratedOptions& options) {
  reports::Case record;
  record.id = one.id;
  record.dimensions = {{"stage", std::to_string(one.execution.stage)},
                       {"precision", "generated"},
                       {"ranks", std::to_string(one.workload.world)},
                       {"accumulate", std::to_string(one.workload.accumulation)},
                       {"style", "generated"},
                       {"model", "generated"}};
  const bool is_of_file = one.id == kFileCase;
  record.replay = options.replay_prefix + " " +
                  (is_of_file ? "--case " + options.replay_file : one.id) + options.replay_suffix;
  return record;
}

struct Failure {
  GeneratedCase one;
  reports::Case record;
  std::string kind;
};

// A slot works through one workload at a time.
struct SlotState {
  int64_t workload = -1;
  int next = kExecutions;  // execution to begin
  bool has_twin = false;
  std::string twin;
};

class GeneratedRun {
 public:
  GeneratedRun(const GeneratedOptions& options, ProcessSlots& slots)
      : options_(options),
        slots_(slots),
        kept_(options.keep, true, slots.directory()),
        states_(slots.size()) {
    told_.seed = options.seed;
  }

  void draw_and_run();
  void run_these(const std::vector<GeneratedCase>& cases, reports::Run& run);
  void give(reports::Run& run);

 private:
  bool is_over() const;
  std::optional<Task> next(std::size_t slot);
  Task twin_of(const GeneratedCase& one, const std::string& path, std::size_t slot);
  Task task_of(const GeneratedCase& one, const std::string& twin);
  void take(const GeneratedCase& one, const Outcomes& outcomes, double seconds);
  void note_failure(const GeneratedCase& one, reports::Case record, const std::string& kind);
  std::optional<Failure> try_alone(const GeneratedCase& one);
  void shrink(Failure& failure);
  void write(Failure& failure, const GeneratedCase& smaller, const std::string& message) const;

  const GeneratedOptions& options_;
  ProcessSlots& slots_;
  KeptFailures kept_;
  std::vector<SlotState> states_;
  Coverage coverage_;
  reports::GeneratedCases told_;
  std::vector<Failure> failures_;
  int64_t begun_ = 0, workloads_ = 0;
  Clock::time_point start_ = Clock::now();
};

// Those with nothing to compare give way to others, but not without end.
bool GeneratedRun::is_over() const {
  const auto replaced = std::min(told_.replaced, kReplaced + options_.count / 2);
  return (options_.count > 0 && begun_ - replaced >= options_.count) ||
         (options_.seconds > 0 && seconds_since(start_) >= options_.seconds) ||
         failures_.size() >= options_.most_failures;
}

std::optional<Task> GeneratedRun::next(std::size_t slot) {
  auto& state = states_[slot];
  if (is_over()) return std::nullopt;
  if (state.next == kExecutions) {
    const auto number = workloads_++;
    state = {.workload = options_.only_meshes ? mesh_workload(number) : number,
             .next = 0,
             .has_twin = false,
             .twin = slots_.directory() + "/generated." + std::to_string(slot)};
  }
  const auto one = draw_case(options_.seed, state.workload, state.next);
  if (!state.has_twin) {
    state.has_twin = true;
    return twin_of(one, state.twin, slot);
  }
  ++state.next;
  ++begun_;
  return task_of(one, state.twin);
}

// One whose twin cannot be made has failed, and takes its workload with it.
Task GeneratedRun::twin_of(const GeneratedCase& one, const std::string& path, std::size_t slot) {
  return {1,
          {{"do", "generated_twin"}, {"id", one.id}, {"case", to_json(one)}, {"path", path}},
          kTwinTimeout_s,
          [this, one, slot](const Outcomes& outcomes, double seconds) {
            if (ranks::all_ok(outcomes)) return;
            take(one, outcomes, seconds);
            failures_.back().record.message =
                "the twin could not be made: " + failures_.back().record.message;
            if (slot < states_.size()) states_[slot].next = kExecutions;
          }};
}

Task GeneratedRun::task_of(const GeneratedCase& one, const std::string& twin) {
  nlohmann::json asked = {
      {"do", "generated"}, {"id", one.id}, {"case", to_json(one)}, {"twin", twin}};
  if (!options_.fault.empty()) asked["fault"] = options_.fault;
  kept_.ask(asked, one.id);
  return {one.workload.world, asked, kCaseTimeout_s,
          [this, one](const Outcomes& outcomes, double seconds) { take(one, outcomes, seconds); }};
}

void GeneratedRun::take(const GeneratedCase& one, const Outcomes& outcomes, double seconds) {
  auto judged = judge(record_of(one, options_), one.execution.stage, outcomes);
  judged.record.seconds = seconds;
  kept_.ended(judged.record);
  if (judged.only_empty) {
    ++told_.replaced;
    return;
  }
  coverage_.add(one);
  ++told_.cases;
  if (reports::passed(judged.record.verdict)) {
    for (const auto& lane : judged.record.lanes) told_.compared += lane.compared;
    return;
  }
  note_failure(one, judged.record, failure_kind(judged, outcomes));
}

void GeneratedRun::note_failure(const GeneratedCase& one, reports::Case record,
                                const std::string& kind) {
  failures_.push_back({one, std::move(record), kind});
}

void GeneratedRun::draw_and_run() {
  Progress progress(options_.count, options_.quiet, "generated cases");
  progress.ends_after(options_.seconds);
  slots_.run([this](std::size_t slot) { return next(slot); },
             [&] {
               progress.update(told_.cases, static_cast<int64_t>(failures_.size()),
                               generated_id(options_.seed, states_[0].workload, 0));
             });
  progress.finish();
  for (const auto& state : states_)
    if (!state.twin.empty()) unlink(state.twin.c_str());
}

// Its twin and itself, while nothing else runs; nothing: it holds, or has no twin.
std::optional<Failure> GeneratedRun::try_alone(const GeneratedCase& one) {
  const auto twin = slots_.directory() + "/generated.alone";
  const auto made = slots_.ask(
      1, {{"do", "generated_twin"}, {"id", one.id}, {"case", to_json(one)}, {"path", twin}},
      kCandidateTimeout_s);
  if (!made || !ranks::all_ok(*made)) return std::nullopt;
  auto asked = task_of(one, twin);
  const auto outcomes = slots_.ask(one.workload.world, asked.request, kCandidateTimeout_s);
  unlink(twin.c_str());
  if (!outcomes) return std::nullopt;
  auto judged = judge(record_of(one, options_), one.execution.stage, *outcomes);
  if (judged.only_empty || reports::passed(judged.record.verdict)) return std::nullopt;
  return Failure{one, judged.record, failure_kind(judged, *outcomes)};
}

void GeneratedRun::shrink(Failure& failure) {
  const auto begin = Clock::now();
  auto smallest = failure.one;
  std::string message = failure.record.message;
  Progress progress(0, options_.quiet, "simpler cases tried", "simpler");
  int64_t tried = 0, found = 0;
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (auto& simpler : simpler_than(smallest)) {
      if (seconds_since(begin) > options_.shrink_s || ranks::interrupted() != 0) break;
      simpler.id = failure.one.id;  // whose folder it is in
      progress.update(++tried, found, failure.one.id);
      const auto again = try_alone(simpler);
      if (!again || again->kind != failure.kind) continue;
      smallest = simpler;
      message = again->record.message;
      ++found;
      goes_on = true;
      break;
    }
  }
  progress.finish();
  write(failure, smallest, message);
}

void GeneratedRun::write(Failure& failure, const GeneratedCase& smaller,
                         const std::string& message) const {
  auto& record = failure.record;
  const auto folder = options_.keep + "/" + record.id;
  for (const auto& path : {options_.keep, folder}) mkdir(path.c_str(), 0777);
  const auto put = [&](const char* name, const std::string& text) {
    std::ofstream file(folder + "/" + name);
    file << text << "\n";
    file.close();
    if (!file)
      throw Error("generated cases", "expected to write " + folder + "/" + name +
                                         ", could not. Free the disk, or give another --report.");
    record.files.push_back("fail/" + record.id + "/" + name);
  };
  put("case.json", to_json(failure.one).dump(1));
  put("message.txt", record.message);
  if (to_json(smaller) == to_json(failure.one)) return;
  put("smaller.json", to_json(smaller).dump(1));
  put("smaller.txt", message);
  const auto& what = smaller.workload;
  record.message += (record.message.ends_with('\n') ? "" : "\n");
  record.message += "    smaller " + std::to_string(what.world) + " ranks, " +
                    std::to_string(what.steps) + " steps, " + std::to_string(what.accumulation) +
                    " micro-batches, " + std::to_string(what.tensors.size()) +
                    " tensors fail alike: " + options_.replay_prefix + " --case " +
                    options_.replay_keep + "/" + record.id + "/smaller.json" +
                    options_.replay_suffix + "\n";
}

void GeneratedRun::give(reports::Run& run) {
  for (std::size_t i = 0; i < std::min(failures_.size(), kShrunk); ++i)
    if (!options_.keep.empty()) shrink(failures_[i]);
  std::vector<reports::Case> records;
  for (auto& failure : failures_) records.push_back(std::move(failure.record));
  kept_.give(records);
  for (auto& record : records) run.cases.push_back(std::move(record));
  told_.failed = static_cast<int64_t>(failures_.size());
  told_.workloads = workloads_;
  told_.pairs = coverage_.pairs();
  told_.wall_s = seconds_since(start_);
  for (auto& axis : coverage_.axes())
    told_.axes.push_back({axis.name, std::move(axis.cases), std::move(axis.never)});
  run.generated = std::move(told_);
  run.signal = ranks::interrupted();
  run.interrupted = run.signal != 0;
}

void GeneratedRun::run_these(const std::vector<GeneratedCase>& cases, reports::Run& run) {
  for (const auto& one : cases) {
    auto record = record_of(one, options_);
    const auto twin = slots_.directory() + "/generated.alone";
    const auto before = failures_.size();
    const auto told = told_;
    const auto ask = [&](const Task& task) {
      const auto began = Clock::now();
      const auto outcomes = slots_.ask(task.world, task.request, task.timeout_s);
      if (outcomes) task.done(*outcomes, seconds_since(began));
      return outcomes.has_value();
    };
    const bool answered = ask(twin_of(one, twin, states_.size())) &&
                          (failures_.size() > before || ask(task_of(one, twin)));
    unlink(twin.c_str());
    if (!answered) {
      record.message = "interrupted before this case ended";
      run.cases.push_back(record);
      return;
    }
    if (failures_.size() > before) continue;
    record.verdict = reports::Verdict::Equal;
    reports::Lane lane{.name = "exact", .verdict = reports::Verdict::Equal};
    lane.compared = told_.compared - told.compared;
    record.lanes = {lane};
    if (told_.replaced > told.replaced) record.message = "every step overflows, the twin's too";
    run.cases.push_back(record);
  }
}

}  // namespace

void run_generated(const GeneratedOptions& options, ProcessSlots& slots, reports::Run& run) {
  GeneratedRun generated(options, slots);
  generated.draw_and_run();
  generated.give(run);
}

void run_generated(const GeneratedOptions& options, const std::vector<GeneratedCase>& cases,
                   ProcessSlots& slots, reports::Run& run) {
  GeneratedRun generated(options, slots);
  generated.run_these(cases, run);
  generated.give(run);
}

}  // namespace equigrad::conformance
