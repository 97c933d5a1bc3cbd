#include "conformance/cli/cli.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "conformance/cases/filter.hpp"
#include "conformance/cli/completed_words.hpp"
#include "conformance/cli/explain.hpp"
#include "conformance/cli/knobs.hpp"
#include "conformance/cli/option_checks.hpp"
#include "conformance/cli/records.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/shard.hpp"
#include "conformance/ranks/interrupt.hpp"
#include "engine/comm/launch.hpp"
#include "engine/config/config.hpp"
#include "equigrad_build_info.hpp"

namespace equigrad::conformance::cli {
namespace {

std::vector<std::string> precision_words() {
  std::vector<std::string> words;
  for (const auto precision : precisions()) words.push_back(word(precision));
  return words;
}

void add_selection(CLI::App& app, RunCommand& command) {
  app.add_option("FILTER", command.selection.filters,
                 "Part of a case's id, or a glob; 'zero3 and (bf16 or fp16) and not world4'; "
                 "several FILTERs mean one of them")
      ->check(filter_problem);
  auto* full =
      app.add_flag("--full", command.full, "Every combination instead of the default matrix");
  app.add_flag("--covering", command.covering,
               "The covering selection alone, with which every run begins: every pair of values of "
               "two dimensions, in under a minute")
      ->excludes(full);
  app.add_option("--stages", command.selection.stages, "ZeRO stages, such as 2,3 (default: all)")
      ->delimiter(',')
      ->check(CLI::Range(0, 3));
  app.add_option("--dtypes", command.selection.dtypes,
                 "Precisions, such as fp16,amp-o1 (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(precision_words()));
  app.add_option("--world", command.selection.worlds,
                 "Numbers of ranks, such as 2,4 (default: all)")
      ->delimiter(',')
      ->check(CLI::Range(1, 4));
  app.add_option("--shard", command.shard,
                 "The I-th of N parts of these cases, such as 2/5; equigrad report merge puts the "
                 "records together")
      ->check(shard_problem);
}

template <class Command>
void add_surroundings(CLI::App& app, Command& command) {
  app.add_option("--data-dir", command.data_dir, "Folder with plays.txt and Fashion-MNIST");
  app.add_option("--timeout-scale", command.timeout_scale, "Multiplies every time-out")
      ->check(above_zero());
}

void add_run(CLI::App& app, RunCommand& command) {
  add_selection(app, command);
  app.add_option(
      "--model", command.model,
      "A shared library with EQUIGRAD_MODEL, whose model is run in place of the matrix's "
      "and the contract; docs/check.md");
  app.add_option("--seed", command.seed, "Of weights and data")->check(at_least(0));
  app.add_option("--json", command.json, "Also write the record here; - is stdout");
  app.add_option("--junit", command.junit, "Also write JUnit XML here; - is stdout");
  app.add_option("--report", command.report, "Folder for index.html, run.json, junit.xml");
  app.add_option("--keep-tensors", command.keep_tensors,
                 "Of cases that fail, up to 256 MiB a run; or none")
      ->check(CLI::IsMember({"fail", "none"}));
  add_surroundings(app, command);
  app.add_option("--slots", command.slots, "Cases at the same time (0: cores + 1 if they fit)")
      ->check(CLI::Range(0, 64));
  add_device(app, command.device);
  app.add_flag(
         "--one-process", command.one_process,
         "Every FILTER is the id of a case; they run one after the other in this order, in the "
         "same rank processes. Repeats a failure that needs the cases before it")
      ->excludes("--full")
      ->excludes("--covering")
      ->excludes("--model")
      ->excludes("--slots");
  app.add_option("--fault", command.fault, fault_help())->check(fault_problem);
  app.add_option(
         "--knobs", command.knobs,
         "A JSON object of keys that must change nothing, merged into the configuration of "
         "every case of the matrix, such as '{\"zero_optimization\": {\"reduce_bucket_size\": 7}}'")
      ->check(knobs_problem);
  app.add_option("--generate", command.generate,
                 "Cases drawn at random, after the others: a number (2000), or a time (90s, 10m, "
                 "2h); 0: none. By default 25s behind a whole run, none behind a part of one; "
                 "the filters Generated and Generated.meshes run them alone")
      ->check(generate_problem);
  app.add_option("--generate-seed", command.generate_seed, "Of those cases; by default a fresh one")
      ->check(between(0, kMostSeed));
  app.add_flag("--no-shrink{false}", command.shrinks,
               "Generated cases that fail are not made smaller");
  app.add_option("--case", command.case_file,
                 "A generated case from a file that a run has written: case.json, smaller.json")
      ->check(CLI::ExistingFile);
  add_failed(app, command);
  app.add_flag("--fail-fast", command.fail_fast, "After a case that fails no other is begun")
      ->excludes("--model");
  app.add_flag("--list", command.list, "Print the ids only");
  add_baseline(app, command)->excludes("--list");
  app.add_flag("-q,--quiet", command.quiet, "No progress");
  app.add_flag("-v,--verbose", command.verbose, "One line a case on stderr");
  app.add_option("--color", command.color, "auto, always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}));
}

void add_repro(CLI::App& app, ReproCommand& command) {
  app.add_option(
         "CASE", command.id,
         "The id of a case of the matrix, or words that one case alone has; of an earlier repro")
      ->required();
  app.add_option("--steps", command.steps, "Optimizer steps")->check(CLI::Range(1, 3));
  app.add_option("--seed", command.seed, "Of weights and data")->check(at_least(0));
  app.add_option("--fault", command.fault, "Plant this fault: equigrad list --faults")
      ->check(fault_problem);
  app.add_flag("--as-is", command.as_is, "Repeat the case, and do not make it smaller");
  app.add_option("-o,--output", command.folder,
                 "Folder for the tensors, the configuration, a program and a script");
  add_surroundings(app, command);
  app.add_flag("-q,--quiet", command.quiet, "No progress");
}

template <class Command>
void add_text_model(CLI::App& app, Command& command) {
  app.add_option("--layers", command.layers, "Of the text model")->check(at_least(1));
  app.add_option("--dim", command.dim, "Of the text model")->check(at_least(1));
  app.add_option("--heads", command.heads, "Of the text model")->check(at_least(1));
  app.add_option("--context", command.context, "Bytes the text model sees")->check(at_least(1));
}

void add_train(CLI::App& app, TrainCommand& command) {
  app.add_option("--data", command.data, "text, images, or captions of images (two engines)")
      ->check(CLI::IsMember({"text", "images", "captions"}));
  app.add_flag("--two-groups", command.two_groups,
               "Captions: encoder and language model on ranks of their own");
  app.add_option("--steps", command.steps, "Optimizer steps")->check(at_least(1));
  auto* stage = app.add_option("--stage", command.stage, "ZeRO stage");
  stage->check(CLI::Range(0, 3));
  app.add_option("--world", command.world, "Ranks")->check(CLI::Range(1, 64));
  auto* dtype = app.add_option("--dtype", command.dtype, "fp32 or bf16");
  dtype->check(CLI::IsMember({"fp32", "bf16"}));
  auto* accumulate = app.add_option("--accumulate", command.accumulate, "Micro-batches a step");
  accumulate->check(at_least(1));
  auto* micro_batch =
      app.add_option("--micro-batch", command.micro_batch, "Sequences a micro-batch");
  micro_batch->check(at_least(1));
  auto* lr = app.add_option("--lr", command.lr, "The learning rate of AdamW");
  lr->check(above_zero());
  app.add_option("--config", command.config, "A DeepSpeed JSON file, which says these five")
      ->check(CLI::ExistingFile)
      ->excludes(lr)
      ->excludes(stage)
      ->excludes(dtype)
      ->excludes(accumulate)
      ->excludes(micro_batch);
  add_text_model(app, command);
  app.add_option("--seed", command.seed, "Of weights and data")->check(at_least(0));
  app.add_option("--json", command.json, "Also write the record here; - is stdout");
  add_device(app, command.device);
  add_surroundings(app, command);
}

void add_compare(CLI::App& app, CompareCommand& command) {
  app.add_option("--config", command.configs, "A DeepSpeed JSON file; twice, for A and for B")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--data", command.data, "text or images")
      ->check(CLI::IsMember({"text", "images"}));
  app.add_option("--steps", command.steps, "Optimizer steps of a run")->check(at_least(1));
  app.add_option("--seeds", command.seeds, "Pairs of runs, with seeds from --seed on")
      ->check(CLI::Range(2, 1000));
  app.add_option("--world", command.world, "Ranks")->check(CLI::Range(1, 64));
  app.add_option("--margin", command.margin,
                 "Final losses that differ by less are equivalent, in nats")
      ->check(above_zero());
  app.add_option("--final-steps", command.final_steps,
                 "Steps at the end whose mean is the final loss")
      ->check(at_least(1));
  add_text_model(app, command);
  app.add_option("--seed", command.seed, "The first; of weights and data")->check(at_least(0));
  app.add_option("--report", command.report, "Folder for compare.html, compare.json, compare.md");
  add_device(app, command.device);
  add_surroundings(app, command);
  app.add_flag("-q,--quiet", command.quiet, "No progress");
}

void add_config_check(CLI::App& app, ConfigCommand& command) {
  app.add_option("FILE", command.file)->required()->check(CLI::ExistingFile);
  app.add_option("--world", command.world,
                 "Ranks (default: as many as the file's three batch sizes say, else 1)")
      ->check(at_least(1))
      ->default_str("");
  auto* parameters =
      app.add_option("--parameters", command.parameters, "Elements of the model, for its bytes")
          ->transform(counted(1'000'000'000'000'000));
  app.add_option("--numels", command.numels,
                 "Elements of every parameter in the order of registration, such as 100,20")
      ->delimiter(',')
      ->excludes(parameters);
  app.add_option("--device", command.device,
                 "cpu or cuda: where the model is; they differ for offloaded state (default: cuda "
                 "with --fits, else cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--memory,--fits", command.memory_bytes,
                 "Whether what a rank holds on its device, a GPU unless --device says cpu, fits "
                 "into so much, such as 80GB or 24GiB; exit code 1 if not")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(at_least(1));
  app.add_flag("--all", command.all, "Every key, those that have their defaults, too");
  app.add_option("--json", command.json, "Also write the record here; - is stdout");
}

void add_export(CLI::App& app, CheckpointCommand& command) {
  app.add_option("DIR", command.folder, "A checkpoint")->required()->check(CLI::ExistingDirectory);
  app.add_option("OUT", command.out, "Folder for model.safetensors")->required();
  auto* fp32 = app.add_flag("--fp32", "The masters as they are (this is the default)");
  auto* sixteen = app.add_option("--16bit", command.sixteen_bit,
                                 "bf16 or fp16: the masters, each number rounded once");
  sixteen->check(CLI::IsMember({"bf16", "fp16"}))->excludes(fp32);
  app.add_flag("--as-computed", command.as_computed,
               "Parameters in the type that the model computes in, all else in its own")
      ->excludes(fp32)
      ->excludes(sixteen);
  auto* size = app.add_option(
      "--file-size", command.file_bytes,
      "Bytes of a file at most, such as 500MB or 5GiB; a file has at least one tensor");
  size->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  app.add_flag_callback(
         "--consolidate", [&command] { command.file_bytes = std::numeric_limits<uint64_t>::max(); },
         "One model.safetensors, however large")
      ->excludes(size);
  app.add_flag("--exclude-frozen", command.exclude_frozen, "Without parameters that are frozen");
}

// An interrupt wins over whatever it made fail.
int guarded(const std::function<int()>& command) {
  int code = kInfrastructure;
  std::string complaint;
  try {
    code = command();
  } catch (const ConfigError& error) {
    complaint = error.what();
    code = kUsage;
  } catch (const std::exception& error) {
    complaint = error.what();
  }
  const int signal = ranks::interrupted();
  if (signal != 0)
    complaint = "stopped by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
  if (!complaint.empty()) std::cerr << "equigrad: " << valid_utf8(complaint) << "\n";
  return signal != 0 ? 128 + signal : code;
}

// Of the commands that read records, and of the one about the words themselves.
struct RecordCommands {
  MergeCommand merge;
  DiffCommand diff;
  BaselineCommand baseline;
  ExplainCommand explain;
  std::string shell;  // for which words are completed
};

// All commands' options.
struct Commands {
  RunCommand run, list;
  ReproCommand repro;
  TrainCommand train;
  CompareCommand compare;
  FaultsCommand faults;
  CrashCommand crash;
  ConfigCommand config;
  CheckpointCommand checkpoint;
  RecordCommands records;
  std::string data_dir;
  const CLI::App *judge = nullptr, *bench = nullptr;  // their words are not looked at
  std::function<int()> chosen;                        // by the subcommand that was parsed
};

// A command that does what `act` says, if it is the one that was typed.
CLI::App& add_command(CLI::App& app, Commands& all, const std::string& name,
                      const std::string& words, std::function<int()> act) {
  auto* command = app.add_subcommand(name, words);
  command->callback([&all, act = std::move(act)] { all.chosen = act; });
  return *command;
}

void add_config(CLI::App& app, Commands& all) {
  auto& config = *app.add_subcommand("config", "About configurations");
  config.require_subcommand(1);
  add_config_check(add_command(config, all, "check",
                               "Print what a DeepSpeed JSON file means, and the bytes a rank holds",
                               [&all] { return config_check_command(all.config); }),
                   all.config);
  add_command(config, all, "keys", "Print every key and what it does here",
              [] { return config_keys_command(); });
  add_command(config, all, "schema", "Print a JSON Schema of the file",
              [] { return config_schema_command(); });
}

void add_checkpoint(CLI::App& app, Commands& all) {
  auto& checkpoint = *app.add_subcommand(
      "checkpoint",
      "About checkpoints: a folder, whose file `latest` names the tag, or FOLDER/TAG");
  checkpoint.require_subcommand(1);
  const auto add = [&](const char* name, const char* words,
                       int (*act)(const CheckpointCommand&)) -> CLI::App& {
    return add_command(checkpoint, all, name, words, [&all, act] { return act(all.checkpoint); });
  };
  auto& command = all.checkpoint;
  auto& inspect =
      add("inspect", "Print what a checkpoint is, and its tensors", checkpoint_inspect_command);
  auto& verify = add("verify", "Read all of it, and name what is not as it was saved",
                     checkpoint_verify_command);
  auto& diff =
      add("diff", "Print what differs between two, by tensor, in ulps", checkpoint_diff_command);
  for (auto* app_of : {&inspect, &verify})
    app_of->add_option("DIR", command.folder, "A checkpoint")
        ->required()
        ->check(CLI::ExistingDirectory);
  inspect.add_option("--json", command.json, "Also write the record here; - is stdout");
  diff.add_option("A", command.folder, "A checkpoint")->required()->check(CLI::ExistingDirectory);
  diff.add_option("B", command.other, "Another")->required()->check(CLI::ExistingDirectory);
  add_export(add("export", "Write the weights as one model, as Hugging Face loads it",
                 checkpoint_export_command),
             command);
}

// What stands behind their names is not looked at, --help neither.
void add_other_programs(CLI::App& app, Commands& all) {
  auto& judge = add_command(app, all, "judge",
                            "Judge other engines: DDP, FSDP2, DeepSpeed, Accelerate, yours",
                            [&all] { return judge_command(all.judge->remaining()); });
  auto& bench =
      add_command(app, all, "bench",
                  "Measure speed and memory: race, memory, counts, gate, leaks, noise, scale",
                  [&all] { return bench_command(all.bench->remaining()); });
  for (auto* other : {&judge, &bench}) {
    other->prefix_command();
    other->set_help_flag();
  }
  all.judge = &judge;
  all.bench = &bench;
}

// Of what earlier runs wrote.
void add_records(CLI::App& app, Commands& all) {
  auto& records = all.records;
  auto& report = *app.add_subcommand("report", "About the records of runs");
  report.require_subcommand(1);
  add_merge(
      add_command(report, all, "merge",
                  "Put records of shards, or of any runs, together: one record, page, verdict",
                  [&records] { return merge_command(records.merge); }),
      records.merge);
  add_diff(add_command(app, all, "diff",
                       "Compare the records of two runs: commits, torch versions, machines; 1 if "
                       "a verdict is worse",
                       [&records] { return diff_command(records.diff); }),
           records.diff);
  auto& baseline = *app.add_subcommand("baseline", "What is known to be wrong, for run --baseline");
  baseline.require_subcommand(1);
  add_baseline(add_command(baseline, all, "show", "Print the cases, and why they were accepted",
                           [&records] { return baseline_show_command(records.baseline); }),
               add_command(baseline, all, "update",
                           "Take in what went wrong in a record, and out what holds again",
                           [&records] { return baseline_update_command(records.baseline); }),
               records.baseline);
  add_explain(add_command(app, all, "explain", "Print what a case is, in plain words",
                          [&records] { return explain_command(records.explain); }),
              records.explain);
  add_command(app, all, "completion", "Print a script that completes these words in a shell",
              [&app, &records] {
                std::cout << completion_of_all(app, records.shell);
                return kHeld;
              })
      .add_option("SHELL", records.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

void add_commands(CLI::App& app, Commands& all) {
  add_run(add_command(app, all, "run", "Run the conformance matrix and the contract",
                      [&all] {
                        if (all.run.failed) return run_failed_command(all.run);
                        if (!all.run.model.empty()) return run_model_command(all.run);
                        return all.run.list ? list_command(all.run) : run_command(all.run);
                      }),
          all.run);
  auto& list = add_command(app, all, "list", "Print the ids of cases",
                           [&all] { return list_command(all.list); });
  add_selection(list, all.list);
  list.add_flag("--faults", all.list.list_faults, "What run --fault takes, instead of ids");
  list.add_flag("--mistakes", all.list.list_mistakes,
                "Known misbehaviours and traps, which are filters too, instead of ids");
  add_repro(
      add_command(app, all, "repro", "Repeat a case that fails, and shrink it to the smallest one",
                  [&all] { return repro_command(all.repro); }),
      all.repro);
  add_train(add_command(app, all, "train", "Train with the engine and its twin side by side",
                        [&all] { return train_command(all.train); }),
            all.train);
  add_compare(
      add_command(app, all, "compare", "Train two configurations from the same seeds, and compare",
                  [&all] { return compare_command(all.compare); }),
      all.compare);
  add_faults(add_command(app, all, "faults",
                         "Plant every fault of the catalogue, and print which check catches which",
                         [&all] { return faults_command(all.faults); }),
             all.faults);
  add_crash(add_command(app, all, "crash",
                        "Cut saves of checkpoints short in every way, and see what is left",
                        [&all] { return crash_command(all.crash); }),
            all.crash);
  add_other_programs(app, all);
  add_config(app, all);
  add_checkpoint(app, all);
  add_records(app, all);
  add_command(app, all, "doctor", "Look at this machine", [&all] {
    return doctor_command(all.data_dir);
  }).add_option("--data-dir", all.data_dir, "Folder with plays.txt and Fashion-MNIST");
}

}  // namespace

int run_cli(int argc, const char* const* argv, const LoadModel& load_model) {
  CLI::App app("Proves that a ZeRO engine's gradients are those of one device, bit for bit.");
  app.name("equigrad");
  app.set_version_flag("--version", version_text());
  app.option_defaults()->always_capture_default();  // help shows them
  app.footer(
      "Exit codes: 0 held, 1 something failed or shows nothing, 2 wrong words or a wrong file, 3 a "
      "rank died or hung, 4 nothing was compared, 130 and 143 interrupted.");
  app.require_subcommand(1);
  Commands all;
  add_commands(app, all);
  try {
    // Help that is asked of a command which there is not would be everything's.
    app.parse(names_a_command(app, argc, argv) ? argc : 2, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream complaint;  // quotes the words that were typed
    const int code = app.exit(error, std::cout, complaint);
    if (code != 0) complaint << hint(app, "equigrad", error.what(), argc, argv);
    std::cerr << valid_utf8(complaint.str());
    return code == 0 ? kHeld : annotated(kUsage);
  }
  all.run.program = all.repro.program = argv[0];
  all.run.load_model = load_model;
  for (int i = 0; i < argc; ++i) all.run.line += (i == 0 ? "" : " ") + shell_word(argv[i]);
  all.compare.line = all.faults.line = all.crash.line = all.run.line;
  all.faults.program = all.crash.program = all.run.program;
  all.records.merge.out.line = all.run.line;
  all.records.explain.program = all.records.merge.out.program = all.run.program;
  all.run.seed_is_stated = app.get_subcommand("run")->count("--seed") > 0;
  all.compare.margin_is_stated = app.get_subcommand("compare")->count("--margin") > 0;
  for (const char* name : {"run", "repro", "train", "compare", "faults", "crash"}) {
    if (!app.got_subcommand(name)) continue;
    try {
      comm::expect_one_process(std::string("equigrad ") + name, std::getenv);
    } catch (const Error& error) {
      std::cerr << "equigrad: " << error.what() << "\n";
      return annotated(kUsage);
    }
  }
  // What reads or writes a checkpoint can be ended at any time: it leaves no half of a file behind.
  if (!app.got_subcommand("checkpoint")) ranks::watch_interrupts();
  return annotated(guarded(all.chosen));
}

std::string version_text() {
  using namespace build_info;  // NOLINT: a list of its functions
  return std::string("equigrad ") + version() + "\ncommit   " + commit() + "\ntorch    " +
         torch_version() + " (c10d with Gloo and NCCL)\ncompiler " + compiler() + ", " +
         build_type();
}

}  // namespace equigrad::conformance::cli
