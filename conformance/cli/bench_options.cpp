#include "conformance/cli/bench_options.hpp"

#include <CLI/CLI.hpp>

#include "conformance/cases/filter.hpp"
#include "conformance/cli/option_checks.hpp"

namespace equigrad::conformance::cli {
namespace {

void add_bench_race(CLI::App& app, BenchRaceOptions& race) {
  auto* racing = app.add_subcommand(
      "race",
      "Time of a training step beside plain LibTorch, and beside DDP, FSDP2 and DeepSpeed where "
      "there is a Python with them, in turns, after a proof that all compute the same gradients: "
      "engine / DDP, below 1 is faster. The suite smoke takes a minute, all an hour");
  racing->add_option("--suite", race.suite, "Which models and settings")
      ->check(CLI::IsMember(race_suites()));
  racing->add_option("--report", race.report, "Folder for race.json, race.md, race.html");
  racing->add_option("--rounds", race.rounds, "Turns of each in a life (default: the suite's own)")
      ->check(at_least(1));
  racing
      ->add_option("--lives", race.lives,
                   "Starts of every contestant; a life is one value (default: the suite's own)")
      ->check(at_least(1));
  racing
      ->add_option(
          "--filter", race.filter,
          "Groups whose name contains this; where none does, words with and, or, not: 'small and "
          "not bf16'")
      ->check(filter_problem);
  racing->add_option("--worker", race.worker, "perf_worker of some build")
      ->check(CLI::ExistingFile);
  racing
      ->add_option("--old", race.older, "perf_worker of another build, which races beside this one")
      ->check(CLI::ExistingFile);
  racing->add_option("--peers", race.peers, "A Python with torch and DeepSpeed")
      ->envname("EQUIGRAD_PERF_PEERS");
  racing
      ->add_option("--python", race.python, "A Python with this torch, for the engine from Python")
      ->envname("EQUIGRAD_PERF_PYTHON");
  racing->add_flag("--no-peers", race.no_peers, "The engine and LibTorch alone");
  racing->add_flag("--no-proof", race.no_proof, "Times without proof are no result");
}

void add_bench_gates(CLI::App& app, BenchGateOptions& gate) {
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
      ->default_str("")
      ->check(CLI::ExistingFile);
  times->add_option("--plant", gate.planted,
                    "Slow the new one down, to see it caught: {\"step_sleep_us\": 300}, "
                    "{\"sleep_us\": 100}, {\"waits\": true}, {\"copies\": true}, "
                    "{\"one_more\": true}");
  auto* noise = app.add_subcommand(
      "noise",
      "How far off gate can be on this machine: this build beside itself, --runs times; "
      "false alarms are counted, 0 is right. As long as so many runs of gate");
  noise->add_option("--runs", gate.runs, "Of gate")->check(at_least(1));
  noise
      ->add_option("--drawn", gate.drawn,
                   "So many runs more, of lives drawn from those that were measured, each of them "
                   "as often as it comes: what gate makes of this noise")
      ->check(at_least(1));
  for (auto* command : {counts, leaks, times, noise})
    command->add_option("--worker,--new", gate.worker, "perf_worker of the build to judge")
        ->check(CLI::ExistingFile);
  for (auto* command : {times, noise}) {
    command->add_option("--pairs", gate.pairs, "Of one life of the two programs")
        ->check(at_least(1));
    command->add_option("--lives", gate.lives, "Starts of the programs at most, while it is open")
        ->check(at_least(1));
    command->add_option("--steps", gate.steps, "Of each half of a pair")->check(at_least(1));
    command->add_option("--stage", gate.stage, "ZeRO stage")->check(CLI::Range(0, 3));
    command->add_option("--margin", gate.margin, "Slower by at most so much is equivalent: 0.02")
        ->check(CLI::Range(0.0, 1.0));
  }
}

void add_bench_scale(CLI::App& app, BenchScaleOptions& scale, BenchGateOptions& gate) {
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
  command->add_option("--compute-ms", scale.compute_ms, "of a step")->check(not_negative());
  command->add_option("--within-us", scale.within_us, "latency within a host")
      ->check(not_negative());
  command->add_option("--within-gb", scale.within_gb, "GB/s of a rank within a host")
      ->check(above_zero());
  command->add_option("--between-us", scale.between_us, "latency between hosts")
      ->check(not_negative());
  command->add_option("--between-gb", scale.between_gb, "GB/s of a host to others")
      ->check(above_zero());
  command->add_flag("--json", scale.as_json);
  command->add_option("--worker", gate.worker, "perf_worker of some build")
      ->check(CLI::ExistingFile);
}

}  // namespace

const std::vector<std::string>& race_suites() {
  static const std::vector<std::string> names = {"all",   "targets", "modes", "scaling",
                                                 "smoke", "python",  "step"};
  return names;
}

void add_bench(CLI::App& app, BenchOptions& options) {
  add_bench_race(app, options.race);
  add_bench_gates(app, options.gate);
  add_bench_scale(app, options.scale, options.gate);
  auto* memory = app.add_subcommand(
      "memory",
      "Bytes that a rank holds of two models, by phase and by what they are for, at stages 0 to 3, "
      "and its peak with activations beside the forecast; lower is better. Under ten minutes");
  memory->add_option("--report", options.memory_report, "Folder for memory.json, memory.html");
  memory->add_option("--worker", options.gate.worker, "perf_worker of some build")
      ->check(CLI::ExistingFile);
}

}  // namespace equigrad::conformance::cli
