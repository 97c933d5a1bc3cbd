#include <algorithm>
#include <iostream>
#include <set>

#include "conformance/campaigns/environment.hpp"
#include "conformance/campaigns/suite.hpp"
#include "conformance/cases/recipe.hpp"
#include "conformance/cli/cli.hpp"
#include "conformance/cli/failure_folder.hpp"
#include "conformance/cli/generated_options.hpp"
#include "conformance/cli/inputs.hpp"
#include "conformance/cli/records.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/run_reports.hpp"
#include "conformance/cli/selected_cases.hpp"
#include "conformance/cli/shard.hpp"
#include "conformance/contract/known_mistakes.hpp"
#include "conformance/generated/program.hpp"
#include "reports/merge.hpp"
#include "reports/parts.hpp"
#include "reports/text.hpp"

namespace equigrad::conformance::cli {
namespace {

constexpr const char* kReplayReport = " --report ";  // the last part of a replay

// Those of the ids that are still to be run.
std::vector<std::string> order_of(const RunCommand& command, const RunOptions& options,
                                  const std::vector<contract::Spec>& specs) {
  if (!command.one_process) return {};
  std::set<std::string> left;
  for (const auto& spec : options.cases) left.insert(spec.id());
  for (const auto& spec : specs) left.insert(spec.id());
  auto order = command.selection.filters;
  std::erase_if(order, [&](const std::string& id) { return !left.contains(id); });
  return order;
}

// What is in the catalogue and is not run, by reason.
std::map<std::string, int64_t> left_out(const RunCommand& command, const SelectedCases& cases) {
  std::map<std::string, int64_t> reasons;
  if (cases.in_other_shards > 0) reasons[reports::kInOtherShards] = cases.in_other_shards;
  const auto all = full_matrix().size() + contract::full_specs().size();
  const auto rest = static_cast<int64_t>(all - cases.listed()) - cases.in_other_shards;
  if (rest == 0) return reasons;
  reasons[is_narrowed(command) ? reports::kNotSelected
          : command.covering   ? reports::kNotInCovering
                               : reports::kOnlyWithFull] = rest;
  return reasons;
}

RunOptions options_of(const RunCommand& command, std::vector<CaseSpec> cases) {
  RunOptions options;
  options.cases = std::move(cases);
  options.seed = command.seed;
  options.data = case_data(command.data_dir);
  options.keep = command.report + "/fail";
  options.keep_tensors = command.keep_tensors != "none";
  options.replay_prefix = shell_word(command.program) + " run";
  if (!command.data_dir.empty())
    options.replay_suffix += " --data-dir " + shell_word(absolute(command.data_dir));
  if (!command.fault.empty()) options.replay_suffix += " --fault " + command.fault;
  if (!command.knobs.empty()) {
    options.knobs = nlohmann::json::parse(command.knobs);
    options.replay_suffix += " --knobs " + shell_word(options.knobs.dump());
  }
  if (command.device != nullptr) options.replay_suffix += " --device cuda";
  options.replay_suffix += timeout_words(command);
  // A replay that is pasted must not clear the report that it stands in.
  options.replay_suffix += kReplayReport + shell_word(replay_folder(command.report));
  options.timeout_scale = command.timeout_scale;
  options.quiet = command.quiet;
  options.fail_fast = command.fail_fast;
  options.slots = command.slots;
  options.device = command.device;
  if (!command.fault.starts_with("Contract")) options.fault = command.fault;
  options.serve = serve_with_generated;
  return options;
}

contract::ContractOptions contract_options(const RunOptions& options,
                                           std::vector<contract::Spec> specs,
                                           const std::string& fault) {
  const bool of_contract = fault.starts_with("Contract");
  return {.specs = std::move(specs),
          .seed = options.seed,
          .data = options.data,
          .replay_prefix = options.replay_prefix,
          .replay_suffix = options.replay_suffix,
          .timeout_scale = options.timeout_scale,
          .quiet = options.quiet,
          .fail_fast = options.fail_fast,
          .slots = options.slots,
          .fault = of_contract,
          .plant = of_contract ? "" : fault};
}

// What a case that went wrong leaves in its folder, beside what its ranks kept
// there.
void write_failures(const RunCommand& command, const RunOptions& options, reports::Run& run) {
  std::map<std::string, CaseSpec> specs;
  for (const auto& spec : options.cases) specs[spec.id()] = spec;
  for (auto& record : run.cases) {
    if (!reports::went_wrong(record.verdict)) continue;
    Failure failure{
        record.id, std::nullopt, command.seed, options.data, command.fault, record.message, ""};
    if (specs.contains(record.id)) failure.candidate = {specs[record.id], kSteps};
    // The replay begins with the program, which is to be found from anywhere.
    const auto called = std::min(shell_word(command.program).size(), record.replay.size());
    const auto report = std::max(record.replay.rfind(kReplayReport), called);
    failure.command = shell_word(absolute_program(command.program)) +
                      record.replay.substr(called, report - called) + " --report \"$(mktemp -d)\"";
    for (const auto& name : write_failure(options.keep + "/" + record.id, failure))
      record.files.push_back("fail/" + record.id + "/" + name);
    record.message += (record.message.ends_with('\n') ? "" : "\n") + std::string("    folder  ") +
                      command.report + "/fail/" + record.id + "\n";
  }
}

constexpr const char* kWithoutKnobs = "the keys of --knobs go into cases of the matrix";

// What cannot have the keys is left out.
void keep_those_with_knobs(const std::string& knobs, SelectedCases& cases,
                           std::map<std::string, int64_t>& not_run) {
  const auto others = static_cast<int64_t>(cases.contract.size() + cases.generated.size());
  if (knobs.empty() || others == 0) return;
  cases.contract.clear();
  cases.generated.clear();
  not_run[kWithoutKnobs] = others;
}

// The contract and what is drawn are about the engine on the CPU.
// Gives the reasons.
std::string keep_those_on(ranks::TakeDevice device, SelectedCases& cases,
                          std::map<std::string, int64_t>& not_run) {
  if (device == nullptr) return "";
  std::string reasons;
  const auto leave_out = [&](const std::string& reason, std::size_t count) {
    if (count == 0) return;
    if (!not_run.contains(reason)) reasons += (reasons.empty() ? "" : "; ") + reason;
    not_run[reason] += static_cast<int64_t>(count);
  };
  leave_out("the contract and generated cases are of the CPU",
            cases.contract.size() + cases.generated.size());
  cases.contract.clear();
  cases.generated.clear();
  std::erase_if(cases.matrix, [&](const CaseSpec& spec) {
    const std::string reason = why_not_on_cuda(spec);
    leave_out(reason, reason.empty() ? 0 : 1);
    return !reason.empty();
  });
  return reasons;
}

// A fault is planted into the matrix or, where nothing of it is selected, into
// the contract; what cannot have it is left out.
void keep_those_with(const std::string& fault, SelectedCases& cases,
                     std::map<std::string, int64_t>& not_run) {
  if (fault.empty()) return;
  const bool of_contract = fault.starts_with("Contract");
  const auto before = cases.size();
  if (of_contract) {
    cases.matrix.clear();
    std::erase_if(cases.contract, [&](const contract::Spec& spec) {
      return fault != "Contract" && fault != spec.of->family();
    });
  } else if (!cases.matrix.empty()) {
    cases.contract.clear();
  }
  const auto without = static_cast<int64_t>(before - cases.size());
  if (without > 0) not_run["the fault is planted into the others"] = without;
}

int refuse_knobs() {
  std::cerr << "equigrad: 0 of the selected cases can have --knobs: " << kWithoutKnobs
            << ". Choose some of them.\n";
  return kUsage;
}

// What cannot have the fault or the keys is left out; where nothing is left, that is said.
bool keep_what_can_have_them(const RunCommand& command, SelectedCases& cases,
                             std::map<std::string, int64_t>& not_run) {
  keep_those_with_knobs(command.knobs, cases, not_run);
  if (cases.size() == 0) {
    refuse_knobs();
    return false;
  }
  const auto reasons = keep_those_on(command.device, cases, not_run);
  if (cases.size() == 0) {
    std::cerr << "equigrad: 0 of the selected cases run on CUDA: " << reasons
              << ". Choose others.\n";
    return false;
  }
  keep_those_with(command.fault, cases, not_run);
  if (cases.size() > 0) return true;
  std::cerr << "equigrad: 0 of the selected cases can have the fault \"" << command.fault
            << "\". equigrad list --faults says which can.\n";
  return false;
}

std::vector<std::string> ids_of(const std::vector<GeneratedCase>& cases) {
  std::vector<std::string> ids;
  for (const auto& one : cases) ids.push_back(one.id);
  return ids;
}

bool asks_for_drawn_on_cuda(const RunCommand& command) {
  return command.device != nullptr &&
         (names_generated_cases(command) || (!command.generate.empty() && command.generate != "0"));
}

int refuse_drawn_on_cuda() {
  std::cerr << "equigrad: expected cases of the matrix behind --device cuda, got generated ones, "
               "which are of the CPU. Leave --device or the generated cases out.\n";
  return kUsage;
}

// Of several shards the first one draws.
bool draws_generated(const RunCommand& command) {
  return command.shard.empty() || shard_of(command.shard).index == 1;
}

// The line that repeats what went wrong; it writes where this run wrote.
std::string again(const RunCommand& command, const RunOptions& options) {
  const auto suffix = options.replay_suffix.substr(0, options.replay_suffix.rfind(kReplayReport));
  return options.replay_prefix + suffix + kReplayReport + shell_word(command.report) + " --failed";
}

}  // namespace

int run_command(const RunCommand& command) {
  if (command.only.empty() && asks_for_drawn_on_cuda(command)) return refuse_drawn_on_cuda();
  if (command.only.empty() && names_generated_cases(command))
    return command.knobs.empty() ? run_generated_command(command) : refuse_knobs();
  auto cases = command.one_process ? cases_in_order(command) : selected_cases(command);
  if (cases.size() == 0) return kUsage;
  if (cases.listed() == 0) {
    auto drawn = command;
    drawn.only.clear();
    drawn.selection.filters = ids_of(cases.generated);
    return run_generated_command(drawn);
  }
  if (!has_one_document(command)) return kUsage;
  auto not_run = left_out(command, cases);
  if (!keep_what_can_have_them(command, cases, not_run)) return kUsage;
  auto options = options_of(command, std::move(cases.matrix));
  if (options.data.images.empty()) {
    const auto end = std::remove_if(options.cases.begin(), options.cases.end(), needs_images);
    const auto without = options.cases.end() - end;
    if (without > 0) not_run[kNoImages] = without;
    options.cases.erase(end, options.cases.end());
  }
  prepare_reports(command);
  const bool is_whole_run = !is_narrowed(command) && command.fault.empty() && command.knobs.empty();
  const auto count = options.cases.size() + cases.contract.size() + cases.generated.size();
  if (!command.quiet)
    std::cerr << reports::count_of(count, "case") << ", seed " << command.seed << "\n";
  const auto environment = environment_here(command.device != nullptr);
  std::ostream& out = words_of(command);
  const auto tell = [&out](const reports::Run& part) {
    for (const auto& line : reports::part_lines(part)) out << line << std::endl;
  };
  auto generating = command;
  if (!cases.generated.empty()) generating.generate = "1";
  if (!draws_generated(command)) generating.generate = "0";
  const auto order = order_of(command, options, cases.contract);
  auto run = run_suite(
      {.matrix = options,
       .contract = contract_options(options, std::move(cases.contract), command.fault),
       .generated = command.device != nullptr
                        ? std::nullopt
                        : generated_options(generating, is_whole_run && draws_generated(command)),
       .generated_cases = cases.generated,
       .in_parts = is_whole_run,
       .one_process = order,
       .first_ended = tell,
       .covering_ended = tell});
  run.environment = environment;
  run.command = command.line;
  run.not_run = not_run;
  run.shard = command.shard;
  const bool is_whole = was_written([&] { write_failures(command, options, run); });
  return end_run(command, run, {.again = again(command, options), .is_whole = is_whole});
}

int list_command(const RunCommand& command) {
  if ((command.list_faults || command.list_mistakes) && is_narrowed(command)) {
    std::cerr << "equigrad: expected --faults and --mistakes alone: filters "
                 "choose cases. Pipe the "
                 "list through grep.\n";
    return kUsage;
  }
  if (command.list_faults) {
    for (const auto& [name, words] : faults_by_name()) std::cout << name << ": " << words << "\n";
    if (!command.list_mistakes) return kHeld;
  }
  if (command.list_mistakes) {
    for (const auto& mistake : contract::known_mistakes())
      std::cout << mistake.name << ": " << mistake.words << "\n";
    return kHeld;
  }
  const auto cases = selected_cases(command);
  for (const auto& spec : cases.matrix) std::cout << spec.id() << "\n";
  for (const auto& spec : cases.contract) std::cout << spec.id() << "\n";
  return cases.size() == 0 ? kUsage : kHeld;
}

}  // namespace equigrad::conformance::cli
