#include "perf/race/commands.hpp"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <equigrad_build_info.hpp>
#include <filesystem>
#include <fstream>

#include "conformance/cli/machine.hpp"
#include "conformance/cli/option_checks.hpp"
#include "engine/comm/launch.hpp"
#include "engine/error.hpp"
#include "perf/race/gate.hpp"
#include "perf/race/memory.hpp"
#include "perf/race/scratch.hpp"
#include "perf/race/suites.hpp"
#include "perf/scale/scale.hpp"

namespace equigrad::perf {
namespace {

using Clock = std::chrono::steady_clock;

double load() {
  double loads[1] = {0};
  return getloadavg(loads, 1) == 1 ? loads[0] : 0;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  if (!(file << text << std::flush)) throw std::runtime_error("[race] cannot write " + path + ".");
}

Programs default_programs() {
  Programs programs;
  programs.worker = std::string(build_info::binary_directory()) + "/perf_worker";
  programs.peer_script = std::string(build_info::source_directory()) + "/perf/peers/worker.py";
  programs.python = build_info::python();
  programs.package = build_info::package_directory();
  const auto peers =
      std::filesystem::path(build_info::data_directory()).parent_path() / "peers/bin/python";
  if (std::filesystem::exists(peers)) programs.peers = peers.string();
  return programs;
}

struct RaceCommand {
  std::string suite = "smoke", report;
  Programs programs = default_programs();
  SuiteOptions options;
  bool no_peers = false, no_proof = false;
};

const reports::RaceRow* row_of(const reports::RaceGroupResult& group, const std::string& name) {
  for (const auto& row : group.rows)
    if (row.contestant == name && !row.round_s.empty()) return &row;
  return nullptr;
}

void set_limits(reports::RaceGroupResult& group, double bandwidth_bytes_per_s) {
  if (const auto* alone = row_of(group, "LibTorch alone"))
    group.compute_limit_s = alone->step_s.median;
  if (const auto* base = row_of(group, group.base); base && base->wire_bytes)
    group.wire_limit_s = static_cast<double>(*base->wire_bytes) / bandwidth_bytes_per_s;
}

void write_reports(const std::string& folder, const reports::Race& race) {
  std::filesystem::create_directories(folder);
  write(folder + "/race.json", reports::to_json(race));
  write(folder + "/race.md", reports::to_markdown(race));
  write(folder + "/race.html", reports::to_html(race));
}

int nothing_selected(const RaceCommand& command) {
  std::string names;
  for (const auto& group : make_suite(command.suite, command.programs, {}))
    names += (names.empty() ? "" : "; ") + group.name;
  std::fprintf(stderr,
               "equigrad_perf: [race] expected a part of the name of a group of the suite %s, got "
               "--filter %s. It has: %s.\n",
               command.suite.c_str(), command.options.filter.c_str(), names.c_str());
  return 2;
}

int race_command(RaceCommand command, const std::string& line) {
  if (command.no_peers) command.programs.peers.clear();
  const auto begin = Clock::now();
  reports::Race race;
  race.environment = conformance::cli::environment_here();
  race.command = line;
  race.load_before = load();
  race.versions["torch"] = build_info::torch_version();
  const auto groups = make_suite(command.suite, command.programs, command.options);
  if (groups.empty()) return nothing_selected(command);
  const Scratch scratch;
  race.bandwidth_bytes_per_s = measure_bandwidth(command.programs.worker, scratch.path());
  for (const auto& group : groups) {
    race.groups.push_back(run_group(group, {scratch.path(), 0.95, !command.no_proof}));
    set_limits(race.groups.back(), race.bandwidth_bytes_per_s);
    race.wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
    race.load_after = load();
    // After every group, so that what is done is kept.
    if (!command.report.empty()) write_reports(command.report, race);
  }
  std::fputs(reports::to_markdown(race).c_str(), stdout);
  for (const auto& group : race.groups)
    for (const auto& row : group.rows)
      if (row.round_s.empty()) return 1;
  return 0;
}

int memory_command(const std::string& worker) {
  for (const auto& model : {gpt(4, 256, 8, 128, 4096), gpt(8, 512, 8, 128, 4096)}) {
    const Scratch scratch;
    std::printf("GPT, dim %d\n\n%s\n", model.at("dim").get<int>(),
                memory_table(measure_memory(worker, scratch.path(), model, 4)).c_str());
    std::fflush(stdout);
  }
  return 0;
}

// "layers,dim,heads,context,vocabulary"
nlohmann::json model_of(const std::vector<int>& sizes) {
  return gpt(sizes.at(0), sizes.at(1), sizes.at(2), sizes.at(3), sizes.at(4));
}

struct ScaleCommand {
  std::vector<int> worlds{8, 64, 512, 4096}, stages{0, 1, 2, 3}, gpt{8, 512, 8, 128, 4096};
  int accumulation = 1, ranks_per_host = 8;
  double compute_ms = 0, within_us = 5, within_gb = 100, between_us = 20, between_gb = 50;
  bool as_json = false;
};

int scale_command(const ScaleCommand& command, const std::string& worker) {
  ScaleOptions options;
  options.model = model_of(command.gpt);
  options.worlds = command.worlds;
  options.stages = command.stages;
  options.accumulation = command.accumulation;
  options.compute_s = command.compute_ms * 1e-3;
  options.network = {command.ranks_per_host,
                     {command.within_us * 1e-6, command.within_gb * 1e9},
                     {command.between_us * 1e-6, command.between_gb * 1e9}};
  try {
    for (const int world : options.worlds) static_cast<void>(options.network.local_ranks(world));
  } catch (const Error& error) {
    std::fprintf(stderr, "equigrad_perf: %s\n", error.what());
    return 2;
  }
  const Scratch scratch;
  const auto rows = scale_rows(options, worker, scratch.path());
  const auto text =
      command.as_json ? to_json(rows, options).dump(1) + "\n" : to_markdown(rows, options);
  std::fputs(text.c_str(), stdout);
  return 0;
}

struct GateCommand {
  std::string worker = default_programs().worker, older = worker, baseline, planted = "{}";
  bool write = false;
  int runs = 20, pairs = 40, lives = 8, steps = 5, stage = 2;
  double margin = 0.05, confidence = 0.999;
};

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("[gate] cannot read " + path + ".");
  return nlohmann::json::parse(file);
}

// What stage 3 gathers in a cycle, beside the least that its budget of live elements allows.
void print_gathering(const nlohmann::json& counts) {
  for (const auto& [name, ranks] : counts.items()) {
    const auto& gathering = ranks.at("rank 0").at("gathering");
    const int64_t gathered = gathering.at("gathered_numel"), least = gathering.at("least_numel");
    if (gathered > 0)
      std::printf("%s: gathers %lld elements a cycle, no schedule less than %lld\n", name.c_str(),
                  static_cast<long long>(gathered), static_cast<long long>(least));
  }
}

int counts_command(const GateCommand& command) {
  const Scratch scratch;
  const nlohmann::json got = {{"torch", build_info::torch_version()},
                              {"counts", count_steps(command.worker, scratch.path())}};
  if (command.write) {
    write(command.baseline, got.dump(1) + "\n");
    return 0;
  }
  const auto expected = read_json(command.baseline);
  if (expected.at("torch") != got.at("torch"))
    throw std::runtime_error("[gate] the baseline is of torch " + expected.at("torch").dump() +
                             ", this is " + got.at("torch").dump() + ". Write a new one.");
  const auto found = differences(expected.at("counts"), got.at("counts"));
  for (const auto& line : found) std::printf("%s\n", line.c_str());
  print_gathering(got.at("counts"));
  std::printf("counts of %zu configurations: %zu differences\n", got.at("counts").size(),
              found.size());
  return found.empty() ? 0 : 1;
}

int leaks_command(const GateCommand& command) {
  const Scratch scratch;
  int leaks = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    const auto report = find_leaks(command.worker, scratch.path(), stage);
    std::printf(
        "stage %d: %lld steps, grown by %lld bytes in %lld blocks, ledger by %lld bytes\n", stage,
        static_cast<long long>(report.steps), static_cast<long long>(report.grown_bytes),
        static_cast<long long>(report.grown_count), static_cast<long long>(report.ledger_bytes));
    leaks += report.leaks() ? 1 : 0;
  }
  return leaks == 0 ? 0 : 1;
}

