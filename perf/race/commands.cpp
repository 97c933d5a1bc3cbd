#include "perf/race/commands.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <equigrad_build_info.hpp>
#include <filesystem>
#include <fstream>
#include <functional>

#include "conformance/campaigns/environment.hpp"
#include "conformance/cli/bench_options.hpp"
#include "conformance/cli/option_checks.hpp"
#include "conformance/cli/terminal_text.hpp"
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
#include "reports/folder_index.hpp"
#include "reports/memory.hpp"

namespace equigrad::perf {
namespace {

using Clock = std::chrono::steady_clock;
using conformance::cli::BenchGateOptions;
using conformance::cli::BenchOptions;
using conformance::cli::BenchRaceOptions;
using conformance::cli::BenchScaleOptions;

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

BenchOptions default_options() {
  const Programs programs = default_programs();
  const TimesPlan plan;
  BenchOptions options;
  options.race.worker = options.gate.worker = options.gate.older = programs.worker;
  options.race.peers = programs.peers;
  options.race.python = programs.python;
  options.gate.pairs = plan.pairs;
  options.gate.lives = plan.lives;
  options.gate.steps = plan.steps;
  options.gate.margin = plan.margin;
  return options;
}

Programs programs_of(const BenchRaceOptions& race) {
  Programs programs = default_programs();
  programs.worker = race.worker;
  programs.older = race.older;
  programs.peers = race.no_peers ? "" : race.peers;
  programs.python = race.python;
  return programs;
}

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
  reports::link_pages(folder);
}

// Words of the command line that are wrong; the message ends with what is right.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void refuse_filter(const BenchRaceOptions& command) {
  std::string names;
  for (const auto& group : make_suite(command.suite, programs_of(command), {}))
    names += (names.empty() ? "" : "; ") + group.name;
  throw UsageError("[race] expected a part of the name of a group of the suite " + command.suite +
                   ", or words with and, or, not that mean one, got --filter " + command.filter +
                   ". It has: " + names + ".");
}

// On a terminal what a person compares; elsewhere all of it.
void print(const reports::Race& race, const std::string& report) {
  const auto columns = conformance::cli::limit_of_columns(STDOUT_FILENO);
  if (columns == 0) {
    std::fputs(reports::to_markdown(race).c_str(), stdout);
    return;
  }
  const std::string where = report.empty() ? "# --report DIR keeps all columns, in race.md"
                                           : "# all columns: " + report + "/race.md";
  std::printf("%s%s\n", reports::to_terminal(race, columns).c_str(), where.c_str());
}

int race_command(const BenchRaceOptions& command, const std::string& line) {
  const auto begin = Clock::now();
  reports::Race race;
  race.environment = conformance::environment_here();
  race.command = line;
  race.load_before = load();
  race.versions["torch"] = build_info::torch_version();
  const auto groups = make_suite(command.suite, programs_of(command),
                                 {command.rounds, command.lives, command.filter});
  if (groups.empty()) refuse_filter(command);
  const Scratch scratch;
  race.bandwidth_bytes_per_s = measure_bandwidth(command.worker, scratch.path());
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
  print(race, command.report);
  for (const auto& group : race.groups)
    for (const auto& row : group.rows)
      if (row.round_s.empty()) return 1;
  return 0;
}

// The ledger's kinds, and the two beside them.
reports::MemoryHolder holder_of(const MemoryRow& row) {
  reports::MemoryHolder holder{row.contestant, {}, row.forecast_bytes};
  for (const auto& phase : row.phases) {
    auto& moment = holder.moments.emplace_back();
    moment.phase = phase.phase;
    moment.bytes.assign(phase.held_bytes.begin(), phase.held_bytes.end());
    moment.bytes.push_back(phase.activation_bytes);
    moment.bytes.push_back(phase.other_bytes);
  }
  return holder;
}

void write_reports(const std::string& folder, const reports::Memory& memory) {
  std::filesystem::create_directories(folder);
  write(folder + "/memory.json", reports::to_json(memory));
  write(folder + "/memory.html", reports::to_html(memory));
  reports::link_pages(folder);
}

