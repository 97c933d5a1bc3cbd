// Cli: the `equigrad` command.
//
//   equigrad run [FILTER...]      the matrix and the contract    equigrad list [FILTER...]
//   equigrad run --covering       what every run begins with, alone: the gate of a CI
//   equigrad run --generate 10m   cases drawn at random, after the others, for so long
//   equigrad run A B --one-process  B behind A, in the same rank processes
//   equigrad run --model LIBRARY  a user's model in place of the project's own
//   equigrad run --failed         what went wrong or was not reached in the last report
//   equigrad run --shard 2/5      a part of the cases; equigrad report merge A B --report OUT
//   equigrad run --baseline FILE  only what is newly wrong fails
//   equigrad baseline update      takes what went wrong into that file, with a reason
//   equigrad diff A B             two records: what is worse, better, only in one
//   equigrad explain CASE         what a case is, in words
//   equigrad completion bash      a script for a shell
//   equigrad train                engine and twin side by side   equigrad doctor
//   equigrad config check FILE    what a configuration means, and the bytes a rank holds
//   equigrad config keys          every key, in Markdown         equigrad config schema
//   equigrad repro CASE           the smallest case that fails as this one does
//   equigrad compare              two configurations trained from the same seeds
//   equigrad faults [FILTER...]   every fault of the catalogue: which check catches it
//   equigrad checkpoint           inspect, verify, diff and export what save_checkpoint() wrote
//   equigrad crash [PART...]      saves of checkpoints cut short in every way, and what is left
//   equigrad judge ENGINE...      other engines: DDP, FSDP2, DeepSpeed, Accelerate, yours
//   equigrad bench race           how fast and how lean the engine is: perf/, a program of its own
//   equigrad --version
//
// Invariants: the answer goes to stdout, progress and complaints to stderr; what goes wrong ends
// with what to do next.
// Units: exit codes: 0 held, 1 a gate failed, 2 usage or configuration, 3 infrastructure,
// 4 inconclusive, 130 or 143 interrupted.
// Errors: none leave; they become exit codes.
// Depends on: compare_runs.hpp, reports, engine/config/config.hpp, CLI11 (sources only). No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/campaigns/compare_runs.hpp"
#include "conformance/cases/matrix.hpp"
#include "conformance/on_rank/program.hpp"

namespace CLI {
class App;
}

namespace equigrad::conformance {
class Subject;
}
namespace equigrad::reports {
struct Baseline;
}

