#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include "conformance/cli/cli.hpp"
#include "conformance/cli/machine.hpp"
#include "conformance/runner.hpp"
#include "engine/error.hpp"
#include "reports/annotations.hpp"
#include "reports/html.hpp"
#include "reports/json.hpp"
#include "reports/junit.hpp"
#include "reports/markdown.hpp"
#include "reports/terminal.hpp"

namespace equigrad::conformance::cli {
namespace {

void make_directory(const std::string& path) {
  for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST)
      throw Error("report", "expected to make the folder " + part + ", got: " +
                                std::strerror(errno) + ". Choose another with --report.");
    if (at == std::string::npos) return;
  }
}

void write_file(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::cout << text << std::flush;
    return;
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    throw Error("report", "expected to write " + path + ", got: " + std::strerror(errno) +
                              ". Choose another place.");
}

std::string absolute(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) == nullptr ? path : resolved;
}

// Cases by the filters: of the default matrix, else of the full one, so that the id of any case
// can be pasted. Says what is near when there is none.
std::vector<CaseSpec> selected_cases(const RunCommand& command) {
  auto cases = select(command.full ? full_matrix() : default_matrix(), command.selection);
  if (cases.empty() && !command.full) cases = select(full_matrix(), command.selection);
  if (!cases.empty()) return cases;
  std::cerr << "equigrad: 0 cases selected.\n";
  for (const auto& filter : command.selection.filters) {
    std::cerr << "Nothing matches \"" << filter << "\"; near it are\n";
    for (const auto& id : near_matches(default_matrix(), filter, 3))
      std::cerr << "  " << id << "\n";
  }
  std::cerr << "equigrad list has all ids.\n";
  return {};
}

bool needs_images(const CaseSpec& spec) { return spec.model == "conv" || spec.model == "vision"; }

// What is in the matrix and is not run, by reason.
std::map<std::string, int64_t> left_out(const RunCommand& command, std::size_t selected) {
  const bool narrowed = !command.selection.filters.empty() || !command.selection.stages.empty() ||
                        !command.selection.dtypes.empty() || !command.selection.worlds.empty();
  const auto rest = static_cast<int64_t>(full_matrix().size() - selected);
  if (rest == 0) return {};
  return {{narrowed ? "not selected" : "only in the full matrix (--full)", rest}};
}

RunOptions options_of(const RunCommand& command, std::vector<CaseSpec> cases) {
  RunOptions options;
  options.cases = std::move(cases);
  options.seed = command.seed;
  options.data = find_data(command.data_dir, false);
  options.keep = command.report + "/fail";
  options.replay_prefix = command.program + " run";
  if (!command.data_dir.empty()) options.replay_suffix += " --data-dir '" + command.data_dir + "'";
  if (!command.fault.empty()) options.replay_suffix += " --fault " + command.fault;
  options.timeout_scale = command.timeout_scale;
  options.quiet = command.quiet;
  options.lanes = command.lanes;
  options.fault = command.fault;
  if (options.data.text.empty())
    throw Error("data",
                "expected plays.txt or plays_slice.txt, got none. Name their folder with "
                "--data-dir.");
  return options;
}

void write_reports(const RunCommand& command, const reports::Run& run) {
  write_file(command.report + "/index.html", reports::to_html(run));
  write_file(command.report + "/run.json", reports::to_json(run));
  write_file(command.report + "/junit.xml", reports::to_junit(run));
  if (!command.json.empty()) write_file(command.json, reports::to_json(run));
  if (!command.junit.empty()) write_file(command.junit, reports::to_junit(run));
  const char* actions = std::getenv("GITHUB_ACTIONS");
  if (actions == nullptr || std::string(actions) != "true") return;
  std::cerr << reports::to_annotations(run);
  if (const char* summary = std::getenv("GITHUB_STEP_SUMMARY"))
    write_file(summary, reports::to_markdown(run));
}

}  // namespace

int run_command(const RunCommand& command) {
  auto cases = selected_cases(command);
  if (cases.empty()) return kUsage;
  auto not_run = left_out(command, cases.size());
  auto options = options_of(command, std::move(cases));
  if (options.data.images.empty()) {
    const auto end = std::remove_if(options.cases.begin(), options.cases.end(), needs_images);
    const auto without = options.cases.end() - end;
    if (without > 0)
      not_run["no images: install dataset-fashion-mnist or give --data-dir"] = without;
    options.cases.erase(end, options.cases.end());
  }
  make_directory(command.report);
  if (!command.quiet) std::cerr << options.cases.size() << " cases, seed " << command.seed << "\n";
  const auto environment = environment_here();
  auto run = run_matrix(options);
  run.environment = environment;
  run.command = command.line;
  run.not_run = not_run;
  write_reports(command, run);
  if (command.verbose)
    for (const auto& one : run.cases)
      std::cerr << reports::word(one.verdict) << "  " << one.seconds << " s  " << one.id << "\n";
  const bool pure = command.json == "-" || command.junit == "-";
  std::ostream& out = pure ? std::cerr : std::cout;
  out << reports::to_terminal(run,
                              {use_colour(command.color, pure ? STDERR_FILENO : STDOUT_FILENO), 20})
      << "# report: " << absolute(command.report + "/index.html") << "\n";
  return reports::exit_code(run);
}

int list_command(const RunCommand& command) {
  const auto cases = selected_cases(command);
  for (const auto& spec : cases) std::cout << spec.id() << "\n";
  return cases.empty() ? kUsage : kHeld;
}

}  // namespace equigrad::conformance::cli
