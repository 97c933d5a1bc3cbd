#include "conformance/campaigns/runner.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "conformance/campaigns/progress.hpp"
#include "conformance/campaigns/self_check.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "engine/error.hpp"
#include "reports/causes.hpp"

namespace equigrad::conformance {
namespace {

int widest(const RunOptions& options) {
  int ranks = kSelfCheckRanks;
  for (const auto& spec : options.cases) ranks = std::max(ranks, spec.world);
  return ranks;
}

}  // namespace

MatrixRun::MatrixRun(const RunOptions& options, ProcessSlots& slots, Alone* alone)
    : options_(options),
      slots_(slots),
      alone_(alone),
      kept_(options.keep, options.keep_tensors, slots.directory()),
      judged_(options.cases.size()) {
  run_.seed = options.seed;
  run_.planted = options.fault;
  for (std::size_t i = 0; i < judged_.size(); ++i) {
    auto& record = judged_[i].record;
    record = record_of(options.cases[i], replay(options.cases[i].id()));
    record.message = "interrupted before this case";
  }
  make_tuples();
}

nlohmann::json MatrixRun::request(const char* what, const std::string& id) const {
  return {{"do", what}, {"id", id}, {"seed", options_.seed}, {"data", to_json(options_.data)}};
}

std::string MatrixRun::replay(const std::string& id) const {
  return options_.replay_prefix + " " + id + " --seed " + std::to_string(options_.seed) +
         options_.replay_suffix;
}

void MatrixRun::check_itself() {
  Progress progress(static_cast<int64_t>(options_.cases.size()), options_.quiet);
  progress.update(0, 0, "planted faults");
  try {
    require_a_device();
    self_check(
        slots_, [this](const char* what, const std::string& id) { return request(what, id); },
        run_);
    slots_.renew();  // what planted faults leave behind is no part of the cases' past
  } catch (const Error& error) {
    if (ranks::interrupted() == 0) give_up(error.what());
  }
  progress.finish();
}

// Before a planted fault is told to have been missed.
void MatrixRun::require_a_device() {
  if (options_.device == nullptr) return;
  const auto outcomes = slots_.ask(kSelfCheckRanks, {{"do", "hello"}});
  if (outcomes && !ranks::all_ok(*outcomes))
    throw Error("run", "expected ranks on a CUDA device, got: " + ranks::failures(*outcomes));
}

// What the self-check found out so far is told, and that no case was begun.
void MatrixRun::give_up(const std::string& reason) {
  run_.failure = reason;
  for (auto& judged : judged_) judged.record.message = "not begun: " + reason;
}

void MatrixRun::make_tuples() {
  std::map<std::string, std::size_t> by_name;
  for (std::size_t i = 0; i < options_.cases.size(); ++i) {
    const auto [found, added] = by_name.emplace(options_.cases[i].tuple(), tuples_.size());
    if (added) tuples_.emplace_back();
    tuples_[found->second].cases.push_back(i);
  }
  for (auto& tuple : tuples_) {
    tuple.left = tuple.cases.size();
    tuple.path = slots_.directory() + "/twin." + options_.cases[tuple.cases[0]].tuple();
  }
}

bool MatrixRun::has_a_case(const Tuple& tuple) const {
  return tuple.next < tuple.cases.size() && tuple.cases[tuple.next] < end_;
}

std::optional<std::size_t> MatrixRun::tuple_with(Tuple::Twin twin) const {
  for (std::size_t i = 0; i < tuples_.size(); ++i)
    if (tuples_[i].twin == twin && has_a_case(tuples_[i])) return i;
  return std::nullopt;
}

// A twin is made while the tuple before it is still being worked on, so that no slot waits for one.
std::optional<Task> MatrixRun::next_task() {
  if (is_over()) return std::nullopt;
  const auto ahead = std::count_if(tuples_.begin(), tuples_.end(), [](const Tuple& tuple) {
    const bool fresh = tuple.twin == Tuple::Twin::Ready && tuple.next == 0;
    return fresh || tuple.twin == Tuple::Twin::Running;
  });
  const auto with_case = tuple_with(Tuple::Twin::Ready);
  const auto without_twin = tuple_with(Tuple::Twin::Missing);
  if (without_twin && (ahead == 0 || !with_case)) return twin_of(*without_twin);
  if (with_case) return case_of(*with_case);
  return std::nullopt;
}

Task MatrixRun::twin_of(std::size_t index) {
  auto& tuple = tuples_[index];
  auto asked = request("twin", options_.cases[tuple.cases[0]].id());
  asked["path"] = tuple.path;
  tuple.twin = Tuple::Twin::Running;
  return {1, asked, kTwinTimeout_s,
          [this, &tuple](const Outcomes& outcomes, double) { finish_twin(tuple, outcomes); }};
}

Task MatrixRun::case_of(std::size_t index) {
  auto& tuple = tuples_[index];
  const std::size_t number = tuple.cases[tuple.next++];
  const auto& spec = options_.cases[number];
  auto asked = case_request(spec.id());
  asked["twin"] = tuple.path;
  kept_.ask(asked, spec.id());
  return {spec.world, asked, kCaseTimeout_s,
          [this, &tuple, number](const Outcomes& outcomes, double seconds) {
            finish_case(tuple, number, outcomes, seconds);
          }};
}

nlohmann::json MatrixRun::case_request(const std::string& id) const {
  auto asked = request("case", id);
  if (!options_.fault.empty()) asked["fault"] = options_.fault;
  if (!options_.knobs.empty()) asked["knobs"] = options_.knobs;
  return asked;
}

void MatrixRun::suspect(std::size_t number) const {
  if (alone_ == nullptr) return;
  const auto& spec = options_.cases[number];
  alone_->add({.id = spec.id(),
               .world = spec.world,
               .twin = request("twin", spec.id()),
               .request = case_request(spec.id()),
               .before = slots_.before(),
               .passes = [spec](const Outcomes& outcomes) {
                 return reports::passed(judge(spec, "", outcomes).record.verdict);
               }});
}

void MatrixRun::finish_case(Tuple& tuple, std::size_t number, const Outcomes& outcomes,
                            double seconds) {
  const auto& spec = options_.cases[number];
  auto& judged = judged_[number];
  judged = judge(spec, replay(spec.id()), outcomes);
  judged.record.seconds = seconds;
  rows_.add_memory(spec, judged);
  kept_.ended(judged.record);
  ++done_;
  if (!reports::passed(judged.record.verdict)) ++failed_;
  if (reports::went_wrong(judged.record.verdict)) {
    progress_->name_wrong(reports::headline(judged.record));
    suspect(number);
  }
  if (--tuple.left == 0) finish_tuple(tuple);
}

void MatrixRun::finish_twin(Tuple& tuple, const Outcomes& outcomes) {
  if (ranks::all_ok(outcomes)) {
    tuple.twin = Tuple::Twin::Ready;
    rows_.add_underflow(options_.cases[tuple.cases[0]], outcomes.at(0).answer);
    return;
  }
  tuple.twin = Tuple::Twin::Failed;
  for (const std::size_t number : tuple.cases) {
    judged_[number] = judge(options_.cases[number], judged_[number].record.replay, outcomes);
    judged_[number].record.verdict = reports::Verdict::Crashed;  // nothing was compared
    auto& message = judged_[number].record.message;
    message = "the twin could not be made: " + message;
    ++done_, ++failed_;
    progress_->name_wrong(reports::headline(judged_[number].record));
  }
}

void MatrixRun::finish_tuple(Tuple& tuple) {
  std::vector<CaseSpec> specs;
  std::vector<Judged*> cases;
  for (const std::size_t number : tuple.cases) {
    specs.push_back(options_.cases[number]);
    cases.push_back(&judged_[number]);
  }
  cross_check(specs, cases);
  unlink(tuple.path.c_str());
}

void MatrixRun::run_until(std::size_t end) {
  end_ = end;
  done_ = 0;
  if (!run_.failure.empty()) return;
  const auto open = std::count_if(
      judged_.begin(), judged_.begin() + static_cast<std::ptrdiff_t>(end),
      [](const Judged& one) { return one.record.verdict == reports::Verdict::NotRun; });
  progress_ =
      options_.progress ? options_.progress : std::make_shared<Progress>(open, options_.quiet);
  const auto failed_before = failed_;
  std::string now;
  slots_.run(
      [&](std::size_t) {
        auto task = next_task();
        if (task) now = task->request.at("id");
        return task;
      },
      [&] { progress_->update(done_, failed_ - failed_before, now); });
  progress_->end_part(done_, failed_ - failed_before);
  progress_->finish();
}

reports::Run MatrixRun::so_far(std::size_t count) const {
  reports::Run run = run_;
  for (std::size_t i = 0; i < count; ++i) run.cases.push_back(judged_[i].record);
  return run;
}

reports::Run MatrixRun::take() {
  for (auto& judged : judged_) {
    auto& record = judged.record;
    if (is_over() && record.verdict == reports::Verdict::NotRun && ranks::interrupted() == 0)
      record.message = kNotAfterAFailure;
    run_.cases.push_back(std::move(record));
  }
  rows_.give(run_);
  kept_.give(run_.cases);
  run_.signal = ranks::interrupted();
  run_.interrupted = run_.signal != 0;
  return std::move(run_);
}

Alone alone_of(const RunOptions& options) {
  return {options.replay_prefix, " --seed " + std::to_string(options.seed) + options.replay_suffix,
          options.keep};
}

reports::Run run_matrix(const RunOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  ProcessSlots slots({.slots = options.slots,
                      .widest = widest(options),
                      .most = options.cases.size() + 1,
                      .timeout_scale = options.timeout_scale,
                      .serve = options.serve,
                      .device = options.device});
  Alone alone = alone_of(options);
  MatrixRun matrix(options, slots, &alone);
  matrix.check_itself();
  matrix.run_until(options.cases.size());
  auto run = matrix.take();
  alone.repeat(slots, run.cases);
  run.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return run;
}

}  // namespace equigrad::conformance
