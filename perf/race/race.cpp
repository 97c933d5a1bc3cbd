#include "perf/race/race.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>

#include "perf/race/medians.hpp"
#include "perf/race/rank_processes.hpp"
#include "perf/race/workload.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;
using reports::RaceGroupResult;
using reports::RaceRow;

int64_t largest(const std::vector<json>& answers, const char* key) {
  int64_t most = 0;
  for (const auto& answer : answers) most = std::max(most, answer.at(key).get<int64_t>());
  return most;
}

void forget(RaceRow& row) {
  row.round_s.clear();
  row.round_cpu_s.clear();
  row.best_step_s = 0;
}

std::vector<double> ratios_of(const std::vector<double>& values, const std::vector<double>& base) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(values.size(), base.size()); ++i)
    ratios.push_back(values[i] / base[i]);
  return ratios;
}

// Contestants that are alive, beside their rows.
struct Runner {
  const Contestant* contestant;
  RaceRow* row;
  std::unique_ptr<RankProcesses> ranks;
};

class Running {
 public:
  Running(const RaceGroup& group, const RaceOptions& options);
  RaceGroupResult run();

 private:
  json start_request(const Contestant& contestant) const;
  std::unique_ptr<RankProcesses> start(const Contestant& contestant, const json& more);
  std::vector<std::string> write_gradients(const Contestant& contestant, const json& more,
                                           const std::string& path);
  void prove_alone(const Contestant& contestant, RaceRow& row);
  void prove(const Contestant& contestant, RaceRow& row);
  void prove_all();
  static void keep(RaceRow& row, const Proof& proof);
  void count(const Contestant& contestant, RaceRow& row);
  std::vector<std::vector<std::size_t>> parts() const;
  void live(int life);
  void run_part(std::size_t part, int life);
  void race(std::vector<Runner>& runners);
  void block(Runner& runner);
  void keep_whole_rounds();
  void conclude();

  const RaceGroup& group_;
  const RaceOptions& options_;
  Workload workload_;
  RaceGroupResult found_;
  int serial_ = 0;
  std::vector<std::vector<std::size_t>> parts_;  // contestants, the base first where there is one
  std::vector<RaceRow> base_rows_;               // the base's, part by part
  std::map<std::string, std::vector<std::string>> contributions_;  // files, by contestant
};

Running::Running(const RaceGroup& group, const RaceOptions& options)
    : group_(group),
      options_(options),
      workload_(group.model, group.world, group.batch, group.accumulation, options.scratch) {
  found_.name = group.name;
  found_.model = group.model_text;
  found_.parameters = workload_.parameters();
  found_.tokens_per_step = workload_.tokens_per_step();
  found_.ranks = group.world;
  found_.accumulation = group.accumulation;
  found_.lives = group.lives;
  found_.rounds = group.rounds;
  found_.steps_per_round = group.steps;
  found_.base = group.base;
  for (const auto& contestant : group.contestants) {
    RaceRow row;
    row.contestant = contestant.name;
    found_.rows.push_back(row);
  }
}

json Running::start_request(const Contestant& contestant) const {
  json request = {{"do", "start"},
                  {"model", group_.model},
                  {"weights", workload_.weights()},
                  {"batches", workload_.batches()},
                  {"batch", group_.batch},
                  {"accumulation", group_.accumulation},
                  {"bf16", group_.bf16}};
  request.update(contestant.settings);
  return request;
}

std::unique_ptr<RankProcesses> Running::start(const Contestant& contestant, const json& more) {
  auto ranks =
      std::make_unique<RankProcesses>(contestant.name, contestant.command, group_.world,
                                      options_.scratch + "/contestant" + std::to_string(serial_++));
  json request = start_request(contestant);
  request.update(more);
  ranks->ask(request);
  return ranks;
}

std::vector<std::string> Running::write_gradients(const Contestant& contestant, const json& more,
                                                  const std::string& path) {
  start(contestant, more)
      ->ask({{"do", "gradients"}, {"path", path}, {"every_rank", contestant.is_alone}});
  std::vector<std::string> paths = {path};
  for (int rank = 1; contestant.is_alone && rank < group_.world; ++rank)
    paths.push_back(path + "." + std::to_string(rank));
  return paths;
}

// A program without communication: the mean of its ranks' gradients is the reference's, bit by bit.
void Running::prove_alone(const Contestant& contestant, RaceRow& row) {
  const std::string path = options_.scratch + "/" + std::to_string(serial_);
  contributions_[contestant.name] = write_gradients(contestant, json::object(), path);
  const auto unfused = write_gradients(contestant, {{"unfused", true}}, path + ".unfused");
  keep(row, workload_.prove(workload_.mean_of(unfused)));
}

