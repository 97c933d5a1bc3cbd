#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>

#include "conformance/campaigns/environment.hpp"
#include "conformance/campaigns/self_check.hpp"
#include "conformance/cli/failure_folder.hpp"
#include "conformance/cli/generated_options.hpp"
#include "conformance/cli/inputs.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/run_reports.hpp"
#include "conformance/generated/program.hpp"
#include "conformance/generator/draw.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::cli {
namespace {

constexpr const char* kUsual = "25s";
constexpr const char* kMeshes = "Generated.meshes";

struct Amount {
  int64_t count = 0;
  double seconds = 0;
};

// Nothing: it is no amount.
std::optional<Amount> amount_of(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  if (end == text.c_str() || !(number >= 0) || number > 1e9) return std::nullopt;
  if (unit.empty() && number == std::floor(number)) return Amount{static_cast<int64_t>(number), 0};
  for (const auto& [name, seconds] : {std::pair{"s", 1.0}, {"m", 60.0}, {"h", 3600.0}})
    if (unit == name) return Amount{0, number * seconds};
  return std::nullopt;
}

uint64_t fresh_seed() { return std::random_device()(); }

std::vector<GeneratedCase> cases_of(const RunCommand& command) {
  std::vector<GeneratedCase> cases;
  for (const auto& id : command.selection.filters) cases.push_back(case_of_id(id));
  if (command.case_file.empty()) return cases;
  std::ifstream file(command.case_file);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    throw Error("generated case", "expected JSON in " + command.case_file +
                                      ", got none. Take a file that a run has written.");
  cases.push_back(generated_case(json));
  cases.back().id = kFileCase;
  return cases;
}

// After the planted faults, those cases; without any, as many as the command draws.
reports::Run checked_run(const RunCommand& command, const std::vector<GeneratedCase>& cases) {
  auto asked = command;
  if (!cases.empty()) asked.generate = "1";
  const auto options = generated_options(asked, true);
  const auto data = case_data(command.data_dir);
  ProcessSlots slots({.slots = cases.empty() ? command.slots : 1,
                      .widest = kGeneratedRanks,
                      .timeout_scale = command.timeout_scale,
                      .serve = serve_with_generated});
  reports::Run run;
  run.environment = environment_here();
  run.command = command.line;
  run.seed = command.seed;
  const auto start = std::chrono::steady_clock::now();
  self_check(
      slots,
      [&](const char* what, const std::string& id) -> nlohmann::json {
        return {{"do", what}, {"id", id}, {"seed", command.seed}, {"data", to_json(data)}};
      },
      run);
  if (!options) return run;
  if (cases.empty()) {
    run_generated(*options, slots, run);
  } else {
    run_generated(*options, cases, slots, run);
    run.generated.reset();  // none was drawn, and all are listed
  }
  run.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return run;
}

}  // namespace

std::string generate_problem(const std::string& amount) {
  if (amount_of(amount)) return {};
  return "expected a number of cases or a time, such as 2000, 90s, 10m or 2h, got \"" + amount +
         "\"";
}

std::optional<GeneratedOptions> generated_options(const RunCommand& command, bool is_whole_run) {
  const bool is_asked = !command.generate.empty();
  if (!is_asked && (!is_whole_run || command.covering || command.full)) return std::nullopt;
  const auto amount = amount_of(is_asked ? command.generate : kUsual);
  if (!amount || (amount->count == 0 && amount->seconds == 0)) return std::nullopt;
  const auto program = shell_word(command.program) + " run";
  const auto& filters = command.selection.filters;
  const auto fault = command.fault.starts_with("Contract") ? "" : command.fault;
  const auto replay_suffix = (fault.empty() ? "" : " --fault " + fault) + " --report " +
                             shell_word(replay_folder(command.report));
  return GeneratedOptions{.seed = command.generate_seed ? *command.generate_seed : fresh_seed(),
                          .count = amount->count,
                          .seconds = amount->seconds,
                          .only_meshes = std::count(filters.begin(), filters.end(), kMeshes) > 0,
                          .shrink_s = command.shrinks ? 30.0 : 0.0,
                          .most_failures = command.fail_fast ? std::size_t{1} : std::size_t{20},
                          .keep = command.report + "/fail",
                          .replay_prefix = program,
                          .replay_suffix = replay_suffix,
                          .replay_keep = shell_word(command.report + "/fail"),
                          .replay_file = shell_word(absolute(command.case_file)),
                          .fault = fault,
                          .quiet = command.quiet};
}

// All of them, or those of meshes: none of the others.
bool is_of_meshes(const std::string& filter) { return filter == kMeshes; }
bool is_family(const std::string& filter) { return filter == "Generated" || is_of_meshes(filter); }

bool names_generated_cases(const RunCommand& command) {
  const auto& filters = command.selection.filters;
  return !command.case_file.empty() ||
         std::any_of(filters.begin(), filters.end(), [](const std::string& filter) {
           return is_generated_id(filter) || is_family(filter);
         });
}

int run_generated_command(const RunCommand& command) {
  const auto& filters = command.selection.filters;
  const bool draws = filters.size() == 1 && is_family(filters[0]) && command.case_file.empty();
  const auto is_id = [](const std::string& filter) {
    return is_generated_id(filter) && !is_family(filter);
  };
  if (!draws && !std::all_of(filters.begin(), filters.end(), is_id)) {
    std::cerr << "equigrad: expected ids of generated cases alone, or \"Generated\" or "
                 "\"Generated.meshes\" alone, got "
                 "other filters beside them. Run the others by a command of their own.\n";
    return kUsage;
  }
  if (!command.shard.empty()) {
    std::cerr
        << "equigrad: expected --shard for cases of the matrix and the contract, got generated "
           "ones. Give every machine a --generate-seed of its own.\n";
    return kUsage;
  }
  if (!has_one_document(command)) return kUsage;
  std::vector<GeneratedCase> cases;
  try {
    if (!draws) cases = cases_of(command);
  } catch (const Error& error) {
    std::cerr << "equigrad: " << error.what() << "\n";
    return kUsage;
  }
  prepare_reports(command);
  return end_run(command, checked_run(command, cases), {});
}

}  // namespace equigrad::conformance::cli