TimesPlan plan_of(const GateCommand& command, const std::string& older) {
  Programs programs = default_programs();
  TimesPlan plan;
  plan.model = gpt(2, 24, 2, 16, 64);
  const auto config = engine_config(command.stage, plan.batch, 1, nlohmann::json::object());
  programs.worker = older;
  plan.older = engine_contestant("older", programs, config);
  programs.worker = command.worker;
  plan.newer = engine_contestant("newer", programs, config);
  plan.newer.settings["faults"] = nlohmann::json::parse(command.planted);
  plan.pairs = command.pairs;
  plan.lives = command.lives;
  plan.steps = command.steps;
  plan.margin = command.margin;
  plan.confidence = command.confidence;
  return plan;
}

void print(const TimesResult& result) {
  std::printf("new / old %.4f [%.4f, %.4f], CPU %.4f [%.4f, %.4f], %zu pairs: %s\n",
              result.ratio.median, result.ratio.low, result.ratio.high, result.cpu_ratio.median,
              result.cpu_ratio.low, result.cpu_ratio.high, result.ratios.size(),
              word(result.verdict));
  std::fflush(stdout);
}

int times_command(const GateCommand& command) {
  const Scratch scratch;
  const auto result = compare_times(plan_of(command, command.older), scratch.path());
  print(result);
  return result.verdict == Verdict::Regressed ? 1 : result.verdict == Verdict::Inconclusive ? 4 : 0;
}