// Printed as it comes, and kept.
void add_group(reports::Memory& memory, const std::string& worker, const nlohmann::json& model,
               const comm::MeshSizes& ranks) {
  constexpr int64_t kBatch = 4;
  const Scratch scratch;
  const auto rows = measure_memory(worker, scratch.path(), model, kBatch, ranks);
  const auto formula = activation_bytes(model, kBatch, ranks);
  auto& group = memory.groups.emplace_back();
  group.name = fmt::format("GPT, dim {}, data {} x sequence {} x tensor {}",
                           model.at("dim").get<int>(), ranks.data, ranks.sequence, ranks.tensor);
  group.left_bytes = rows.at(0).left_bytes;
  group.formula_bytes = formula.total();
  for (const auto& row : rows) group.holders.push_back(holder_of(row));
  std::printf("%s\n\n%s\n", group.name.c_str(), memory_table(rows).c_str());
  std::printf(
      "Activations that forward leaves: %ld bytes; by formula %ld (%ld divided, %ld whole).\n\n",
      group.left_bytes, formula.total(), formula.divided, formula.whole);
  std::fflush(stdout);
}

int memory_command(const BenchOptions& options, const std::string& line) {
  const auto begin = Clock::now();
  reports::Memory memory;
  memory.environment = conformance::environment_here();
  memory.command = line;
  for (const char* category : memory::kCategoryNames) memory.kinds.emplace_back(category);
  memory.kinds.insert(memory.kinds.end(), {"activations", "other"});
  const std::vector<comm::MeshSizes> meshes = {
      {.data = 2}, {.tensor = 2}, {.data = 2, .tensor = 2}, {.sequence = 2}};
  for (const auto& model : {gpt(4, 256, 8, 128, 4096), gpt(8, 512, 8, 128, 4096)}) {
    for (const auto& ranks : meshes) {
      add_group(memory, options.gate.worker, model, ranks);
      memory.wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
      // After every group, so that what is done is kept.
      if (!options.memory_report.empty()) write_reports(options.memory_report, memory);
    }
  }
  return 0;
}

// "layers,dim,heads,context,vocabulary"
nlohmann::json model_of(const std::vector<int>& sizes) {
  return gpt(sizes.at(0), sizes.at(1), sizes.at(2), sizes.at(3), sizes.at(4));
}

int scale_command(const BenchScaleOptions& command, const std::string& worker) {
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

int counts_command(const BenchGateOptions& command) {
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

int leaks_command(const BenchGateOptions& command) {
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

TimesPlan plan_of(const BenchGateOptions& command, const std::string& older) {
  Programs programs = default_programs();
  TimesPlan plan;
  plan.pairs = command.pairs;
  plan.lives = command.lives;
  plan.steps = command.steps;
  plan.margin = command.margin;
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

int times_command(const BenchGateOptions& command) {
  const Scratch scratch;
  const auto result = compare_times(plan_of(command, command.older), scratch.path());
  print(result);
  return result.verdict == Verdict::Regressed ? 1 : result.verdict == Verdict::Inconclusive ? 4 : 0;
}

// The same program against itself: how far apart two that are equal can look.
int noise_command(const BenchGateOptions& command) {
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

// As it was called: a path, or "equigrad bench".
std::string name_of(const char* called) { return std::filesystem::path(called).filename(); }

std::string joined(int argc, char** argv) {
  std::string line = name_of(argv[0]);
  for (int i = 1; i < argc; ++i) line += std::string(" ") + argv[i];
  return line;
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
  BenchOptions options = default_options();
  conformance::cli::add_bench(app, options);
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
    if (app.got_subcommand("counts")) return counts_command(options.gate);
    if (app.got_subcommand("leaks")) return leaks_command(options.gate);
    if (app.got_subcommand("gate")) return times_command(options.gate);
    if (app.got_subcommand("noise")) return noise_command(options.gate);
    if (app.got_subcommand("memory")) return memory_command(options, joined(argc, argv));
    if (app.got_subcommand("scale")) return scale_command(options.scale, options.gate.worker);
    return race_command(options.race, joined(argc, argv));
  });
}

}  // namespace

int run_commands(int argc, char** argv) { return conformance::cli::annotated(run(argc, argv)); }

}  // namespace equigrad::perf