void Running::prove(const Contestant& contestant, RaceRow& row) {
  if (!options_.prove || group_.bf16 || group_.accumulation > 1) return;
  if (contestant.is_alone) return prove_alone(contestant, row);
  const std::string path = options_.scratch + "/gradients.safetensors";
  write_gradients(contestant, json::object(), path);
  const auto& of = contestant.contributions_of;
  keep(row, of.empty() ? workload_.prove(path) : workload_.prove(path, contributions_.at(of)));
}

void Running::keep(RaceRow& row, const Proof& proof) {
  row.proof_margin = proof.report.margin;
  row.differing_elements = proof.differing_elements;
  row.is_proven = proof.report.held();
  if (!row.is_proven)
    throw std::runtime_error("its first gradients are not the reference's: " +
                             conformance::oracle::describe(proof.report));
}

// Collectives and allocations in a run of its own: a counted run is slower. What is sent is counted
// where the kernel sees it.
void Running::count(const Contestant& contestant, RaceRow& row) {
  auto over_tcp = contestant;
  over_tcp.command.insert(over_tcp.command.begin(), {"env", "EQUIGRAD_SHARED_MEMORY=0"});
  const auto ranks = start(over_tcp, {{"counted", true}});
  ranks->ask({{"do", "block"}, {"warm", 2}, {"steps", 0}});
  const auto answers = ranks->ask({{"do", "counts"}});
  row.wire_bytes = largest(answers, "wire_bytes");
  if (answers[0].contains("collectives"))
    row.collectives = answers[0]["collectives"].get<std::map<std::string, int64_t>>();
  if (answers[0].contains("allocations")) row.allocations = largest(answers, "allocations");
  const auto gathering = answers[0].value("/ledger/gathering"_json_pointer, json::object());
  if (gathering.value("gathered_numel", int64_t{0}) == 0) return;  // as on every rank
  row.gathered_numel = gathering.at("gathered_numel").get<int64_t>();
  row.least_gathered_numel = gathering.at("least_numel").get<int64_t>();
}

void Running::block(Runner& runner) {
  const auto answers = runner.ranks->ask({{"do", "block"}, {"warm", 1}, {"steps", group_.steps}});
  double slowest_s = 0, cpu_s = 0;
  std::vector<double> slowest_steps_s(static_cast<std::size_t>(group_.steps));
  for (const auto& answer : answers) {
    const auto seconds = answer.at("seconds").get<std::vector<double>>();
    slowest_s = std::max(slowest_s, std::accumulate(seconds.begin(), seconds.end(), 0.0));
    for (std::size_t i = 0; i < seconds.size(); ++i)
      slowest_steps_s[i] = std::max(slowest_steps_s[i], seconds[i]);
    cpu_s += answer.at("cpu_seconds").get<double>();
  }
  auto& row = *runner.row;
  row.round_s.push_back(slowest_s / group_.steps);
  row.round_cpu_s.push_back(cpu_s / group_.steps);
  const double best_s = *std::min_element(slowest_steps_s.begin(), slowest_steps_s.end());
  row.best_step_s = row.best_step_s > 0 ? std::min(row.best_step_s, best_s) : best_s;
  row.growth_bytes = std::max(row.growth_bytes.value_or(0), largest(answers, "growth_bytes"));
  if (answers[0].contains("ledger") && !answers[0]["ledger"].is_null()) {
    int64_t most = 0;
    for (const auto& answer : answers)
      most = std::max(most, answer["ledger"].at("held_peak_bytes").get<int64_t>());
    row.held_peak_bytes = most;
  }
}

// The first of a life is not kept.
void Running::race(std::vector<Runner>& runners) {
  std::vector<RaceRow> before;
  for (const auto& runner : runners) before.push_back(*runner.row);
  for (int round = -1; round < group_.rounds; ++round) {
    for (std::size_t turn = 0; turn < runners.size(); ++turn) {
      const std::size_t which =
          (turn + static_cast<std::size_t>(std::max(round, 0))) % runners.size();
      auto& runner = runners[which];
      if (!runner.ranks) continue;
      try {
        block(runner);
        if (round < 0) *runner.row = before[which];
      } catch (const std::exception& error) {
        runner.row->trouble = error.what();
        forget(*runner.row);
        runner.ranks.reset();
      }
    }
  }
}

