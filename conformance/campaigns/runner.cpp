#include "conformance/campaigns/runner.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "conformance/campaigns/kept_failures.hpp"
#include "conformance/campaigns/progress.hpp"
#include "conformance/campaigns/run_rows.hpp"
#include "conformance/campaigns/self_check.hpp"
#include "conformance/campaigns/slots.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "conformance/ranks/pool.hpp"
#include "conformance/verdict/judge.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kCaseTimeout{60'000};
constexpr milliseconds kTwinTimeout{180'000};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The cases that share a twin.
struct Tuple {
  enum class Twin { Missing, Running, Ready, Failed };
  std::vector<std::size_t> cases;
  std::size_t next = 0;  // of cases, to start
  std::size_t left = 0;  // of cases, to finish
  Twin twin = Twin::Missing;
  std::string path;
};

// What a slot is busy with.
struct Work {
  int job = -1;
  std::size_t tuple = 0;
  std::optional<std::size_t> case_index;  // none: the tuple's twin
  Clock::time_point start;
};

class Runner {
 public:
  explicit Runner(const RunOptions& options);
  reports::Run run();

 private:
  milliseconds scaled(milliseconds time) const {
    return milliseconds(
        static_cast<long long>(static_cast<double>(time.count()) * options_.timeout_scale));
  }
  std::vector<int> ranks_of(std::size_t slot, int world) const;
  nlohmann::json request(const char* what, const std::string& id) const;
  std::string replay(const std::string& id) const;
  void self_check();
  void give_up(const std::string& reason);
  void make_tuples();
  void feed_lanes();
  std::optional<std::size_t> tuple_with_a_case() const;
  std::optional<std::size_t> tuple_without_twin() const;
  void start_case(std::size_t slot, std::size_t tuple);
  void start_twin(std::size_t slot, std::size_t tuple);
  void finish(const ranks::Finished& finished);
  void finish_twin(Tuple& tuple, const ranks::Finished& finished);
  void finish_tuple(Tuple& tuple);
  void collect();

  const RunOptions& options_;
  int widest_;
  std::vector<Work> slots_;
  ranks::Pool pool_;
  KeptFailures kept_;
  std::vector<Tuple> tuples_;
  std::vector<Judged> judged_;
  RunRows rows_;
  reports::Run run_;
  int64_t done_ = 0, failed_ = 0;
};

int widest(const RunOptions& options) {
  int ranks = kSelfCheckRanks;
  for (const auto& spec : options.cases) ranks = std::max(ranks, spec.world);
  return ranks;
}

std::size_t slot_count(const RunOptions& options) {
  const auto wanted = options.slots > 0 ? static_cast<std::size_t>(options.slots)
                                        : slots_for(std::thread::hardware_concurrency(),
                                                    available_memory_bytes(), widest(options));
  return std::min(wanted, options.cases.size() + 1);
}

Runner::Runner(const RunOptions& options)
    : options_(options),
      widest_(widest(options)),
      slots_(slot_count(options)),
      pool_(static_cast<int>(slots_.size()) * widest_, options.serve,
            {scaled(kCaseTimeout), milliseconds(2'000), false}),
      kept_(options.keep, options.keep_tensors, pool_.directory()),
      judged_(options.cases.size()) {
  run_.seed = options.seed;
  for (std::size_t i = 0; i < judged_.size(); ++i) {
    auto& record = judged_[i].record;
    record = record_of(options.cases[i], replay(options.cases[i].id()));
    record.message = "interrupted before this case";
  }
}

std::vector<int> Runner::ranks_of(std::size_t slot, int world) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world; ++rank) ranks.push_back(static_cast<int>(slot) * widest_ + rank);
  return ranks;
}

nlohmann::json Runner::request(const char* what, const std::string& id) const {
  return {{"do", what}, {"id", id}, {"seed", options_.seed}, {"data", to_json(options_.data)}};
}

std::string Runner::replay(const std::string& id) const {
  return options_.replay_prefix + " " + id + " --seed " + std::to_string(options_.seed) +
         options_.replay_suffix;
}

void Runner::self_check() {
  const auto ask = [this](const char* what, const std::string& id) { return request(what, id); };
  run_.self_checks = conformance::self_check(pool_, ask);
}

void Runner::make_tuples() {
  std::map<std::string, std::size_t> by_name;
  for (std::size_t i = 0; i < options_.cases.size(); ++i) {
    const auto [found, added] = by_name.emplace(options_.cases[i].tuple(), tuples_.size());
    if (added) tuples_.emplace_back();
    tuples_[found->second].cases.push_back(i);
  }
  for (auto& tuple : tuples_) {
    tuple.left = tuple.cases.size();
    tuple.path = pool_.directory() + "/twin." + options_.cases[tuple.cases[0]].tuple();
  }
}

std::optional<std::size_t> Runner::tuple_with_a_case() const {
  for (std::size_t i = 0; i < tuples_.size(); ++i)
    if (tuples_[i].twin == Tuple::Twin::Ready && tuples_[i].next < tuples_[i].cases.size())
      return i;
  return std::nullopt;
}

std::optional<std::size_t> Runner::tuple_without_twin() const {
  for (std::size_t i = 0; i < tuples_.size(); ++i)
    if (tuples_[i].twin == Tuple::Twin::Missing) return i;
  return std::nullopt;
}

// A twin is made while the tuple before it is still being worked on, so that no slot waits for one.
void Runner::feed_lanes() {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].job >= 0) continue;
    const auto ahead = std::count_if(tuples_.begin(), tuples_.end(), [](const Tuple& tuple) {
      const bool fresh = tuple.twin == Tuple::Twin::Ready && tuple.next == 0;
      return fresh || tuple.twin == Tuple::Twin::Running;
    });
    const auto with_case = tuple_with_a_case();
    const auto without_twin = tuple_without_twin();
    if (without_twin && (ahead == 0 || !with_case))
      start_twin(slot, *without_twin);
    else if (with_case)
      start_case(slot, *with_case);
  }
}