// The same program against itself: how far apart two that are equal can look.
int noise_command(const GateCommand& command) {
  const Scratch scratch;
  int alarms = 0, open = 0;
  double widest = 0;
  for (int run = 0; run < command.runs; ++run) {
    const auto result = compare_times(plan_of(command, command.worker), scratch.path());
    print(result);
    alarms += result.verdict == Verdict::Regressed ? 1 : 0;
    open += result.verdict == Verdict::Inconclusive ? 1 : 0;
    widest = std::max(widest, std::max(result.ratio.median, 1 / result.ratio.median) - 1);
  }
  std::printf(
      "%d runs of a program against itself on %s: %d false alarms, %d inconclusive; the "
      "median ratio is off by at most %.2f %%\n",
      command.runs, machine_key().c_str(), alarms, open, 100 * widest);
  return alarms == 0 ? 0 : 1;
}

void add_gates(CLI::App& app, GateCommand& gate) {
  auto* counts = app.add_subcommand("counts", "what a step counts, beside a baseline, exactly");
  counts->add_option("--baseline", gate.baseline)->required();
  counts->add_flag("--write", gate.write, "write the baseline instead");
  auto* leaks = app.add_subcommand("leaks", "whether anything grows over many steps");
  auto* times = app.add_subcommand("times", "two builds by interleaved pairs");
  times->add_option("--old", gate.older, "perf_worker of the other build")
      ->required()
      ->check(CLI::ExistingFile);
  times->add_option("--plant", gate.planted,
                    "slow the new one down, to see it caught: {\"step_sleep_us\": 300}, "
                    "{\"sleep_us\": 100}, {\"waits\": true}, {\"copies\": true}, "
                    "{\"one_more\": true}");
  auto* noise = app.add_subcommand("noise", "a build against itself");
  noise->add_option("--runs", gate.runs)->check(conformance::cli::at_least(1));
  for (auto* command : {counts, leaks, times, noise})
    command->add_option("--worker,--new", gate.worker, "perf_worker of the build to judge")
        ->check(CLI::ExistingFile);
  for (auto* command : {times, noise}) {
    command->add_option("--pairs", gate.pairs, "of one life of the programs")
        ->check(conformance::cli::at_least(1));
    command->add_option("--lives", gate.lives, "at most, while the verdict is open")
        ->check(conformance::cli::at_least(1));
    command->add_option("--steps", gate.steps, "of a block")->check(conformance::cli::at_least(1));
    command->add_option("--stage", gate.stage)->check(CLI::Range(0, 3));
    command->add_option("--margin", gate.margin, "a slow-down that is none")
        ->check(CLI::Range(0.0, 1.0));
  }
}

