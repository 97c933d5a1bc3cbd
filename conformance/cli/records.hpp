// Records: run.json of earlier runs, as commands read them, and the commands
// that put them together and beside each other.
//
//   equigrad report merge A B --report OUT     equigrad diff A B     equigrad
//   run --failed [A]     equigrad baseline update --reason "..."
//
// Invariants: a place is a run.json or the folder that has one. What is read is
// never written. Units: none. Errors: ConfigError for a place without a record,
// and for records that do not go together. Depends on: cli.hpp,
// reports/merge.hpp, CLI11 (sources only). No torch.
#pragma once

#include <string>
#include <vector>

#include "conformance/cli/cli.hpp"
#include "reports/merge.hpp"

namespace CLI {
class Option;
}

namespace equigrad::conformance::cli {

// The name is the place.
reports::NamedRun read_record(const std::string& place);
std::string folder_of_record(const std::string& place);

struct MergeCommand {
  std::vector<std::string> places;
  RunCommand out;  // --report, --json, --junit, --baseline, --color; line
};
void add_merge(CLI::App& app, MergeCommand& command);
// The merged record's exit code.
int merge_command(const MergeCommand& command);

struct DiffCommand {
  std::string before, after;  // places
  std::string json;           // file, or "-" for stdout
};
void add_diff(CLI::App& app, DiffCommand& command);
// 1 where a verdict is worse, 4 where no case is in both.
int diff_command(const DiffCommand& command);

// What is known to be wrong, for run --baseline (reports/baseline.hpp).
struct BaselineCommand {
  std::string place = "equigrad-report";  // of the record to accept
  std::string file = "equigrad-baseline.json";
  std::string reason;
};
void add_baseline(CLI::App& show, CLI::App& update, BaselineCommand& command);
int baseline_show_command(const BaselineCommand& command);
int baseline_update_command(const BaselineCommand& command);
// The option of `run` and of `report merge`: the file is read where the words are.
CLI::Option* add_baseline(CLI::App& app, RunCommand& command);

bool is_to_repeat(const reports::Case& one);  // it went wrong, or was not reached
bool has_to_repeat(const reports::Run& run);
void add_failed(CLI::App& app, RunCommand& command);
// Repeats those of the record of RunCommand::failed_of, made as they were made. Of a part of them
// the report goes beside the record's, which keeps what this run leaves out.
int run_failed_command(const RunCommand& command);

}  // namespace equigrad::conformance::cli