void Runner::start_twin(std::size_t slot, std::size_t index) {
  auto& tuple = tuples_[index];
  auto twin = request("twin", options_.cases[tuple.cases[0]].id());
  twin["path"] = tuple.path;
  tuple.twin = Tuple::Twin::Running;
  slots_[slot] = {pool_.start(ranks_of(slot, 1), twin, scaled(kTwinTimeout)), index, std::nullopt,
                  Clock::now()};
}

void Runner::start_case(std::size_t slot, std::size_t index) {
  auto& tuple = tuples_[index];
  const std::size_t number = tuple.cases[tuple.next++];
  const auto& spec = options_.cases[number];
  auto one = request("case", spec.id());
  one["twin"] = tuple.path;
  if (!options_.fault.empty()) one["fault"] = options_.fault;
  kept_.ask(one, spec.id());
  if (!options_.knobs.empty()) one["knobs"] = options_.knobs;
  slots_[slot] = {pool_.start(ranks_of(slot, spec.world), one), index, number, Clock::now()};
}

void Runner::finish(const ranks::Finished& finished) {
  for (auto& work : slots_) {
    if (work.job != finished.job) continue;
    work.job = -1;
    auto& tuple = tuples_[work.tuple];
    if (!work.case_index) return finish_twin(tuple, finished);
    const auto& spec = options_.cases[*work.case_index];
    auto& judged = judged_[*work.case_index];
    judged = judge(spec, replay(spec.id()), finished.outcomes);
    judged.record.seconds = seconds_since(work.start);
    rows_.add_memory(spec, judged);
    kept_.ended(judged.record);
    ++done_;
    if (!reports::passed(judged.record.verdict)) ++failed_;
    if (--tuple.left == 0) finish_tuple(tuple);
    return;
  }
}

void Runner::finish_twin(Tuple& tuple, const ranks::Finished& finished) {
  if (ranks::all_ok(finished.outcomes)) {
    tuple.twin = Tuple::Twin::Ready;
    rows_.add_underflow(options_.cases[tuple.cases[0]], finished.outcomes.at(0).answer);
    return;
  }
  tuple.twin = Tuple::Twin::Failed;
  for (const std::size_t number : tuple.cases) {
    judged_[number] =
        judge(options_.cases[number], judged_[number].record.replay, finished.outcomes);
    judged_[number].record.verdict = reports::Verdict::Crashed;  // nothing was compared
    auto& message = judged_[number].record.message;
    message = "the twin could not be made: " + message;
    ++done_, ++failed_;
  }
}

void Runner::finish_tuple(Tuple& tuple) {
  std::vector<CaseSpec> specs;
  std::vector<Judged*> cases;
  for (const std::size_t number : tuple.cases) {
    specs.push_back(options_.cases[number]);
    cases.push_back(&judged_[number]);
  }
  cross_check(specs, cases);
  unlink(tuple.path.c_str());
}

// What the self-check found out so far is told, and that no case was begun.
void Runner::give_up(const std::string& reason) {
  run_.failure = reason;
  for (auto& judged : judged_)
    judged.record.message = "not begun: the planted faults got no answer";
}

void Runner::collect() {
  for (auto& judged : judged_) run_.cases.push_back(std::move(judged.record));
  rows_.give(run_);
  kept_.give(run_.cases);
  run_.interrupted = ranks::interrupted() != 0;
  run_.signal = ranks::interrupted();
}

reports::Run Runner::run() {
  const auto start = Clock::now();
  Progress progress(static_cast<int64_t>(options_.cases.size()), options_.quiet);
  progress.update(0, 0, "planted faults");
  try {
    self_check();
  } catch (const Error& error) {
    if (ranks::interrupted() == 0) give_up(error.what());
  }
  make_tuples();
  while (ranks::interrupted() == 0 && run_.failure.empty()) {
    feed_lanes();
    if (pool_.jobs() == 0) break;
    const auto finished = pool_.wait(milliseconds(1'000));
    if (finished) finish(*finished);
    const auto& work = slots_.front();
    progress.update(done_, failed_,
                    work.case_index ? options_.cases[*work.case_index].tuple() : "a twin");
  }
  progress.finish();
  collect();
  run_.wall_s = seconds_since(start);
  return std::move(run_);
}

}  // namespace

reports::Run run_matrix(const RunOptions& options) { return Runner(options).run(); }

}  // namespace equigrad::conformance
