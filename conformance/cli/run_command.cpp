#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <iostream>

#include "conformance/cli/cli.hpp"
#include "conformance/cli/machine.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/contract/contract_runner.hpp"
#include "conformance/ranks/interrupt.hpp"
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

std::string absolute(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) == nullptr ? path : resolved;
}

// Of the matrix and of the contract.
struct Selected {
  std::vector<CaseSpec> matrix;
  std::vector<contract::Spec> contract;
  std::size_t size() const { return matrix.size() + contract.size(); }
};

Selected selected(const RunCommand& command, bool full) {
  return {select(full ? full_matrix() : default_matrix(), command.selection),
          contract::selected_specs(command.selection, full)};
}

std::vector<std::string> default_ids() {
  std::vector<std::string> ids;
  for (const auto& spec : default_matrix()) ids.push_back(spec.id());
  for (const auto& spec : contract::default_specs()) ids.push_back(spec.id());
  return ids;
}

// Cases by the filters: of the default selection, else of all, so that the id of any case can be
// pasted. Says what is near when there is none.
Selected selected_cases(const RunCommand& command) {
  auto cases = selected(command, command.full);
  if (cases.size() == 0 && !command.full) cases = selected(command, true);
  if (cases.size() > 0) return cases;
  std::cerr << "equigrad: 0 cases selected.\n";
  for (const auto& filter : command.selection.filters) {
    std::cerr << "Nothing matches \"" << filter << "\"; near it are\n";
    for (const auto& id : near_matches(default_ids(), filter, 3)) std::cerr << "  " << id << "\n";
  }
  std::cerr << "equigrad list has all ids.\n";
  return {};
}

bool needs_images(const CaseSpec& spec) { return spec.model == "conv" || spec.model == "vision"; }

// What is in the matrix and is not run, by reason.
std::map<std::string, int64_t> left_out(const RunCommand& command, std::size_t selected) {
  const bool narrowed = !command.selection.filters.empty() || !command.selection.stages.empty() ||
                        !command.selection.dtypes.empty() || !command.selection.worlds.empty();
  const auto all = full_matrix().size() + contract::full_specs().size();
  const auto rest = static_cast<int64_t>(all - selected);
  if (rest == 0) return {};
  return {{narrowed ? "not selected" : "only with --full", rest}};
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

contract::ContractOptions contract_options(const RunOptions& options,
                                           std::vector<contract::Spec> specs) {
  return {std::move(specs),      options.seed,          options.data,
          options.replay_prefix, options.replay_suffix, options.timeout_scale,
          options.quiet,         options.lanes,         false};
}

// The contract's cases follow the matrix's.
void add_contract(const RunOptions& options, std::vector<contract::Spec> specs, reports::Run& run) {
  if (specs.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  for (auto& record : contract::run_contract(contract_options(options, std::move(specs))))
    run.cases.push_back(std::move(record));
  run.statements = contract::statements();
  run.interrupted = run.interrupted || ranks::interrupted() != 0;
  run.wall_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
  if (cases.size() == 0) return kUsage;
  auto not_run = left_out(command, cases.size());
  if (!command.fault.empty() && !cases.contract.empty()) {
    not_run["--fault is for the matrix; the contract's cases have their own"] =
        static_cast<int64_t>(cases.contract.size());
    cases.contract.clear();
  }
  auto options = options_of(command, std::move(cases.matrix));
  if (options.data.images.empty()) {
    const auto end = std::remove_if(options.cases.begin(), options.cases.end(), needs_images);
    const auto without = options.cases.end() - end;
    if (without > 0)
      not_run["no images: install dataset-fashion-mnist or give --data-dir"] = without;
    options.cases.erase(end, options.cases.end());
  }
  make_directory(command.report);
  clear_report_folder(command.report);
  if (!command.quiet)
    std::cerr << options.cases.size() + cases.contract.size() << " cases, seed " << command.seed
              << "\n";
  const auto environment = environment_here();
  auto run = run_matrix(options);
  add_contract(options, std::move(cases.contract), run);
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
  for (const auto& spec : cases.matrix) std::cout << spec.id() << "\n";
  for (const auto& spec : cases.contract) std::cout << spec.id() << "\n";
  return cases.size() == 0 ? kUsage : kHeld;
}

}  // namespace equigrad::conformance::cli
