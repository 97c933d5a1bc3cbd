#include "perf/race/commands.hpp"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <equigrad_build_info.hpp>
#include <filesystem>
#include <fstream>
#include <functional>

#include "conformance/cli/machine.hpp"
#include "conformance/cli/option_checks.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "engine/comm/launch.hpp"
#include "engine/error.hpp"
#include "perf/race/activations.hpp"
#include "perf/race/gate.hpp"
#include "perf/race/memory.hpp"
#include "perf/race/rank_processes.hpp"
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

// Words of the command line that are wrong; the message ends with what is right.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void refuse_filter(const RaceCommand& command) {
  std::string names;
  for (const auto& group : make_suite(command.suite, command.programs, {}))
    names += (names.empty() ? "" : "; ") + group.name;
  throw UsageError("[race] expected a part of the name of a group of the suite " + command.suite +
                   ", got --filter " + command.options.filter + ". It has: " + names + ".");
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
  if (groups.empty()) refuse_filter(command);
  const Scratch scratch;
  race.bandwidth_bytes_per_s = measure_bandwidth(command.programs.worker, scratch.path());
  for (const auto& group : groups) {
    try {
      race.groups.push_back(run_group(group, {scratch.path(), 0.95, !command.no_proof}));
    } catch (const Interrupted&) {
      break;  // what is done is told
    }
    set_limits(race.groups.back(), race.bandwidth_bytes_per_s);
    race.wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
    race.load_after = load();
    // After every group, so that what is done is kept.
    if (!command.report.empty()) write_reports(command.report, race);
    if (conformance::ranks::interrupted() != 0) break;
  }
  std::fputs(reports::to_markdown(race).c_str(), stdout);
  for (const auto& group : race.groups)
    for (const auto& row : group.rows)
      if (row.round_s.empty()) return 1;
  return 0;
}

