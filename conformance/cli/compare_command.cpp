#include <unistd.h>

#include <iostream>

#include "conformance/campaigns/compare_runs.hpp"
#include "conformance/campaigns/environment.hpp"
#include "conformance/cli/cli.hpp"
#include "conformance/cli/inputs.hpp"
#include "conformance/cli/report_folder.hpp"
#include "engine/config/config.hpp"
#include "reports/folder_index.hpp"

namespace equigrad::conformance::cli {
namespace {

// configs/fp32_masters.json -> fp32_masters
std::string stem(const std::string& path) {
  const auto name = path.substr(path.rfind('/') + 1);
  const auto dot = name.rfind('.');
  return dot == std::string::npos || dot == 0 ? name : name.substr(0, dot);
}

void check(const CompareCommand& command) {
  std::vector<std::string> problems;
  if (command.configs.size() != 2)
    problems.push_back("expected --config twice, A and B, got it " +
                       std::to_string(command.configs.size()) + " times");
  if (command.steps < 2 * command.final_steps)
    problems.push_back("expected --steps to be at least twice --final-steps, got " +
                       std::to_string(command.steps) + " and " +
                       std::to_string(command.final_steps));
  check_model(command, problems);
  if (!problems.empty()) throw ConfigError("compare", problems);
  const auto a = load_config(command.configs[0], command.world);
  const auto b = load_config(command.configs[1], command.world);
  const auto same = [&](const char* key, int64_t of_a, int64_t of_b) {
    if (of_a != of_b)
      problems.push_back(std::string("expected the same ") + key + " in A and B, got " +
                         std::to_string(of_a) + " and " + std::to_string(of_b) +
                         ": a pair has the same batches");
  };
  same("train_micro_batch_size_per_gpu", a.train_micro_batch_size_per_gpu,
       b.train_micro_batch_size_per_gpu);
  same("gradient_accumulation_steps", a.gradient_accumulation_steps, b.gradient_accumulation_steps);
  check_micro_batch(command.data, a.train_micro_batch_size_per_gpu, problems);
  if (!problems.empty()) throw ConfigError("compare", problems);
}

reports::Comparison planned(const CompareCommand& command, const DataFiles& files) {
  reports::Comparison to;
  to.environment = environment_here(command.device != nullptr);
  to.command = command.line;
  for (std::size_t i = 0; i < 2; ++i)
    to.configurations[i] = {stem(command.configs[i]), read_file(command.configs[i])};
  const auto file = command.data == "text" ? files.text : files.images;
  to.data = command.data + ": " + file.substr(file.rfind('/') + 1);
  to.model = command.data == "text"
                 ? "gpt, " + std::to_string(command.layers) + " layers, dim " +
                       std::to_string(command.dim) + ", " + std::to_string(command.heads) +
                       " heads, context " + std::to_string(command.context)
                 : "conv";
  to.ranks = command.world;
  to.steps = command.steps;
  to.final_steps = command.final_steps;
  to.margin = command.margin;
  to.margin_is_default = !command.margin_is_stated;
  for (int i = 0; i < command.seeds; ++i)
    to.seeds.push_back(command.seed + static_cast<uint64_t>(i));
  return to;
}

}  // namespace

int compare_command(const CompareCommand& command, const ranks::Handler& serve) {
  check(command);
  const auto files = training_data("compare", command.data, command.data_dir);
  const auto at = [&](const char* name) { return command.report + "/compare." + name; };
  make_directory(command.report);
  for (const char* name : {"html", "json", "md"}) unlink(at(name).c_str());
  auto comparison = planned(command, files);
  run_comparison(command, serve, comparison);
  std::cout << reports::to_terminal(comparison) << std::flush;
  const bool is_whole = was_written([&] {
    write_file(at("html"), reports::to_html(comparison));
    write_file(at("json"), reports::to_json(comparison));
    write_file(at("md"), reports::to_markdown(comparison));
    reports::link_pages(command.report);
  });
  if (is_whole) std::cout << "# report: " << absolute(at("html")) << "\n";
  const int code = reports::exit_code(comparison);
  return code == kHeld && !is_whole ? kInfrastructure : code;
}

}  // namespace equigrad::conformance::cli
