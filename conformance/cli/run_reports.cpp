#include "conformance/cli/run_reports.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "conformance/cli/machine.hpp"
#include "conformance/cli/report_folder.hpp"
#include "reports/json.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance::cli {
namespace {

bool is_pure(const RunCommand& command) { return command.json == "-" || command.junit == "-"; }

}  // namespace

bool has_one_document(const RunCommand& command) {
  if (command.json != "-" || command.junit != "-") return true;
  std::cerr << "equigrad: expected one of --json - and --junit -, got both: stdout holds one "
               "document. Give one of them a file.\n";
  return false;
}

void prepare_reports(const RunCommand& command) {
  make_directory(command.report);
  clear_report_folder(command.report);
  check_writable(command.json);
  check_writable(command.junit);
}

std::ostream& words_of(const RunCommand& command) {
  return is_pure(command) ? std::cerr : std::cout;
}

void say_run(const RunCommand& command, const reports::Run& run) {
  if (command.verbose)
    for (const auto& one : run.cases)
      std::cerr << reports::word(one.verdict) << "  " << one.seconds << " s  " << one.id << "\n";
  const int descriptor = is_pure(command) ? STDERR_FILENO : STDOUT_FILENO;
  words_of(command) << reports::to_terminal(run, {use_colour(command.color, descriptor), 20})
                    << std::flush;
}

void write_run_reports(const RunCommand& command, const reports::Run& run) {
  write_file(command.report + "/index.html", reports::to_html(run));
  write_file(command.report + "/run.json", reports::to_json(run));
  write_file(command.report + "/junit.xml", reports::to_junit(run));
  if (!command.json.empty()) write_file(command.json, reports::to_json(run));
  if (!command.junit.empty()) write_file(command.junit, reports::to_junit(run));
  const char* actions = std::getenv("GITHUB_ACTIONS");
  if (actions == nullptr || std::string(actions) != "true") return;
  std::cerr << reports::to_annotations(run);
  const char* summary = std::getenv("GITHUB_STEP_SUMMARY");  // other steps' lines stay
  if (summary != nullptr && !(std::ofstream(summary, std::ios::app) << reports::to_markdown(run)))
    std::cerr << "equigrad: cannot write GITHUB_STEP_SUMMARY, " << summary << "\n";
}

}  // namespace equigrad::conformance::cli
