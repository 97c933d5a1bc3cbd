#include "conformance/cli/completed_words.hpp"

#include <CLI/CLI.hpp>
#include <vector>

#include "conformance/cli/bench_options.hpp"
#include "conformance/cli/cli.hpp"
#include "conformance/cli/completion.hpp"
#include "conformance/cli/selected_cases.hpp"
#include "conformance/faults/fault.hpp"

namespace equigrad::conformance::cli {
namespace {

using Values = std::vector<std::string>;

// Of another program: its value goes nowhere.
CLI::Option* add_word(CLI::App& app, const std::string& name, const std::string& words,
                      const Values& values = {}) {
  auto* option = app.add_option_function<Values>(
      name, [](const Values&) {}, words);
  if (!values.empty()) option->check(CLI::IsMember(values));
  return option;
}

void add_judge_outputs(CLI::App& app) {
  add_word(app, "--report", "Folder for index.html, board.json, board.md, junit.xml");
  add_word(app, "--json", "The board; - is the standard output");
  add_word(app, "--junit", "JUnit XML; - is the standard output");
  add_word(app, "--baseline", "A board: only what is newly wrong fails");
  add_word(app, "--write-baseline", "The board, for --baseline of later runs");
  app.add_flag("-q,--quiet", "No progress");
}

}  // namespace

void add_judge_words(CLI::App& app) {
  add_word(app, "ENGINE", "An engine, ENGINE==VERSION, or a command",
           {"plain", "ddp", "fsdp1", "fsdp2", "deepspeed", "accelerate", "accelerate-deepspeed",
            "equigrad"});
  add_word(app, "--model", "MODULE:FACTORY, as for equigrad.check");
  add_word(app, "--config", "A DeepSpeed configuration: what it sets is not varied");
  add_word(app, "--stages", "Of ZeRO", {"0", "1", "2", "3"})->delimiter(',');
  add_word(app, "--precisions", "Precisions",
           {"fp32", "bf16", "bf16-accumulate-fp32", "bf16-communicate-fp32", "fp16-static",
            "fp16-dynamic", "autocast-bf16", "autocast-fp16", "fp32-communicate-bf16", "fp64"})
      ->delimiter(',');
  add_word(app, "--styles", "Call styles",
           {"engine_backward", "loss_backward", "scale_backward", "tensor_backward"})
      ->delimiter(',');
  add_word(app, "--accumulation", "Micro-batches per step")->delimiter(',');
  add_word(app, "--world", "Numbers of ranks")->delimiter(',');
  app.add_flag("--quick", "Every pair of values of two axes, and every feature once");
  add_word(app, "--only", "Parts of ids, as zero2/clip; !PATTERN leaves out");
  add_word(app, "--shard", "The I-th of N parts");
  app.add_flag("--list", "Print the ids of the cells only");
  add_word(app, "--python", "Whose torch and engines are judged");
  add_word(app, "--device", "That models and engines are on", {"cpu", "cuda"});
  add_word(app, "--timeout", "For one cell, in seconds");
  add_word(app, "--seed", "Of weights and batches");
  app.add_flag("--fail-fast", "End at the first cell that goes wrong");
  add_judge_outputs(app);
  for (const auto& [name, words] : {std::pair("merge", "One board of several shards"),
                                    {"rerun", "What went wrong in a report, once more"}})
    add_judge_outputs(*app.add_subcommand(name, words));
  add_word(*app.add_subcommand("adapters", "The engines, and whether each is here"), "--python",
           "Whose torch and engines are looked for");
}

std::string completion_of_all(const CLI::App& app, const std::string& shell) {
  CLI::App bench, judge;
  BenchOptions options;
  add_bench(bench, options);
  add_judge_words(judge);
  OtherWords others{.programs = {{" bench", &bench}, {" judge", &judge}}, .values = {}};
  Values faults;
  for (const auto& [name, words] : faults_by_name()) faults.push_back(name);
  others.values[" run --fault"] = others.values[" repro --fault"] = std::move(faults);
  others.values[" run FILTER"] = others.values[" list FILTER"] = filter_words();
  others.values[" faults FILTER"] = faults::fault_names();
  return completion(app, shell, others);
}

}  // namespace equigrad::conformance::cli
