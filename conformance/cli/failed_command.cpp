#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "conformance/cases/filter.hpp"
#include "conformance/cases/matrix.hpp"
#include "conformance/cli/made_with.hpp"
#include "conformance/cli/records.hpp"
#include "conformance/cli/report_folder.hpp"
#include "engine/config/config.hpp"
#include "reports/text.hpp"

namespace equigrad::conformance::cli {
namespace {

// Without what the run was made with other cases would hold. A model's place may be written in
// another way.
void require_the_same(const reports::Run& run, const RunCommand& command) {
  for (const auto& made : made_with(run)) {
    MadeWith given{command.fault, command.knobs, command.model,
                   command.device != nullptr ? "cuda" : ""};
    if (!made.model.empty() && !given.model.empty()) given.model = made.model;
    if (given == made) continue;
    const auto words = words_of(made), got = words_of(given);
    const auto place = command.failed_of.empty() ? " --report " + shell_word(command.report) : "";
    throw ConfigError(
        "run",
        {"expected" + (words.empty() ? " none of --fault, --knobs, --model and --device" : words) +
         " beside --failed, as the run had it, got" + (got.empty() ? " nothing" : got) + ": " +
         shell_word(command.program) + " run" + words + place + " --failed" +
         (command.failed_of.empty() ? "" : " " + shell_word(command.failed_of)) + " repeats it."});
  }
}

// Whether the options beside --failed leave one of them out; a case that does not say where it
// belongs is left out by any.
bool leaves_out(const Selection& selection, const std::vector<const reports::Case*>& cases) {
  const auto number = [](const reports::Case& one, const char* dimension) {
    const auto text = reports::dimension(one, dimension);
    const bool is_number = text.find_first_not_of("0123456789") == std::string::npos;
    return is_number && !text.empty() && text.size() < 10 ? std::stoi(text) : -1;
  };
  return !std::all_of(cases.begin(), cases.end(), [&](const reports::Case* one) {
    return selects(selection, number(*one, "stage"), reports::dimension(*one, "precision"),
                   number(*one, "ranks"), one->id);
  });
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
  require_the_same(run, command);
  auto again = command;
  again.failed = false;
  again.repeats = absolute(folder_of_record(place));
  if (!command.seed_is_stated) again.seed = run.seed;
  std::vector<const reports::Case*> cases;
  for (const auto& one : run.cases) {
    if (!is_to_repeat(one)) continue;
    cases.push_back(&one);
    again.only.push_back(one.id);
  }
  if (again.only.empty()) {
    std::cout << "# nothing to repeat: no case of " << place
              << " failed or was not reached; the verdict is that run's\n"
              << reports::upper_case(reports::word(reports::outcome(run))) << "\n";
    return reports::exit_code(run);
  }
  if (leaves_out(command.selection, cases) && !command.list &&
      again.repeats == absolute(command.report)) {
    again.report += "-replay";
    if (!command.quiet)
      std::cerr << "a part of what went wrong: " << command.report << " stays, the report goes to "
                << again.report << "\n";
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