int memory_command(const std::string& worker) {
  constexpr int64_t kBatch = 4;
  const std::vector<comm::MeshSizes> meshes = {
      {.data = 2}, {.tensor = 2}, {.data = 2, .tensor = 2}, {.sequence = 2}};
  for (const auto& model : {gpt(4, 256, 8, 128, 4096), gpt(8, 512, 8, 128, 4096)}) {
    for (const auto& ranks : meshes) {
      const Scratch scratch;
      const auto rows = measure_memory(worker, scratch.path(), model, kBatch, ranks);
      const auto formula = activation_bytes(model, kBatch, ranks);
      std::printf("GPT, dim %d, data %d x sequence %d x tensor %d\n\n%s\n",
                  model.at("dim").get<int>(), ranks.data, ranks.sequence, ranks.tensor,
                  memory_table(rows).c_str());
      std::printf(
          "Activations that forward leaves: %ld bytes; by formula %ld (%ld divided, %ld "
          "whole).\n\n",
          rows.at(0).left_bytes, formula.total(), formula.divided, formula.whole);
      std::fflush(stdout);
    }
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
    throw UsageError(error.what());
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
  int runs = 20, drawn = 0, stage = 2;
  TimesPlan plan;  // how long, and when it is enough
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
  TimesPlan plan = command.plan;
  plan.model = gpt(4, 128, 4, 64, 1024);
  const auto config = engine_config(command.stage, plan.batch, 1, nlohmann::json::object());
  programs.worker = older;
  plan.older = engine_contestant("older", programs, config);
  programs.worker = command.worker;
  plan.newer = engine_contestant("newer", programs, config);
  plan.newer.settings["faults"] = nlohmann::json::parse(command.planted);
  return plan;
}

std::string lives_text(int lives) {
  return std::to_string(lives) + (lives == 1 ? " life" : " lives");
}

void print(const TimesResult& result) {
  std::printf("new / old %.4f [%.4f, %.4f], CPU %.4f [%.4f, %.4f], %s, %zu pairs: %s\n",
              result.ratio.median, result.ratio.low, result.ratio.high, result.cpu_ratio.median,
              result.cpu_ratio.low, result.cpu_ratio.high, lives_text(result.lives).c_str(),
              result.ratios.size(), word(result.verdict));
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
  const auto plan = plan_of(command, command.worker);
  const auto say = [](const std::string& of, const Noise& noise) {
    std::printf("%s\n", noise.text(of).c_str());
  };
  Noise run, drawn;
  std::vector<LifeTimes> lives;
  while (run.runs < command.runs) {
    const auto result = compare_times(plan, scratch.path());
    print(result);
    run.add(result);
    for (auto& life : lives_of(result)) lives.push_back(std::move(life));
  }
  for (const auto& result : judge_drawn(plan, lives, command.drawn)) drawn.add(result);
  say("a program against itself on " + machine_key(), run);
  if (command.drawn > 0) say("lives drawn from those " + std::to_string(lives.size()), drawn);
  return run.alarms + drawn.alarms == 0 ? 0 : 1;
}

void add_gates(CLI::App& app, GateCommand& gate) {
  auto* counts = app.add_subcommand(
      "counts",
      "Collectives, bytes and allocations of a step, counted exactly, beside those of a file: any "
      "difference is a finding. The machine and its load do not matter. Under a minute");
  counts->add_option("--baseline", gate.baseline, "JSON, such as perf/baselines/counts.json")
      ->required();
  counts->add_flag("--write", gate.write, "Write that file instead");
  auto* leaks = app.add_subcommand(
      "leaks",
      "Bytes that are held after many steps and were not before, at stages 0 to 3: 0 is "
      "right. One to three minutes");
  auto* times = app.add_subcommand(
      "gate",
      "Whether this build became slower than another one (--old): the time of a step, new / old, "
      "in interleaved pairs; below 1 is faster. Some minutes, until regressed or equivalent is "
      "sure; exit code 4 if it stays open");
  times->alias("times");
  times->add_option("--old", gate.older, "perf_worker of the other build")
      ->required()
      ->check(CLI::ExistingFile);
  times->add_option("--plant", gate.planted,
                    "Slow the new one down, to see it caught: {\"step_sleep_us\": 300}, "
                    "{\"sleep_us\": 100}, {\"waits\": true}, {\"copies\": true}, "
                    "{\"one_more\": true}");
  auto* noise = app.add_subcommand(
      "noise",
      "How far off gate can be on this machine: this build beside itself, --runs times; "
      "false alarms are counted, 0 is right. As long as so many runs of gate");
  noise->add_option("--runs", gate.runs, "Of gate")->check(conformance::cli::at_least(1));
  noise
      ->add_option("--drawn", gate.drawn,
                   "So many runs more, of lives drawn from those that were measured, each of them "
                   "as often as it comes: what gate makes of this noise")
      ->check(conformance::cli::at_least(1));
  for (auto* command : {counts, leaks, times, noise})
    command->add_option("--worker,--new", gate.worker, "perf_worker of the build to judge")
        ->check(CLI::ExistingFile);
  for (auto* command : {times, noise}) {
    command->add_option("--pairs", gate.plan.pairs, "Of one life of the two programs")
        ->check(conformance::cli::at_least(1));
    command
        ->add_option("--lives", gate.plan.lives, "Starts of the programs at most, while it is open")
        ->check(conformance::cli::at_least(1));
    command->add_option("--steps", gate.plan.steps, "Of each half of a pair")
        ->check(conformance::cli::at_least(1));
    command->add_option("--stage", gate.stage, "ZeRO stage")->check(CLI::Range(0, 3));
    command
        ->add_option("--margin", gate.plan.margin, "Slower by at most so much is equivalent: 0.02")
        ->check(CLI::Range(0.0, 1.0));
  }
}

void add_scale(CLI::App& app, ScaleCommand& scale, GateCommand& gate) {
  using conformance::cli::at_least;
  auto* command = app.add_subcommand(
      "scale",
      "Messages and bytes of a step of 8 to 4,096 ranks, and its seconds in a network that the "
      "options describe: one process plays a rank, beside formulas of a ring (DDP) and of "
      "DeepSpeed; lower is better. Some seconds a row");
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

// As it was called: a path, or "equigrad bench".
std::string name_of(const char* called) { return std::filesystem::path(called).filename(); }

std::string joined(int argc, char** argv) {
  std::string line = name_of(argv[0]);
  for (int i = 1; i < argc; ++i) line += std::string(" ") + argv[i];
  return line;
}

void add_race(CLI::App& app, RaceCommand& race) {
  auto* racing = app.add_subcommand(
      "race",
      "Time of a training step beside plain LibTorch, and beside DDP, FSDP2 and DeepSpeed where "
      "there is a Python with them, in turns, after a proof that all compute the same gradients: "
      "engine / DDP, below 1 is faster. The suite smoke takes a minute, all an hour");
  racing->add_option("--suite", race.suite, "Which models and settings")
      ->check(CLI::IsMember(suite_names()));
  racing->add_option("--report", race.report, "Folder for race.json, race.md, race.html");
  racing
      ->add_option("--rounds", race.options.rounds,
                   "Turns of each in a life (default: the suite's own)")
      ->check(conformance::cli::at_least(1));
  racing
      ->add_option("--lives", race.options.lives,
                   "Starts of every contestant; a life is one value (default: the suite's own)")
      ->check(conformance::cli::at_least(1));
  racing->add_option("--filter", race.options.filter, "Groups whose name contains this");
  racing->add_option("--worker", race.programs.worker, "perf_worker of some build")
      ->check(CLI::ExistingFile);
  racing
      ->add_option("--old", race.programs.older,
                   "perf_worker of another build, which races beside this one")
      ->check(CLI::ExistingFile);
  racing->add_option("--peers", race.programs.peers, "A Python with torch and DeepSpeed")
      ->envname("EQUIGRAD_PERF_PEERS");
  racing
      ->add_option("--python", race.programs.python,
                   "A Python with this torch, for the engine from Python")
      ->envname("EQUIGRAD_PERF_PYTHON");
  racing->add_flag("--no-peers", race.no_peers, "The engine and LibTorch alone");
  racing->add_flag("--no-proof", race.no_proof, "Times without proof are no result");
}

// An interrupt wins over whatever it made fail.
int guarded(const std::string& name, const std::function<int()>& command) {
  int code = 3;
  std::string complaint;
  conformance::ranks::watch_interrupts();
  try {
    code = command();
  } catch (const UsageError& error) {
    complaint = error.what();
    code = 2;
  } catch (const std::exception& error) {
    complaint = error.what();
  } catch (const Interrupted&) {
    code = 3;
  }
  const int signal = conformance::ranks::interrupted();
  if (signal != 0)
    complaint = "stopped by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
  if (!complaint.empty()) std::fprintf(stderr, "%s: %s\n", name.c_str(), complaint.c_str());
  return signal != 0 ? 128 + signal : code;
}

int run(int argc, char** argv) {
  at::set_num_threads(1);  // the proof adds as the ranks do
  CLI::App app(
      "How fast and how lean the engine is. All of it runs on this machine; ratios are of one run, "
      "so that its speed does not matter. No harness is linked to what is timed.");
  const std::string name = name_of(argv[0]);
  app.option_defaults()->always_capture_default();  // help shows them
  app.name(name);
  app.footer(
      "Exit codes: 0, 1 for a finding, 2 for wrong words, 3 where something broke, 4 "
      "inconclusive.");
  app.require_subcommand(1);
  RaceCommand race;
  add_race(app, race);
  GateCommand gate;
  add_gates(app, gate);
  ScaleCommand scale;
  add_scale(app, scale, gate);
  auto* memory = app.add_subcommand(
      "memory",
      "Bytes that a rank holds of two models, by phase and by what they are for, at stages 0 to 3, "
      "and its peak with activations beside the forecast; lower is better. Under ten minutes");
  memory->add_option("--worker", gate.worker, "perf_worker of some build")
      ->check(CLI::ExistingFile);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) == 0) return 0;
    std::fputs(conformance::cli::hint(app, name, error.what(), argc, argv).c_str(), stderr);
    return 2;
  }
  try {
    comm::expect_one_process(name, std::getenv);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return 2;
  }
  return guarded(name, [&] {
    if (app.got_subcommand("counts")) return counts_command(gate);
    if (app.got_subcommand("leaks")) return leaks_command(gate);
    if (app.got_subcommand("gate")) return times_command(gate);
    if (app.got_subcommand("noise")) return noise_command(gate);
    if (app.got_subcommand("memory")) return memory_command(gate.worker);
    if (app.got_subcommand("scale")) return scale_command(scale, gate.worker);
    return race_command(race, joined(argc, argv));
  });
}

}  // namespace

int run_commands(int argc, char** argv) { return conformance::cli::annotated(run(argc, argv)); }

}  // namespace equigrad::perf