void Running::run_part(std::size_t part, int life) {
  std::vector<Runner> runners;
  for (const std::size_t index : parts_[part]) {
    const auto& contestant = group_.contestants[index];
    const bool is_base = contestant.name == group_.base, is_counted = !is_base || part == 0;
    auto& row = is_base ? base_rows_[part] : found_.rows[index];
    if (is_base && life == 0) row = found_.rows[index];
    if (!row.trouble.empty()) continue;
    if (life == 0) std::printf("#   %s: %s\n", group_.name.c_str(), contestant.name.c_str());
    std::fflush(stdout);
    try {
      if (life == 0 && is_counted) count(contestant, row);
      runners.push_back({&contestant, &row, start(contestant, json::object())});
    } catch (const std::exception& error) {
      row.trouble = error.what();
      forget(row);
      std::printf("#   %s\n", error.what());
    }
  }
  race(runners);
}

void Running::conclude() {
  const auto estimate = [&](const std::vector<double>& rounds) {
    return median_interval(by_life(rounds, found_.lives), options_.confidence);
  };
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const auto& base = base_rows_[part];
    for (const std::size_t index : parts_[part]) {
      auto& row = found_.rows[index];
      if (row.contestant == group_.base && part == 0) row = base;
      if (row.round_s.empty() || (row.contestant == group_.base && part > 0)) continue;
      row.step_s = estimate(row.round_s);
      row.tokens_per_s = static_cast<double>(found_.tokens_per_step) / row.step_s.median;
      row.cpu_s = estimate(row.round_cpu_s);
      if (base.round_s.empty()) continue;
      row.to_base = estimate(ratios_of(row.round_s, base.round_s));
      row.cpu_to_base = estimate(ratios_of(row.round_cpu_s, base.round_cpu_s));
    }
  }
}

// After an interrupt: rounds that all have had, and lives that are whole; of the first life what
// there is of it.
void Running::keep_whole_rounds() {
  std::size_t least =
      static_cast<std::size_t>(group_.rounds) * static_cast<std::size_t>(group_.lives);
  const auto each = [&](const auto& function) {
    for (auto& row : base_rows_)
      if (row.trouble.empty()) function(row);
    for (auto& row : found_.rows)
      if (row.trouble.empty() && row.contestant != group_.base) function(row);
  };
  each([&](const RaceRow& row) { least = std::min(least, row.round_s.size()); });
  if (least == 0) throw Interrupted{};
  const auto whole = whole_lives(least, static_cast<std::size_t>(group_.rounds));
  each([&](RaceRow& row) {
    row.round_s.resize(static_cast<std::size_t>(whole.lives * whole.rounds));
    row.round_cpu_s.resize(row.round_s.size());
  });
  found_.lives = whole.lives;
  found_.rounds = whole.rounds;
}

// In the order of the field: those that are alone come first, others compare with them.
void Running::prove_all() {
  for (std::size_t i = 0; i < group_.contestants.size(); ++i) try {
      prove(group_.contestants[i], found_.rows[i]);
    } catch (const std::exception& error) {
      found_.rows[i].trouble = error.what();
      std::printf("#   %s: %s: %s\n", group_.name.c_str(), group_.contestants[i].name.c_str(),
                  error.what());
    }
}

// Of at most at_once contestants each, the base in all of them.
std::vector<std::vector<std::size_t>> Running::parts() const {
  std::vector<std::size_t> base, rest;
  for (std::size_t i = 0; i < group_.contestants.size(); ++i)
    (group_.contestants[i].name == group_.base ? base : rest).push_back(i);
  const std::size_t room = std::max<std::size_t>(group_.at_once, 2) - base.size();
  std::vector<std::vector<std::size_t>> parts;
  for (std::size_t begin = 0; begin < rest.size() || begin == 0; begin += room) {
    parts.push_back(base);
    for (std::size_t i = begin; i < std::min(begin + room, rest.size()); ++i)
      parts.back().push_back(rest[i]);
  }
  return parts;
}

void Running::live(int life) {
  if (group_.lives > 1)
    std::printf("#   %s: life %d of %d\n", group_.name.c_str(), life + 1, group_.lives);
  for (std::size_t part = 0; part < parts_.size(); ++part) run_part(part, life);
}

RaceGroupResult Running::run() {
  prove_all();
  parts_ = parts();
  base_rows_.resize(parts_.size());
  try {
    for (int life = 0; life < group_.lives; ++life) live(life);
  } catch (const Interrupted&) {
    keep_whole_rounds();
  }
  conclude();
  return found_;
}

}  // namespace

RaceGroupResult run_group(const RaceGroup& group, const RaceOptions& options) {
  return Running(group, options).run();
}

}  // namespace equigrad::perf
