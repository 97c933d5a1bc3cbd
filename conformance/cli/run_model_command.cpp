#include <iostream>
#include <utility>

#include "conformance/campaigns/environment.hpp"
#include "conformance/check/check.hpp"
#include "conformance/check/registered_model.hpp"
#include "conformance/check/subject.hpp"
#include "conformance/cli/cli.hpp"
#include "conformance/cli/failure_folder.hpp"
#include "conformance/cli/records.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/run_reports.hpp"
#include "engine/config/config.hpp"

namespace equigrad::conformance::cli {
namespace {

bool is_library(const RunCommand& command) {
  return !command.load_model || command.model.ends_with(".so");
}

// What says nothing about a model of the user's; empty: nothing is.
std::string problem(const RunCommand& command) {
  const auto of_others = [](const std::string& option, const std::string& of) {
    return "expected options of --model, got " + option + ", which is of " + of + ". Leave it out.";
  };
  if (command.covering) return of_others("--covering", "the project's own models");
  if (!command.shard.empty()) return of_others("--shard", "the project's own models");
  if (!command.knobs.empty()) return of_others("--knobs", "the project's own models");
  if (!command.data_dir.empty()) return of_others("--data-dir", "the project's own data");
  if (command.fault.starts_with("Contract"))
    return of_others("--fault " + command.fault, "the contract");
  return {};
}

// A replay in a report that must not clear the folder which it stands in; the name of a case and
// the seed follow.
std::string replay(const RunCommand& command, const std::string& program, const std::string& model,
                   const std::string& report) {
  std::string line = program + " run --model " + model;
  if (command.full) line += " --full";
  std::string worlds;
  for (const int world : command.selection.worlds)
    worlds += (worlds.empty() ? "" : ",") + std::to_string(world);
  if (!worlds.empty()) line += " --world " + worlds;
  if (!command.fault.empty()) line += " --fault " + command.fault;
  if (command.device != nullptr) line += " --device cuda";
  line += timeout_words(command);
  return line + " --report " + report;
}

CheckOptions options_of(const RunCommand& command) {
  CheckOptions options{.ranks = {1, 2, 3}};
  if (command.full) {
    options.ranks = {1, 2, 3, 4};
    options.accumulation = {1, 2, 3, 4};
    options.clips = {"clip-off", "clip-below", "clip-above", "clip-above-inf"};
    options.optimizers = {"sgd", "adamw"};
  }
  if (!command.selection.worlds.empty()) options.ranks = command.selection.worlds;
  options.stages = command.selection.stages;
  options.precisions = command.selection.dtypes;
  if (options.precisions.empty())
    for (const auto precision : precisions()) options.precisions.push_back(word(precision));
  options.filters = command.selection.filters;
  options.seed = command.seed;
  options.keep_tensors = command.keep_tensors != "none";
  options.name = model_name(command.model);
  options.timeout_scale = command.timeout_scale;
  options.slots = command.slots;
  options.fault = command.fault;
  if (command.device != nullptr) options.device = "cuda";
  options.progress = !command.quiet;
  options.replay = replay(command, shell_word(command.program), shell_word(command.model),
                          shell_word(replay_folder(command.report)));
  return options;
}

// Beside what the ranks kept.
void write_failures(const RunCommand& command, reports::Run& run) {
  const auto line =
      replay(command, shell_word(absolute_program(command.program)),
             shell_word(is_library(command) ? absolute(command.model) : command.model),
             "\"$(mktemp -d)\"");
  for (auto& record : run.cases) {
    if (!reports::went_wrong(record.verdict)) continue;
    const Failure failure{
        .id = record.id,
        .candidate = std::nullopt,
        .seed = command.seed,
        .data = {},
        .fault = command.fault,
        .message = record.message,
        .command = line + " " + record.id + " --seed " + std::to_string(command.seed)};
    const auto folder = "fail/" + record.id + "/";
    for (const auto& name : write_failure(command.report + "/" + folder, failure))
      record.files.push_back(folder + name);
    record.message += (record.message.ends_with('\n') ? "" : "\n") + std::string("    folder  ") +
                      command.report + "/fail/" + record.id + "\n";
  }
}

int run(const RunCommand& command) {
  const auto make = is_library(command) ? subject_maker(load_model(command.model))
                                        : command.load_model(command.model);
  auto options = options_of(command);
  if (command.list) {
    for (const auto& id : check_ids(make, options)) std::cout << id << "\n";
    return kHeld;
  }
  // What cannot be checked takes no record's place.
  if (!read_file(command.report + "/run.json").empty()) check_ids(make, options);
  prepare_reports(command);
  options.report = command.report;
  auto report = run_check(make, options);
  auto& run = report.run;
  run.environment = environment_here(command.device != nullptr);
  run.command = command.line;
  const bool is_whole = was_written([&] { write_failures(command, run); });
  const auto again = replay(command, shell_word(command.program), shell_word(command.model),
                            shell_word(command.report)) +
                     " --failed";
  return end_run(command, run, {.notes = report.notes, .again = again, .is_whole = is_whole});
}

}  // namespace

int run_model_command(const RunCommand& command) {
  try {
    const auto wrong = problem(command);
    if (!wrong.empty()) throw CheckRefused("model", wrong);
    if (!has_one_document(command)) return kUsage;
    return run(command);
  } catch (const CheckRefused& error) {
    std::cerr << "equigrad: " << error.what() << "\n";
    return kUsage;
  }
}

}  // namespace equigrad::conformance::cli
