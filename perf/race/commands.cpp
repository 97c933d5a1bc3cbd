#include "perf/race/commands.hpp"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <equigrad_build_info.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "conformance/cli/machine.hpp"
#include "perf/race/suites.hpp"

namespace equigrad::perf {
namespace {

using Clock = std::chrono::steady_clock;

// A folder that ends with this.
class Scratch {
 public:
  Scratch() {
    std::string path = (std::filesystem::temp_directory_path() / "equigrad-race-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr)
      throw std::runtime_error("[race] cannot make a folder for scratch files.");
    path_ = path;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

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
  const auto python =
      std::filesystem::path(build_info::data_directory()).parent_path() / "peers/bin/python";
  if (std::filesystem::exists(python)) programs.peers = python.string();
  return programs;
}

struct RaceCommand {
  std::string suite = "smoke", report;
  Programs programs = default_programs();
  SuiteOptions options;
  bool no_peers = false, no_proof = false;
};

const reports::RaceRow* row_of(const reports::RaceHeat& heat, const std::string& name) {
  for (const auto& row : heat.rows)
    if (row.contestant == name && !row.round_s.empty()) return &row;
  return nullptr;
}

void set_limits(reports::RaceHeat& heat, double bandwidth_bytes_per_s) {
  if (const auto* alone = row_of(heat, "LibTorch alone"))
    heat.compute_limit_s = alone->step_s.median;
  if (const auto* base = row_of(heat, heat.base); base && base->wire_bytes)
    heat.wire_limit_s = static_cast<double>(*base->wire_bytes) / bandwidth_bytes_per_s;
}

void write_reports(const std::string& folder, const reports::Race& race) {
  std::filesystem::create_directories(folder);
  write(folder + "/race.json", reports::to_json(race));
  write(folder + "/race.md", reports::to_markdown(race));
  write(folder + "/race.html", reports::to_html(race));
}

int race_command(RaceCommand command, const std::string& line) {
  if (command.no_peers) command.programs.peers.clear();
  const auto begin = Clock::now();
  reports::Race race;
  race.environment = conformance::cli::environment_here();
  race.command = line;
  race.load_before = load();
  race.versions["torch"] = build_info::torch_version();
  const Scratch scratch;
  race.bandwidth_bytes_per_s = measure_bandwidth(command.programs.worker, scratch.path());
  for (const auto& heat : make_suite(command.suite, command.programs, command.options)) {
    race.heats.push_back(run_heat(heat, {scratch.path(), 0.95, !command.no_proof}));
    set_limits(race.heats.back(), race.bandwidth_bytes_per_s);
    race.wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
    race.load_after = load();
    // After every heat, so that what is done is kept.
    if (!command.report.empty()) write_reports(command.report, race);
  }
  std::fputs(reports::to_markdown(race).c_str(), stdout);
  for (const auto& heat : race.heats)
    for (const auto& row : heat.rows)
      if (row.round_s.empty()) return 1;
  return 0;
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
  racing->add_option("--rounds", race.options.rounds)->check(CLI::PositiveNumber);
  racing->add_option("--filter", race.options.filter, "heats whose name contains this");
  racing->add_option("--worker", race.programs.worker, "perf_worker of some build");
  racing->add_option("--peers", race.programs.peers, "a Python with torch and DeepSpeed");
  racing->add_flag("--no-peers", race.no_peers);
  racing->add_flag("--no-proof", race.no_proof, "times without proof are no result");
  CLI11_PARSE(app, argc, argv);
  try {
    return race_command(race, joined(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "equigrad_perf: %s\n", error.what());
    return 3;
  }
}

}  // namespace equigrad::perf
