#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "conformance/cases/filter.hpp"
#include "conformance/cli/records.hpp"
#include "engine/config/config.hpp"
#include "reports/text.hpp"

namespace equigrad::conformance::cli {
namespace {

bool is_to_repeat(const reports::Case& one) {
  return reports::went_wrong(one.verdict) || one.verdict == reports::Verdict::NotRun;
}

// What the run was made with, and this one would leave out: then other cases
// would hold.
void require_the_same(const std::string& line, const RunCommand& command) {
  const auto require = [&](const std::string& option, bool is_given) {
    const bool was_given = (line + " ").find(" " + option + " ") != std::string::npos ||
                           line.find(" " + option + "=") != std::string::npos;
    if (was_given && !is_given)
      throw ConfigError("run", {"expected " + option + " beside --failed, for the run had it: " +
                                line + ". Give it again, or name the cases."});
  };
  require("--fault", !command.fault.empty());
  require("--knobs", !command.knobs.empty());
  require("--model", !command.model.empty());
}

}  // namespace

void add_failed(CLI::App& app, RunCommand& command) {
  app.add_option_function<std::string>(
         "--failed",
         [&command](const std::string& place) {
           command.failed = true;
           command.failed_of = place;
         },
         "Repeat the cases that failed or were not reached in this run.json, "
         "or in the one of this "
         "folder (without one: the --report folder's), with that run's seed")
      ->expected(0, 1)
      ->excludes("--full")
      ->excludes("--covering")
      ->excludes("--shard")
      ->excludes("--one-process")
      ->excludes("--generate")
      ->excludes("--case");
}

int run_failed_command(const RunCommand& command) {
  const auto place = command.failed_of.empty() ? command.report : command.failed_of;
  if (access(place.c_str(), R_OK) != 0)
    throw ConfigError("run", {"expected a run.json or the folder that has one "
                              "behind --failed, got \"" +
                              place + "\". A FILTER stands before --failed."});
  const auto run = read_record(place).run;
  require_the_same(run.command, command);
  auto again = command;
  again.failed = false;
  if (!command.seed_is_stated) again.seed = run.seed;
  for (const auto& one : run.cases)
    if (is_to_repeat(one)) again.only.push_back(one.id);
  if (again.only.empty()) {
    std::cout << "# nothing to repeat: no case of " << place
              << " failed or was not reached; the verdict is that run's\n"
              << reports::upper_case(reports::word(reports::outcome(run))) << "\n";
    return reports::exit_code(run);
  }
  if (!command.model.empty()) {
    const Filters filters(command.selection.filters);
    std::erase_if(again.only, [&](const std::string& id) { return !filters.match({id}); });
    if (again.only.empty())
      throw ConfigError("run", {"expected a filter that selects one of the cases to repeat, got "
                                "none. Leave the filters out."});
    again.selection.filters = std::move(again.only);
    again.only.clear();
    return run_model_command(again);
  }
  return command.list ? list_command(again) : run_command(again);
}

}  // namespace equigrad::conformance::cli
