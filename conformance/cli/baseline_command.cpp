#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <stdexcept>

#include "conformance/cli/made_with.hpp"
#include "conformance/cli/records.hpp"
#include "conformance/cli/report_folder.hpp"
#include "engine/config/config.hpp"
#include "reports/baseline.hpp"

namespace equigrad::conformance::cli {
namespace {

reports::Baseline read_baseline(const std::string& file) {
  const auto text = read_file(file);
  if (text.empty())
    throw ConfigError("baseline", {"expected a baseline, got nothing to read at \"" + file +
                                   "\". equigrad baseline update --reason \"...\" writes one."});
  try {
    return reports::baseline_from_json(text);
  } catch (const std::runtime_error& error) {
    throw ConfigError("baseline", {file + ": " + error.what()});
  }
}

// A record whose verdicts say what the engine does.
void require_trusted(const reports::Run& run, const std::string& place) {
  const auto refuse = [&](const std::string& got) {
    throw ConfigError("baseline", {"expected a run that caught its planted faults, and had none "
                                   "planted by --fault, got " +
                                   place + ", " + got});
  };
  for (const auto& made : made_with(run))
    if (!made.fault.empty()) refuse("a run with --fault " + made.fault + ". Run it without.");
  if (!run.failure.empty()) refuse("which ended before its cases: " + run.failure);
  if (!run.engine_failure.empty())
    refuse("in which the engine failed where faults were to be planted. Mend that first: " +
           run.engine_failure);
  if (!reports::self_checked(run)) refuse("which did not catch them. Its verdicts show nothing.");
}

}  // namespace

void add_baseline(CLI::App& show, CLI::App& update, BaselineCommand& command) {
  for (auto* app : {&show, &update})
    app->add_option("--file", command.file, "The baseline, to keep beside the code");
  update.add_option("RECORD", command.place, "A run.json, or the folder that has one");
  update.add_option("--reason", command.reason, "Why what is wrong is accepted for now")
      ->required()
      ->check([](const std::string& words) -> std::string {
        const bool is_blank = words.find_first_not_of(" \t\n") == std::string::npos;
        return is_blank ? "expected a reason, got none. Say who mends it, and where" : "";
      });
}

CLI::Option* add_baseline(CLI::App& app, RunCommand& command) {
  return app.add_option_function<std::string>(
      "--baseline",
      [&command](const std::string& file) {
        command.baseline_file = file;
        try {
          command.baseline = std::make_shared<const reports::Baseline>(read_baseline(file));
        } catch (const ConfigError& error) {
          throw CLI::ValidationError("--baseline", error.what());
        }
      },
      "Cases that this file knows to be wrong in the same way do not fail the run: equigrad "
      "baseline update writes it");
}

int baseline_show_command(const BaselineCommand& command) {
  std::cout << reports::to_text(read_baseline(command.file));
  return kHeld;
}

int baseline_update_command(const BaselineCommand& command) {
  const auto record = read_record(command.place);
  require_trusted(record.run, record.name);
  const bool is_new = access(command.file.c_str(), F_OK) != 0;
  const auto before = is_new ? reports::Baseline{} : read_baseline(command.file);
  check_writable(command.file);
  const auto after = reports::updated(before, record.run, command.reason);
  const auto& last = after.accepted.back();
  if (!is_new && last.taken_in == 0 && last.taken_out == 0) {
    std::cout << command.file << " stays: " << record.name << " is as accepted\n";
    return kHeld;
  }
  write_file(command.file, reports::to_json(after));
  std::cout << reports::to_text(after);
  return kHeld;
}

}  // namespace equigrad::conformance::cli
