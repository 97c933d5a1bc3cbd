#include "conformance/campaigns/fault_run.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "conformance/campaigns/fault_panel.hpp"
#include "conformance/campaigns/generated_runs.hpp"
#include "conformance/campaigns/process_slots.hpp"
#include "conformance/campaigns/progress.hpp"
#include "conformance/contract/contract_case.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/faults/survivors.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "conformance/verdict/fault_judge.hpp"
#include "conformance/verdict/judge.hpp"

namespace equigrad::conformance {
namespace {

using Clock = std::chrono::steady_clock;
using reports::Fate;

// Ranks may hang, which is found out by waiting: so long, or longer where the case takes long.
constexpr double kFaultyTimeout_s = 6, kFaultyTimes = 10;
// Most faults are caught by the panel's first cases: so many are held first, the others when a
// fault comes to them.
constexpr std::size_t kHeldFirst = 16;

// A fault on its way through the cases.
struct Chase {
  const faults::Fault* fault;
  std::size_t next = 0;         // case
  std::size_t of_contract = 0;  // case
  std::size_t running = 0;      // cases
  bool has_proof = false;
};

class FaultRun {
 public:
  explicit FaultRun(const FaultOptions& options);
  reports::KillMatrix run();

 private:
  void make_rows();
  void hold_panel(std::size_t end);
  void hold(std::size_t number, const Outcomes& outcomes, double seconds);
  void chase_through_panel(std::size_t catches);
  void chase_through_held(std::size_t catches);
  bool is_enough(std::size_t catches) const;
  void chase_through_contract(std::size_t cases, std::size_t catches);
  void count_catches();
  Task planted(std::size_t fault, std::size_t number);
  Task planted_in_contract(std::size_t fault, std::size_t number);
  void take(std::size_t fault, const FaultVerdict& verdict, bool covering, double seconds);
  void settle();
  void run_clean();
  bool is_late() const { return options_.minutes > 0 && seconds() > 60 * options_.minutes; }
  bool is_caught(std::size_t fault, std::size_t times = 1) const {
    return matrix_.faults[fault].found.size() >= times;
  }
  nlohmann::json request(const char* what, const std::string& id) const {
    return {{"do", what}, {"id", id}, {"seed", options_.seed}, {"data", to_json(options_.data)}};
  }
  std::string replay(const std::string& id, const std::string& fault) const {
    return options_.replay_prefix + " " + id + " --seed " + std::to_string(options_.seed) +
           " --fault " + fault + options_.replay_suffix;
  }
  std::string twin_of(std::size_t i) const {
    return slots_.directory() + "/panel." + std::to_string(i);
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  const FaultOptions& options_;
  const ContractPanel contract_panel_ = contract_panel();
  Clock::time_point start_ = Clock::now();
  ProcessSlots slots_;
  std::vector<double> clean_s_;  // of the panel
  std::size_t held_ = 0;         // of the panel, its first ones: without a fault
  std::vector<Chase> chases_;
  reports::KillMatrix matrix_;
};

FaultRun::FaultRun(const FaultOptions& options)
    : options_(options),
      slots_({.slots = options.slots,
              .widest = options.clean > 0 ? kGeneratedRanks : SlotOptions().widest,
              .timeout_scale = options.timeout_scale,
              .serve = options.serve,
              .device = options.device}),
      clean_s_(options.panel.size(), 0) {
  matrix_.seed = options.seed;
  matrix_.full = options.full;
  matrix_.covering_only = options.covering_only;
  matrix_.is_whole = options.faults.size() == faults::fault_names().size();
  matrix_.clean.asked = options.clean;
  matrix_.not_run = options.not_run;
  for (const auto& spec : options.panel) matrix_.panel.push_back(spec.id());
  for (std::size_t i = 0; i < contract_panel_.covering; ++i)
    matrix_.panel.push_back(contract_panel_.cases[i].id());
  make_rows();
}

void FaultRun::make_rows() {
  for (const auto& name : options_.faults) {
    const auto& fault = faults::fault_named(name);
    Chase chase{&fault};
    reports::FaultRow row{.name = fault.name,
                          .what = fault.what,
                          .seam = fault.seam,
                          .phase = fault.phase,
                          .bugs = fault.bugs};
    for (const auto& survivor : faults::survivors())
      if (survivor.fault == name) row.proof = survivor.proof;
    chase.has_proof = !row.proof.empty();
    chases_.push_back(chase);
    matrix_.faults.push_back(row);
  }
}

// Twins, and the panel up to `end` without a fault: what fails then proves nothing.
void FaultRun::hold_panel(std::size_t end) {
  std::vector<std::optional<std::size_t>> has_twin(slots_.size());  // by slot: whose case is next
  const std::size_t begin = held_;
  std::size_t next = begin;
  const auto next_task = [&](std::size_t slot) -> std::optional<Task> {
    if (!matrix_.failure.empty()) return std::nullopt;
    const bool is_case = has_twin[slot].has_value();
    if (!is_case && next == end) return std::nullopt;
    const std::size_t number = is_case ? *has_twin[slot] : next++;
    const auto& spec = options_.panel[number];
    auto asked = request(is_case ? "case" : "twin", spec.id());
    asked[is_case ? "twin" : "path"] = twin_of(number);
    has_twin[slot].reset();
    if (is_case)
      return Task{spec.world, asked, kCaseTimeout_s,
                  [this, number](const Outcomes& outcomes, double taken) {
                    hold(number, outcomes, taken);
                  }};
    return Task{1, asked, kTwinTimeout_s,
                [this, &has_twin, slot, number](const Outcomes& outcomes, double) {
                  has_twin[slot] = number;
                  if (!ranks::all_ok(outcomes) && matrix_.failure.empty())
                    matrix_.failure = "no twin of " + options_.panel[number].id() + ": " +
                                      ranks::failures(outcomes);
                }};
  };
  Progress progress(static_cast<int64_t>(end - begin), options_.quiet, "panel cases");
  slots_.run(next_task,
             [&] { progress.update(static_cast<int64_t>(next - begin), 0, "without a fault"); });
  progress.finish();
  held_ = end;
}

void FaultRun::hold(std::size_t number, const Outcomes& outcomes, double seconds) {
  clean_s_[number] = seconds;
  const auto judged = judge(options_.panel[number], "", outcomes);
  if (judged.answered && reports::passed(judged.record.verdict)) return;
  // Of several that end while no more begin, a wrong number is worse than a crash.
  const bool is_void = judged.record.verdict == reports::Verdict::Failed;
  if (!matrix_.failure.empty() && (matrix_.is_void || !is_void)) return;
  matrix_.failure = judged.record.id + " fails without a fault: " + judged.record.message;
  matrix_.is_void = is_void;
}

Task FaultRun::planted(std::size_t fault, std::size_t number) {
  const auto& spec = options_.panel[number];
  auto asked = request("case", spec.id());
  asked["twin"] = twin_of(number);
  asked["fault"] = chases_[fault].fault->name;
  return {spec.world, asked, kFaultyTimeout_s + kFaultyTimes * clean_s_[number],
          [this, fault, &spec](const Outcomes& outcomes, double taken) {
            const auto& of = *chases_[fault].fault;
            take(fault, judge_fault(of.phase, spec, replay(spec.id(), of.name), outcomes), true,
                 taken);
          }};
}

Task FaultRun::planted_in_contract(std::size_t fault, std::size_t number) {
  const auto& spec = contract_panel_.cases[number];
  const bool covering = number < contract_panel_.covering;
  auto asked = request("contract", spec.id());
  asked["plant"] = chases_[fault].fault->name;
  return {spec.world, asked, kFaultyTimeout_s + kFaultyTimes,
          [this, fault, covering, id = spec.id()](const Outcomes& outcomes, double taken) {
            const auto& of = *chases_[fault].fault;
            take(fault, judge_contract_fault(of.phase, id, replay(id, of.name), outcomes), covering,
                 taken);
          }};
}

void FaultRun::take(std::size_t fault, const FaultVerdict& verdict, bool covering, double seconds) {
  auto& row = matrix_.faults[fault];
  --chases_[fault].running;
  ++row.cases;
  row.seconds += seconds;
  const bool is_first = row.acted_times == 0 || (verdict.found && row.found.empty());
  if (verdict.acted_times != 0 && is_first) {
    row.acted_step = verdict.acted_step;
    row.acted_micro_batch = verdict.acted_micro_batch;
  }
  row.acted_times += std::max<int64_t>(verdict.acted_times, verdict.acted_times < 0 ? 1 : 0);
  row.has_data = row.has_data || verdict.answered;
  for (std::size_t i = 0; i < reports::kRulesElsewhere; ++i)
    row.elsewhere[i] = row.elsewhere[i] || verdict.elsewhere[i];
  if (verdict.found) {
    row.found.push_back(*verdict.found);
    row.found.back().seconds = seconds;
    row.found.back().covering = covering;
  }
}

bool FaultRun::is_enough(std::size_t catches) const {
  for (std::size_t i = 0; i < chases_.size(); ++i)
    if (options_.full || !is_caught(i, catches)) return false;
  return true;
}

// Cases that no fault comes to are not held.
void FaultRun::chase_through_panel(std::size_t catches) {
  const std::size_t all = options_.panel.size();
  if (held_ == 0) hold_panel(std::min(kHeldFirst, all));
  while (matrix_.failure.empty()) {
    chase_through_held(catches);
    if (held_ == all || is_late() || is_enough(catches)) return;
    hold_panel(all);
  }
}

// A fault takes the panel's cases one after the other, so that the first that catches it is the
// earliest; different faults run side by side.
void FaultRun::chase_through_held(std::size_t catches) {
  const auto is_done = [this, catches](std::size_t i) {
    return chases_[i].next == held_ || (is_caught(i, catches) && !options_.full);
  };
  const auto next_task = [&](std::size_t) -> std::optional<Task> {
    if (is_late()) return std::nullopt;
    for (std::size_t i = 0; i < chases_.size(); ++i)
      if (chases_[i].running == 0 && !is_done(i)) {
        ++chases_[i].running;
        return planted(i, chases_[i].next++);
      }
    return std::nullopt;
  };
  Progress progress(static_cast<int64_t>(chases_.size()), options_.quiet, "faults", "caught");
  slots_.run(next_task, [&] {
    int64_t done = 0, caught = 0;
    for (std::size_t i = 0; i < chases_.size(); ++i) {
      done += chases_[i].running == 0 && is_done(i);
      caught += is_caught(i, catches);
    }
    progress.update(done, caught, "planted");
  });
  progress.finish();
}

// What the panel did not catch so often, through the contract's cases too: as many of them, as far
// as there is time.
void FaultRun::chase_through_contract(std::size_t cases, std::size_t catches) {
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < chases_.size(); ++i)
    if (!is_caught(i, catches) && !chases_[i].has_proof && chases_[i].next == options_.panel.size())
      left.push_back(i);
  const auto next_task = [&](std::size_t) -> std::optional<Task> {
    std::optional<std::size_t> least;
    for (const std::size_t i : left)
      if (!is_caught(i, catches) && chases_[i].of_contract < cases)
        if (!least || chases_[i].of_contract < chases_[*least].of_contract) least = i;
    if (!least || is_late()) return std::nullopt;
    ++chases_[*least].running;
    return planted_in_contract(*least, chases_[*least].of_contract++);
  };
  Progress progress(static_cast<int64_t>(left.size() * cases), options_.quiet,
                    "contract cases for what is left", "caught");
  slots_.run(next_task, [&] {
    int64_t done = 0, caught = 0;
    for (const std::size_t i : left) {
      const bool is_enough = is_caught(i, catches);
      done += static_cast<int64_t>(is_enough ? cases : std::min(cases, chases_[i].of_contract));
      caught += is_enough;
    }
    progress.update(done, caught, "planted");
  });
  progress.finish();
}

// Of faults that are caught: how many cases do it, up to as many as are enough. Those that survived
// have been through more.
void FaultRun::count_catches() {
  const double before = seconds();
  chase_through_panel(reports::kEnoughCatches);
  chase_through_contract(contract_panel_.covering, reports::kEnoughCatches);
  matrix_.is_counted = true;
  matrix_.counting_s = seconds() - before;
}

void FaultRun::settle() {
  const auto contract_cases =
      options_.covering_only ? contract_panel_.covering : contract_panel_.cases.size();
  for (std::size_t i = 0; i < chases_.size(); ++i) {
    auto& row = matrix_.faults[i];
    row.all_tried = chases_[i].running == 0 && chases_[i].next == options_.panel.size() &&
                    chases_[i].of_contract >= contract_panel_.covering;
    if (is_caught(i)) {
      row.fate = Fate::Caught;
      if (chases_[i].has_proof) matrix_.stale_proofs.push_back(row.name);
    } else if (chases_[i].running > 0 || chases_[i].next != options_.panel.size()) {
      row.fate = Fate::NotRun;
    } else if (chases_[i].has_proof) {
      row.fate = Fate::Equivalent;
    } else if (chases_[i].of_contract < contract_cases) {
      row.fate = Fate::NotRun;
    } else {
      row.fate = row.acted_times == 0 ? Fate::DidNotAct : Fate::Survived;
    }
  }
}

void FaultRun::run_clean() {
  if (options_.clean == 0) return;
  auto& clean = matrix_.clean;
  const double left_s = 60 * options_.minutes - seconds();
  if (options_.minutes > 0 && left_s <= 0) return;
  GeneratedOptions generated = {.seed = options_.seed,
                                .count = options_.clean,
                                .seconds = options_.minutes > 0 ? left_s : 0,
                                .quiet = options_.quiet};
  generated.replay_prefix = options_.replay_prefix;
  generated.replay_suffix = options_.replay_suffix;
  reports::Run run;
  run_generated(generated, slots_, run);
  clean.run = run.generated->cases;
  clean.compared = run.generated->compared;
  clean.seconds = run.generated->wall_s;
  for (auto& one : run.cases) clean.alarms.push_back({one.id, one.message, one.replay});
}

reports::KillMatrix FaultRun::run() {
  chase_through_panel(1);
  if (matrix_.failure.empty()) {
    chase_through_contract(contract_panel_.covering, 1);
    matrix_.faults_s = seconds();
    run_clean();
    const double before = seconds();
    if (!options_.covering_only) chase_through_contract(contract_panel_.cases.size(), 1);
    matrix_.faults_s += seconds() - before;
    if (options_.thin) count_catches();
    settle();
  }
  for (std::size_t i = 0; i < options_.panel.size(); ++i) unlink(twin_of(i).c_str());
  matrix_.interrupted = ranks::interrupted() != 0;
  matrix_.signal = ranks::interrupted();
  matrix_.wall_s = seconds();
  return std::move(matrix_);
}

}  // namespace

reports::KillMatrix run_faults(const FaultOptions& options) { return FaultRun(options).run(); }

}  // namespace equigrad::conformance
