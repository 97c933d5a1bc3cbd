#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "conformance/campaigns/environment.hpp"
#include "conformance/campaigns/fault_panel.hpp"
#include "conformance/campaigns/fault_run.hpp"
#include "conformance/cases/filter.hpp"
#include "conformance/cli/cli.hpp"
#include "conformance/cli/inputs.hpp"
#include "conformance/cli/option_checks.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/terminal_text.hpp"
#include "conformance/contract/contract_case.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/faults/planted_faults.hpp"
#include "conformance/generated/program.hpp"
#include "engine/config/suggest.hpp"
#include "reports/folder_index.hpp"

namespace equigrad::conformance::cli {
namespace {

constexpr int64_t kCleanOfTheTier = 5'000;
constexpr double kMinutesOfTheTier = 10;

// By parts of names or globs; none if a filter has none, and then it says what is near.
std::vector<std::string> selected_faults(const std::vector<std::string>& filters) {
  const auto names = faults::fault_names();
  std::vector<std::string> parts;  // each of which has to select something
  for (const auto& filter : filters) {
    const auto words = Filter(filter).words();
    parts.insert(parts.end(), words.begin(), words.end());
    parts.push_back(filter);
  }
  for (const auto& part : parts) {
    const Filter filter(part);
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return filter.matches({name}); }))
      continue;
    say_what_is_near("faults", part, names, "equigrad list --faults has all names.");
    return {};
  }
  std::vector<std::string> selected;
  for (const auto& name : names)
    if (selects({filters, {}, {}, {}}, 0, "", 0, name)) selected.push_back(name);
  return selected;
}

FaultOptions options_of(const FaultsCommand& command) {
  FaultOptions options;
  options.full = command.full;
  options.thin = command.thin;
  options.minutes = command.minutes.value_or(command.full || command.thin ? 0 : kMinutesOfTheTier);
  options.covering_only = command.covering;
  const bool is_whole = command.filters.empty() && !command.covering;
  options.clean = command.clean.value_or(is_whole ? kCleanOfTheTier : 0);
  options.seed = command.seed;
  options.data = case_data(command.data_dir);
  options.serve = serve_with_generated;
  options.replay_prefix = shell_word(command.program) + " run";
  if (!command.data_dir.empty())
    options.replay_suffix = " --data-dir " + shell_word(absolute(command.data_dir));
  options.timeout_scale = command.timeout_scale;
  options.quiet = command.quiet;
  options.slots = command.slots;
  options.device = command.device;
  for (const auto& spec : fault_panel()) {
    const auto reason = options.data.images.empty() && needs_images(spec) ? kNoImages
                        : command.device != nullptr                       ? why_not_on_cuda(spec)
                                                                          : "";
    if (*reason == 0)
      options.panel.push_back(spec);
    else
      ++options.not_run[reason];
  }
  return options;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> faults_by_name() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& fault : faults::catalogue()) names.emplace_back(fault.name, fault.what);
  names.emplace_back("Contract", "every case of the contract plays its wrong way");
  for (const auto& one : contract::cases()) names.emplace_back(one.family(), one.fault);
  return names;
}

std::string fault_problem(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [fault, words] : faults_by_name()) {
    if (fault == name) return {};
    names.push_back(fault);
  }
  return "expected a fault that can be planted, got \"" + name + "\"." + did_you_mean(name, names) +
         " equigrad list --faults has all " + std::to_string(names.size()) + " in words.";
}

std::string fault_help() {
  std::string help = "Plant this fault into every case that can have it, to see it fail:";
  for (const auto& fault : faults::planted_faults()) help += " " + fault.name + ",";
  return help +
         " Contract (the wrong way of every case of the contract), or that of one, such as "
         "Contract.2.two_losses_on_one_forward; equigrad list --faults has all";
}

void add_device(CLI::App& app, ranks::TakeDevice& device) {
  app.add_option_function<std::string>(
         "--device",
         [&device](const std::string& word) {
           device = word == "cuda" ? ranks::take_cuda_device : nullptr;
         },
         "cpu or cuda: where models, engines and twins' passes are. Ranks that share a device meet "
         "over Gloo, by way of the CPU")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->default_str("cpu");
}

void add_faults(CLI::App& app, FaultsCommand& command) {
  app.add_option("FILTER", command.filters,
                 "Part of a fault's name, or a glob, also with and, or, not; several FILTERs mean "
                 "one of them")
      ->check(filter_problem);
  app.add_flag("--full", command.full,
               "Every case of the panel for every fault, not only up to the first that catches it");
  app.add_flag("--covering", command.covering,
               "What `equigrad run --covering` alone catches: no other case, none that is "
               "generated");
  app.add_flag("--thin", command.thin,
               "Go on behind the first case that catches a fault until three have, and name the "
               "faults that fewer catch");
  app.add_option("--minutes", command.minutes,
                 "Stop after so long, 0: never (default: 10, with --full or --thin 0)")
      ->check(not_negative());
  app.add_option("--clean", command.clean,
                 "Generated cases without a fault (default: 5000, with a FILTER or --covering 0)")
      ->check(at_least(0));
  app.add_option("--seed", command.seed, "Of weights, data and configurations")->check(at_least(0));
  app.add_option("--json", command.json, "Also write the record here; - is stdout");
  app.add_option("--report", command.report, "Folder for faults.html, faults.json, faults.md");
  app.add_option("--data-dir", command.data_dir, "Folder with plays.txt and Fashion-MNIST");
  app.add_option("--timeout-scale", command.timeout_scale, "Multiplies every time-out")
      ->check(above_zero());
  app.add_option("--slots", command.slots, "Cases at the same time (0: cores + 1 if they fit)")
      ->check(CLI::Range(0, 64));
  add_device(app, command.device);
  app.add_flag("-q,--quiet", command.quiet, "No progress");
}

int faults_command(const FaultsCommand& command) {
  auto options = options_of(command);
  options.faults = selected_faults(command.filters);
  if (options.faults.empty()) return kUsage;
  const auto at = [&](const char* name) { return command.report + "/faults." + name; };
  make_directory(command.report);
  for (const char* name : {"html", "json", "md"}) unlink(at(name).c_str());
  for (const auto& [reason, cases] : options.not_run)
    if (!command.quiet)
      std::cerr << cases << " cases of the panel are left out: " << reason << "\n";
  check_writable(command.json);
  const auto environment = environment_here(command.device != nullptr);
  auto matrix = run_faults(options);
  matrix.environment = environment;
  matrix.command = command.line;
  std::ostream& out = command.json == "-" ? std::cerr : std::cout;
  const int descriptor = command.json == "-" ? STDERR_FILENO : STDOUT_FILENO;
  out << reports::to_terminal(matrix, limit_of_columns(descriptor)) << std::flush;
  const bool is_whole = was_written([&] {
    const auto json = reports::to_json(matrix);
    write_file(at("html"), reports::to_html(matrix));
    write_file(at("md"), reports::to_markdown(matrix));
    write_file(at("json"), json);
    if (!command.json.empty()) write_file(command.json, json);
    reports::link_pages(command.report);
  });
  if (is_whole) out << "# report: " << absolute(at("html")) << "\n";
  const int code = reports::exit_code(matrix);
  return code == kHeld && !is_whole ? kInfrastructure : code;
}

}  // namespace equigrad::conformance::cli