namespace equigrad::conformance::cli {

enum ExitCode { kHeld = 0, kFailed = 1, kUsage = 2, kInfrastructure = 3, kInconclusive = 4 };

// Makes models of the name that --model has, in a language that the program does not know itself.
using LoadModel = std::function<std::function<std::unique_ptr<Subject>()>(const std::string& name)>;

struct RunCommand {
  Selection selection;
  std::string model;     // a shared library (check/registered_model.hpp); empty: the project's own
  LoadModel load_model;  // for a model that is no library; empty: there is no such
  bool full = false, covering = false;  // covering: nothing but the covering selection
  bool one_process = false;             // the filters are ids, run in their order
  bool list = false, list_faults = false, list_mistakes = false;  // the latter: instead of ids
  uint64_t seed = 1234;
  std::string json, junit;  // files, or "-" for stdout
  std::string report = "equigrad-report";
  std::string keep_tensors = "fail";  // or none
  std::string data_dir;
  double timeout_scale = 1;
  int slots = 0;
  ranks::TakeDevice device = nullptr;  // null: the CPU
  std::string fault, knobs;            // knobs: a JSON object
  std::string generate;  // generated cases after the others: 2000, 90s, 10m, 2h, 0; empty: 25s
                         // behind a whole run, none behind a part of one
  std::optional<uint64_t> generate_seed;  // nothing: a fresh one
  bool shrinks = true;                    // the first generated cases that fail
  std::string case_file;                  // of one generated case
  std::string shard;                      // "2/5": that part of the cases (shard.hpp)
  bool failed = false;                    // repeat what went wrong (records.hpp)
  std::string failed_of;                  // in this record; empty: in that of the report's folder
  std::string repeats;                    // folder of the record whose failures these are
  std::string baseline_file;              // --baseline
  std::shared_ptr<const reports::Baseline> baseline;  // what it says; null: none
  std::vector<std::string> only;  // ids of cases, beside which nothing is selected
  bool seed_is_stated = false;
  bool quiet = false, verbose = false, fail_fast = false;
  std::string color = "auto";
  std::string program = "equigrad";  // as it was called, for lines to paste
  std::string line;                  // the whole command
};
int run_command(const RunCommand& command);
// What --fault takes, in words: communicators' faults, and the wrong way of each contract case.
std::vector<std::pair<std::string, std::string>> faults_by_name();
std::string fault_problem(const std::string& name);  // empty if it can be planted
std::string fault_help();
int list_command(const RunCommand& command);
// Generated cases alone: those of the filters, which are ids of them, and of the file.
bool names_generated_cases(const RunCommand& command);
int run_generated_command(const RunCommand& command);
// Empty, or what is wrong with an amount of generated cases.
std::string generate_problem(const std::string& amount);
// Both with a model of the user's.
int run_model_command(const RunCommand& command);

struct ReproCommand {
  std::string id;
  int steps = 3;
  uint64_t seed = 1234;
  std::string fault;
  bool as_is = false, quiet = false;  // as_is: not shrunk
  std::string folder = "equigrad-repro";
  std::string data_dir;
  double timeout_scale = 1;
  std::string program = "equigrad";  // as it was called
};
// Repeats a case that fails, shrinks it, and writes its folder. `serve` is what the ranks run.
int repro_command(const ReproCommand& command, const ranks::Handler& serve = conformance::serve);

struct TrainCommand {
  std::string data = "text";  // text, images or captions
  int steps = 200;
  int stage = 2;
  int world = 2;
  std::string dtype = "fp32";
  std::string config;  // a file; stage, dtype, accumulate and micro_batch come from it
  int accumulate = 1;
  int micro_batch = 4;
  int layers = 3, dim = 96, heads = 4, context = 64;
  bool two_groups = false;  // captions: the encoder's ranks and the language model's are others
  uint64_t seed = 1234;
  double lr = 1e-3;
  std::string data_dir;
  double timeout_scale = 1;
  std::string json;                    // file, or "-" for stdout
  ranks::TakeDevice device = nullptr;  // null: the CPU
};
// `serve` is what the ranks run.
int train_command(const TrainCommand& command, const ranks::Handler& serve = conformance::serve);
// The DeepSpeed configuration that the options stand for.
std::string train_config(const TrainCommand& command);

struct CompareCommand : CompareOptions {
  std::vector<std::string> configs;  // files: A, B
  double margin = 0.05;              // nats
  bool margin_is_stated = false;
  int final_steps = 50;
  std::string report = "equigrad-report";  // compare.html, compare.json, compare.md
  std::string line;
};
int compare_command(const CompareCommand& command,
                    const ranks::Handler& serve = conformance::serve);

struct FaultsCommand {
  std::vector<std::string> filters;  // of names
  bool full = false;                 // every case for every fault
  bool covering = false;             // nothing but the covering selection's cases
  bool thin = false;                 // count the cases that catch a fault, up to three
  std::optional<double> minutes;     // nothing: 10, and with --full or --thin as long as it takes
  std::optional<int64_t> clean;      // nothing: 5,000, and with filters none
  uint64_t seed = 1234;
  std::string json;                        // file, or "-" for stdout
  std::string report = "equigrad-report";  // faults.html, faults.json, faults.md
  std::string data_dir;
  double timeout_scale = 1;
  int slots = 0;
  ranks::TakeDevice device = nullptr;  // null: the CPU
  bool quiet = false;
  std::string program = "equigrad", line;
};
// Of commands whose ranks may be on a CUDA device.
void add_device(CLI::App& app, ranks::TakeDevice& device);
void add_faults(CLI::App& app, FaultsCommand& command);
int faults_command(const FaultsCommand& command);

struct CrashCommand {
  std::vector<std::string> parts;  // none: all
  int64_t points = 400;            // that engines load
  std::vector<int> stages = {0, 1, 2, 3}, worlds = {1, 2, 3, 4};
  uint64_t seed = 1;
  std::string replay;                      // one point
  std::string json;                        // file, or "-" for stdout
  std::string report = "equigrad-report";  // crash.json
  double timeout_scale = 1;
  bool quiet = false;
  std::string program = "equigrad", line;
};
void add_crash(CLI::App& app, CrashCommand& command);
int crash_command(const CrashCommand& command);

struct ConfigCommand {
  std::string file;
  int world = 0;                // 0: as many as the file's batch sizes say, else 1
  int64_t parameters = 0;       // elements in all; 0: as many as you like
  std::vector<int64_t> numels;  // or one by one
  std::string device;         // cpu or cuda; empty: cuda where memory_bytes is asked for, else cpu
  std::string json;           // file, or "-" for stdout
  bool all = false;           // every key, not only those of the file and what follows
  uint64_t memory_bytes = 0;  // of a rank's device, whether it fits; 0: not asked
};
int config_check_command(const ConfigCommand& command);
int config_keys_command();    // docs/configuration.md
int config_schema_command();  // a JSON Schema

struct CheckpointCommand {
  std::string folder, other;  // DIRECTORY, whose `latest` names the tag, or DIRECTORY/TAG
  std::string json;           // file, or "-" for stdout
  std::string out;
  std::string sixteen_bit;  // bf16, fp16 or empty
  bool as_computed = false;
  uint64_t file_bytes = 5'000'000'000;
  bool exclude_frozen = false;
};
int checkpoint_inspect_command(const CheckpointCommand& command);
int checkpoint_verify_command(const CheckpointCommand& command);
int checkpoint_diff_command(const CheckpointCommand& command);
int checkpoint_export_command(const CheckpointCommand& command);

// Another program takes this one's place; returns where it cannot be started.
int judge_command(const std::vector<std::string>& words);
// `folder` has equigrad_perf; empty: that of this program.
int bench_command(const std::vector<std::string>& words, const std::string& folder = "");

int doctor_command(const std::string& data_dir);
// What to do when the ranks' folder is in `place` and has too little room; empty: there is none.
std::string place_remedy(const std::string& place);
std::string version_text();

// Parses and runs; returns the exit code. `load_model` gets names that do not end in .so.
int run_cli(int argc, const char* const* argv, const LoadModel& load_model = {});

}  // namespace equigrad::conformance::cli
