#include "conformance/cli/run_reports.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/machine.hpp"
#include "conformance/cli/made_with.hpp"
#include "conformance/cli/records.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/terminal_text.hpp"
#include "conformance/generator/draw.hpp"
#include "reports/baseline.hpp"
#include "reports/json.hpp"
#include "reports/summary.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance::cli {
namespace {

bool is_pure(const RunCommand& command) { return command.json == "-" || command.junit == "-"; }

// The report's folder as CI looks for attachments: Jenkins anywhere, GitLab below its own.
std::string attached_in(const std::string& report) {
  const std::string whole = absolute(report);
  const char* project = std::getenv("CI_PROJECT_DIR");
  const std::string root = project == nullptr ? "" : absolute(project) + "/";
  return !root.empty() && whole.starts_with(root) ? whole.substr(root.size()) : whole;
}

// Of a run that failed nothing is left, but by intention: --failed repeats it.
void say_what_is_replaced(const RunCommand& command) {
  if (command.repeats == absolute(command.report)) return;
  const auto record = read_file(command.report + "/run.json").substr(0, 1000);
  if (record.find("\"outcome\": \"failed\"") != std::string::npos)
    std::cerr << "equigrad: " << command.report
              << " had a run that failed; this one takes its place (--report keeps both)\n";
}

// Lines to paste about the case whose replay the run prints: what it is, and the smallest one that
// fails as it does, where `repro` can have what the run was made with.
void say_what_is_next(std::ostream& out, const RunCommand& command, const reports::Run& run) {
  const auto wrong = reports::wrong_cases(run);
  if (wrong.empty() || is_generated_id(wrong[0]->id)) return;
  const auto& id = wrong[0]->id;
  const auto program = shell_word(command.program);
  out << "# explain: " << program << " explain " << id;
  if (command.report != RunCommand{}.report) out << " --report " << shell_word(command.report);
  out << "\n";
  const auto made = made_with(run).front();
  const bool is_of_matrix = made.model.empty() && !id.starts_with("Contract.");
  if (!is_of_matrix || !made.knobs.empty() || !made.device.empty()) return;
  out << "# shrink:  " << program << " repro " << id << " --seed " << run.seed << words_of(made);
  if (!command.data_dir.empty()) out << " --data-dir " << shell_word(absolute(command.data_dir));
  out << timeout_words(command) << "\n";
}

}  // namespace

bool has_one_document(const RunCommand& command) {
  if (command.json != "-" || command.junit != "-") return true;
  std::cerr << "equigrad: expected one of --json - and --junit -, got both: stdout holds one "
               "document. Give one of them a file.\n";
  return false;
}

void prepare_reports(const RunCommand& command) {
  make_directory(command.report);
  check_writable(command.json);
  check_writable(command.junit);
  say_what_is_replaced(command);
  clear_report_folder(command.report);
}

std::ostream& words_of(const RunCommand& command) {
  return is_pure(command) ? std::cerr : std::cout;
}

std::string timeout_words(const RunCommand& command) {
  return command.timeout_scale == 1
             ? ""
             : " --timeout-scale " + nlohmann::json(command.timeout_scale).dump();
}

void say_run(const RunCommand& command, const reports::Run& run) {
  if (command.verbose)
    for (const auto& one : run.cases)
      std::cerr << reports::word(one.verdict) << "  " << one.seconds << " s  " << one.id << "\n";
  const int descriptor = is_pure(command) ? STDERR_FILENO : STDOUT_FILENO;
  words_of(command) << reports::to_terminal(run, {.colour = use_colour(command.color, descriptor),
                                                  .columns = limit_of_columns(descriptor)})
                    << std::flush;
}

void write_run_reports(const RunCommand& command, const reports::Run& run) {
  const std::string history = command.report + "/history.jsonl";
  auto around = reports::surroundings_of(command.report);
  write_file(command.report + "/index.html", reports::to_html(run, around));
  around.earlier.push_back(reports::past_run(run));
  write_file(history, reports::history_lines(around.earlier));
  write_file(command.report + "/run.json", reports::to_json(run));
  const auto seen = command.baseline ? reports::with_known(run, *command.baseline) : run;
  const auto junit = reports::to_junit(seen, attached_in(command.report));
  write_file(command.report + "/junit.xml", junit);
  if (!command.json.empty()) write_file(command.json, reports::to_json(run));
  if (!command.junit.empty()) write_file(command.junit, junit);
  const char* actions = std::getenv("GITHUB_ACTIONS");
  if (actions == nullptr || std::string(actions) != "true") return;
  std::cerr << reports::to_annotations(seen);
  const char* summary = std::getenv("GITHUB_STEP_SUMMARY");  // other steps' lines stay
  std::string page = reports::to_markdown(run);
  if (command.baseline) {
    const auto found = reports::beside(*command.baseline, run);
    page = std::string("## Equigrad: ") +
           (found.fresh.empty() ? "nothing newly wrong" : "newly wrong") + "\n\n```text\n" +
           reports::to_text(found, command.baseline_file) + "```\n\n" + page;
  }
  if (summary != nullptr && !(std::ofstream(summary, std::ios::app) << page))
    std::cerr << "equigrad: cannot write GITHUB_STEP_SUMMARY, " << summary << "\n";
}

int end_run(const RunCommand& command, const reports::Run& run, const Ending& ending) {
  std::ostream& out = words_of(command);
  if (!run.failure.empty()) std::cerr << "equigrad: " << run.failure << "\n";
  say_run(command, run);
  for (const auto& note : ending.notes) out << "# note: " << note << "\n";
  const bool is_whole = was_written([&] { write_run_reports(command, run); }) && ending.is_whole;
  if (is_whole) out << "# report: " << absolute(command.report + "/index.html") << "\n";
  if (is_whole && !ending.again.empty() && has_to_repeat(run))
    out << "# again:  " << ending.again
        << (command.baseline ? " --baseline " + shell_word(command.baseline_file) : "") << "\n";
  if (is_whole) say_what_is_next(out, command, run);
  int code = reports::exit_code(run);
  if (command.baseline) {
    code = reports::exit_code(reports::with_known(run, *command.baseline));
    out << reports::to_text(reports::beside(*command.baseline, run), command.baseline_file);
  }
  return code == kHeld && !is_whole ? kInfrastructure : code;
}

}  // namespace equigrad::conformance::cli