void add_scale(CLI::App& app, ScaleCommand& scale, GateCommand& gate) {
  using conformance::cli::at_least;
  auto* command = app.add_subcommand(
      "scale", "a step of 8 to 4,096 ranks, played, beside a ring's and DeepSpeed's");
  command->add_option("--ranks", scale.worlds, "such as 8,64,512,4096")
      ->delimiter(',')
      ->check(at_least(2));
  command->add_option("--stages", scale.stages)->delimiter(',')->check(CLI::Range(0, 3));
  command->add_option("--gpt", scale.gpt, "layers,dim,heads,context,vocabulary")
      ->delimiter(',')
      ->expected(5)
      ->check(at_least(1));
  command->add_option("--accumulation", scale.accumulation)->check(at_least(1));
  command->add_option("--ranks-per-host", scale.ranks_per_host)->check(at_least(1));
  command->add_option("--compute-ms", scale.compute_ms, "of a step")->check(CLI::NonNegativeNumber);
  command->add_option("--within-us", scale.within_us, "latency within a host")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--within-gb", scale.within_gb, "GB/s of a rank within a host")
      ->check(CLI::PositiveNumber);
  command->add_option("--between-us", scale.between_us, "latency between hosts")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--between-gb", scale.between_gb, "GB/s of a host to others")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", scale.as_json);
  command->add_option("--worker", gate.worker, "perf_worker of some build")
      ->check(CLI::ExistingFile);
}

std::string joined(int argc, char** argv) {
  std::string line = "equigrad_perf";
  for (int i = 1; i < argc; ++i) line += std::string(" ") + argv[i];
  return line;
}

}  // namespace

int run_commands(int argc, char** argv) {
  at::set_num_threads(1);  // the proof adds as the ranks do
  CLI::App app("Races and gates: how fast and how lean the engine is, beside what it could be.");
  app.require_subcommand(1);
  RaceCommand race;
  auto* racing = app.add_subcommand("race", "a suite in one interleaved run");
  racing->add_option("--suite", race.suite)->check(CLI::IsMember(suite_names()));
  racing->add_option("--report", race.report, "folder for race.json, race.md, race.html");
  racing->add_option("--rounds", race.options.rounds)->check(conformance::cli::at_least(1));
  racing->add_option("--filter", race.options.filter, "groups whose name contains this");
  racing->add_option("--worker", race.programs.worker, "perf_worker of some build")
      ->check(CLI::ExistingFile);
  racing
      ->add_option("--old", race.programs.older,
                   "perf_worker of another build, which races beside this one")
      ->check(CLI::ExistingFile);
  racing->add_option("--peers", race.programs.peers, "a Python with torch and DeepSpeed")
      ->envname("EQUIGRAD_PERF_PEERS");
  racing
      ->add_option("--python", race.programs.python,
                   "a Python with this torch, for the engine from Python")
      ->envname("EQUIGRAD_PERF_PYTHON");
  racing->add_flag("--no-peers", race.no_peers);
  racing->add_flag("--no-proof", race.no_proof, "times without proof are no result");
  GateCommand gate;
  add_gates(app, gate);
  ScaleCommand scale;
  add_scale(app, scale, gate);
  auto* memory = app.add_subcommand("memory", "what a rank holds by phase and category");
  memory->add_option("--worker", gate.worker, "perf_worker of some build")
      ->check(CLI::ExistingFile);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) == 0) return 0;
    const auto nearest = conformance::cli::meant(app, argc, argv);
    if (!nearest.empty()) std::fprintf(stderr, "equigrad_perf:%s\n", nearest.c_str());
    return 2;
  }
  try {
    comm::expect_one_process("equigrad_perf", std::getenv);
  } catch (const Error& error) {
    std::fprintf(stderr, "equigrad_perf: %s\n", error.what());
    return 2;
  }
  try {
    if (app.got_subcommand("counts")) return counts_command(gate);
    if (app.got_subcommand("leaks")) return leaks_command(gate);
    if (app.got_subcommand("times")) return times_command(gate);
    if (app.got_subcommand("noise")) return noise_command(gate);
    if (app.got_subcommand("memory")) return memory_command(gate.worker);
    if (app.got_subcommand("scale")) return scale_command(scale, gate.worker);
    return race_command(race, joined(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "equigrad_perf: %s\n", error.what());
    return 3;
  }
}

}  // namespace equigrad::perf
