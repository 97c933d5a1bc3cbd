#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "conformance/campaigns/covering_selection.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "conformance/contract/contract_case.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/ranks/private_directory.hpp"
#include "engine/config/config.hpp"
#include "equigrad_build_info.hpp"
#include "reports/json.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

CommandResult say(const std::vector<std::string>& words) { return result_of_words(words); }

class Cli : public InAFolder {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  std::string read(const std::string& name) const { return text_of(folder_ + "/" + name); }
};

const std::string kCase =
    "Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward";

TEST_F(Cli, AWrongWordIsAUsageError) {
  EXPECT_EQ(say({}).code, kUsage);
  EXPECT_EQ(say({"rum"}).code, kUsage);
  EXPECT_EQ(say({"run", "--stages", "7"}).code, kUsage);
  EXPECT_EQ(say({"run", "--dtypes", "fp8"}).code, kUsage);
  EXPECT_EQ(say({"train", "--config", "no-such-file.json"}).code, kUsage);
}

TEST_F(Cli, WhatIsSaidOfBytesThatAreNoUtf8IsUtf8) {
  const auto file = write("bytes.json", "{\"a\": \"\xff\"}");
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"run", "--stages", "\xff"}, {"list", "\xff", "--\xff"}, {"config", "check", file}}) {
    const auto said = say(words);
    EXPECT_EQ(said.code, kUsage);
    EXPECT_THAT(said.err, HasSubstr("\xEF\xBF\xBD"));
    EXPECT_EQ(said.err, valid_utf8(said.err));
  }
}

TEST_F(Cli, WhatStartsRanksIsRefusedUnderALauncher) {
  ASSERT_EQ(setenv("RANK", "0", 1) + setenv("WORLD_SIZE", "2", 1), 0);
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"run", "--report", folder_ + "/report", "no-such-case"},
           {"repro", "no-such-case"},
           {"train", "--steps", "1", "--world", "1"},
           {"compare", "--config", write("a.json", "{"), "--config", write("b.json", "{")},
           {"faults", "--report", folder_ + "/report", "no-such-fault"}}) {
    const auto said = say(words);
    EXPECT_EQ(said.code, kUsage) << words.front();
    EXPECT_THAT(said.err, AllOf(HasSubstr("one process of equigrad " + words.front()),
                                HasSubstr("WORLD_SIZE=2"), HasSubstr("without a launcher")));
  }
  EXPECT_EQ(say({"config", "keys"}).code, kHeld);
  ASSERT_EQ(unsetenv("RANK") + unsetenv("WORLD_SIZE"), 0);
}

TEST_F(Cli, HelpAndVersionAreAnswers) {
  const auto help = say({"run", "--help"});
  EXPECT_EQ(help.code, kHeld);
  for (const char* flag : {"--full", "--covering", "--stages", "--dtypes", "--world", "--seed",
                           "--json", "--junit", "--report", "--list", "--timeout-scale", "--quiet",
                           "--verbose", "--color", "--data-dir", "--fault", "--slots", "--knobs"})
    EXPECT_THAT(help.out, HasSubstr(flag));
  const auto version = say({"--version"});
  EXPECT_EQ(version.code, kHeld);
  EXPECT_THAT(version.out, StartsWith("equigrad "));
  EXPECT_THAT(version.out, HasSubstr("torch"));
}

TEST_F(Cli, ListPrintsIdsOnly) {
  const auto all = say({"list"});
  EXPECT_EQ(all.code, kHeld);
  EXPECT_EQ(static_cast<std::size_t>(std::count(all.out.begin(), all.out.end(), '\n')),
            default_matrix().size() + contract::default_specs().size());
  const auto some =
      say({"run", "Required", "--list", "--stages", "3", "--dtypes", "bf16", "--world", "4"});
  EXPECT_EQ(std::count(some.out.begin(), some.out.end(), '\n'), 17);
  EXPECT_THAT(some.out, StartsWith("Required.grad.zero3.bf16.w4."));
}

TEST_F(Cli, TheCoveringSelectionIsListedAndNarrowedLikeAnyOther) {
  const auto& covering = covering_selection();
  const auto all = say({"list", "--covering"});
  EXPECT_EQ(static_cast<std::size_t>(std::count(all.out.begin(), all.out.end(), '\n')),
            covering.cases.size() + covering.specs.size());
  EXPECT_THAT(all.out, HasSubstr(covering.cases.back().id()));
  const auto some = say({"list", "--covering", "--dtypes", "amp-o1", "--world", "2"}).out;
  EXPECT_GE(std::count(some.begin(), some.end(), '\n'), 1);
  EXPECT_THAT(all.out, HasSubstr(some));
  EXPECT_EQ(say({"run", "--covering", "--full"}).code, kUsage);
  EXPECT_EQ(say({"list", "--covering", "zero3.bf61"}).code, kUsage);
  const auto mixed = say({"list", "--covering", covering.cases.back().id(), "zero3.bf61"});
  EXPECT_EQ(mixed.code, kUsage);
  EXPECT_THAT(mixed.err, HasSubstr("0 cases selected by \"zero3.bf61\""));
  const auto others = say({"list", "--covering", "Contract.13."});
  EXPECT_EQ(others.code, kUsage);
  EXPECT_THAT(others.err, HasSubstr("Leave out --covering"));
}

// Of a run in parts, each of which tells its verdict when it has ended.
TEST_F(Cli, ADocumentOnStdoutIsAloneThere) {
  const auto said =
      say({"run", "--shard", "2/400", "--generate", "0", "--json", "-", "--report", folder_});
  EXPECT_EQ(said.code, kHeld) << said.err;
  EXPECT_TRUE(nlohmann::json::accept(said.out)) << said.out.substr(0, 200);
  EXPECT_THAT(said.err, HasSubstr("\ncovering: "));
}

TEST_F(Cli, OptionsThatContradictEachOtherAreUsageErrors) {
  EXPECT_THAT(say({"run", kCase, "--json", "-", "--junit", "-"}).err, HasSubstr("got both"));
  EXPECT_EQ(say({"list", "--faults", "averaged"}).code, kUsage);
  EXPECT_EQ(say({"train", "--data", "images", "--layers", "1"}).code, kUsage);
}

// Before the work, where that can be known; after it the verdict is still said.
TEST_F(Cli, AReportThatCannotBeWrittenTakesNoVerdictAway) {
  const auto early = say({"run", kCase, "--report", folder_, "--json", folder_ + "/no/such.json"});
  EXPECT_EQ(early.code, kUsage);
  EXPECT_EQ(early.out, "");
  EXPECT_THAT(early.err, HasSubstr("expected to write"));
  ASSERT_EQ(mkdir((folder_ + "/index.html").c_str(), 0700), 0);
  const auto late = say({"run", kCase, "-q", "--report", folder_});
  EXPECT_EQ(late.code, kInfrastructure);
  EXPECT_THAT(late.out, HasSubstr("\nHELD  "));
  EXPECT_THAT(late.err, HasSubstr("expected to write " + folder_ + "/index.html"));
  rmdir((folder_ + "/index.html").c_str());
}

TEST_F(Cli, AReplayThatIsPastedLeavesTheReportAlone) {
  const auto failed =
      say({"run", kCase, "-q", "--fault", "averaged_twice", "--report", folder_ + "/it"});
  EXPECT_EQ(failed.code, kFailed);
  EXPECT_THAT(failed.out, HasSubstr("--fault averaged_twice --report " + folder_ + "/it-replay\n"));
  EXPECT_THAT(read("it/fail/" + kCase + "/repro.sh"),
              HasSubstr("--fault averaged_twice --report \"$(mktemp -d)\" \"$@\""));
}

// A folder of data that has a space and an apostrophe in its name.
TEST_F(Cli, AReplayIsReadBackByAShellWhateverThePathsAre) {
  const std::string data = folder_ + "/it's data", report = folder_ + "/it's \"it\"";
  ASSERT_EQ(mkdir(data.c_str(), 0700), 0);
  const std::string plays =
      build_info::source_directory() + std::string("/reference/data/plays_slice.txt");
  ASSERT_EQ(symlink(plays.c_str(), (data + "/plays_slice.txt").c_str()), 0);
  const auto failed = say(
      {"run", kCase, "-q", "--fault", "averaged_twice", "--data-dir", data, "--report", report});
  EXPECT_EQ(failed.code, kFailed) << failed.err;
  const std::string start = "\n# replay: equigrad run ";
  const auto from = failed.out.find(start);
  ASSERT_NE(from, std::string::npos) << failed.out;
  const auto line = failed.out.substr(from + start.size());
  const std::string got = folder_ + "/words";
  const auto command =
      "printf '%s\\n' " + line.substr(0, line.find('\n')) + " > " + got;  // as it is pasted
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  EXPECT_THAT(text_of(got), HasSubstr("\n--data-dir\n" + data + "\n"));
  EXPECT_THAT(text_of(got), HasSubstr("\n--report\n" + report + "-replay\n"));
}

// Of GitHub's summary of a step, to which other steps have written.
TEST_F(Cli, TheSummaryOfAStepIsAddedToWhatIsThere) {
  const auto summary = write("summary.md", "before\n");
  setenv("GITHUB_ACTIONS", "true", 1);
  setenv("GITHUB_STEP_SUMMARY", summary.c_str(), 1);
  const auto result = say({"run", kCase, "-q", "--report", folder_ + "/report"});
  setenv("GITHUB_STEP_SUMMARY", (folder_ + "/no/such").c_str(), 1);
  const auto unwritable = say({"run", kCase, "-q", "--report", folder_ + "/report"});
  unsetenv("GITHUB_ACTIONS");
  unsetenv("GITHUB_STEP_SUMMARY");
  EXPECT_EQ(result.code, kHeld) << result.err;
  EXPECT_THAT(read("summary.md"), AllOf(StartsWith("before\n"), HasSubstr("## Equigrad")));
  EXPECT_EQ(unwritable.code, kHeld) << "a summary is no report of this run";
  EXPECT_THAT(unwritable.err, HasSubstr("cannot write GITHUB_STEP_SUMMARY"));
}

TEST_F(Cli, NothingSelectedIsAUsageErrorWithWhatIsNear) {
  const auto result = say({"run", "zero3.bf61"});
  EXPECT_EQ(result.code, kUsage);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("0 cases selected"));
  EXPECT_THAT(result.err, HasSubstr("zero3.bf16"));
}

TEST_F(Cli, EveryFilterSelectsSomethingOfAllCasesOrIsRefused) {
  const std::string in_default = "Contract.1.loss_backward.zero0.fp32.w2.accumulation1";
  EXPECT_EQ(say({"list", in_default, kCase, kCase}).out, kCase + "\n" + in_default + "\n");
  const auto refused = say({"run", in_default, "zero3.bf61"});
  EXPECT_EQ(refused.code, kUsage);
  EXPECT_THAT(refused.err, HasSubstr("0 cases selected by \"zero3.bf61\""));
}

TEST_F(Cli, ACaseOfTheFullMatrixCanBeRunByItsIdAndWritesEveryReport) {
  EXPECT_EQ(say({"list", kCase}).out, kCase + "\n");
  const auto result = say({"run", kCase, "--report", folder_ + "/report", "--seed", "7"});
  EXPECT_EQ(result.code, kHeld) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("HELD"));
  EXPECT_THAT(result.out, HasSubstr("report/index.html"));
  EXPECT_THAT(read("report/index.html"), HasSubstr(kCase));
  EXPECT_THAT(read("report/junit.xml"), HasSubstr(kCase));
  const auto run = reports::from_json(read("report/run.json"));
  ASSERT_EQ(run.cases.size(), 1u);
  EXPECT_EQ(run.cases[0].id, kCase);
  EXPECT_EQ(run.seed, 7u);
  EXPECT_FALSE(run.memory.empty());
}

TEST_F(Cli, JsonOnStdoutIsPure) {
  const auto result = say({"run", kCase, "-q", "--json", "-", "--report", folder_});
  EXPECT_EQ(result.code, kHeld) << result.err;
  EXPECT_EQ(reports::from_json(result.out).cases.size(), 1u);
  EXPECT_THAT(result.err, HasSubstr("HELD"));
}

TEST_F(Cli, AFailureIsExitCodeOneWithItsCauseItsTensorsAndALineToPaste) {
  const auto result = say({"run", kCase, "-q", "--fault", "averaged_twice", "--report", folder_});
  EXPECT_EQ(result.code, kFailed);
  EXPECT_THAT(result.out, HasSubstr("averaged twice"));
  EXPECT_THAT(result.out, HasSubstr("equigrad run " + kCase + " --seed 1234"));
  const auto run = reports::from_json(read("run.json"));
  ASSERT_FALSE(run.cases.at(0).files.empty());
  EXPECT_THAT(result.out, HasSubstr(".inputs.safetensors"));
  EXPECT_THAT(run.cases[0].files, Contains(HasSubstr("rank0.inputs.safetensors")));
  for (const auto& file : run.cases[0].files)
    EXPECT_EQ(access((folder_ + "/" + file).c_str(), R_OK), 0) << file;
}

TEST_F(Cli, AfterAFailureARunEndsIfThatIsAsked) {
  const std::string one = "Contract.2.two_losses_on_one_forward";
  const auto result =
      say({"run", one, "-q", "--fail-fast", "--slots", "1", "--fault", one, "--report", folder_});
  EXPECT_EQ(result.code, kFailed) << result.err;
  const auto run = reports::from_json(read("run.json"));
  ASSERT_GT(run.cases.size(), 1u);
  const auto is_begun = [](const reports::Case& one) {
    return one.verdict != reports::Verdict::NotRun;
  };
  EXPECT_EQ(std::count_if(run.cases.begin(), run.cases.end(), is_begun), 1);
  EXPECT_THAT(run.cases.back().message, HasSubstr("--fail-fast"));
  const auto drawn = say({"run", "Generated", "-q", "--fail-fast", "--no-shrink", "--generate",
                          "200", "--generate-seed", "1", "--slots", "1", "--fault",
                          "averaged_twice", "--report", folder_});
  EXPECT_EQ(drawn.code, kFailed) << drawn.err;
  EXPECT_EQ(reports::from_json(read("run.json")).cases.size(), 1u);
}

TEST_F(Cli, ASelfCheckWithoutAnAnswerIsExitCodeThreeAndWritesEveryReport) {
  const auto result = say({"run", kCase, "Contract.1.loss_backward.zero0.fp32.w2.accumulation1",
                           "-q", "--timeout-scale", "1e-6", "--report", folder_ + "/report"});
  EXPECT_EQ(result.code, kInfrastructure) << result.out << result.err;
  const std::string why = "expected every rank to answer before the cases begin";
  EXPECT_THAT(result.err, HasSubstr(why));
  EXPECT_THAT(result.out, AllOf(HasSubstr("BROKEN"), HasSubstr(why)));
  for (const char* file : {"report/index.html", "report/junit.xml", "report/run.json"})
    EXPECT_THAT(read(file), HasSubstr(why)) << file;
  const auto run = reports::from_json(read("report/run.json"));
  ASSERT_EQ(run.cases.size(), 2u);
  for (const auto& one : run.cases) EXPECT_EQ(one.verdict, reports::Verdict::NotRun) << one.id;
}

TEST_F(Cli, InOneProcessEveryFilterIsTheIdOfACase) {
  const std::string other =
      "Required.grad.zero1.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward";
  const std::string of_contract = "Contract.1.loss_backward.zero0.fp32.w2.accumulation1";
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "run");
    words.insert(words.end(), {"--one-process", "-q", "--report", folder_});
    return say(words);
  };
  const auto held = run({kCase, of_contract, other});
  EXPECT_EQ(held.code, kHeld) << held.out << held.err;
  EXPECT_EQ(reports::from_json(read("run.json")).cases.size(), 3u);
  // Only the first of them is begun, in whichever order they are given.
  for (const auto& [first, second] : {std::pair{kCase, other}, {other, kCase}}) {
    EXPECT_EQ(run({first, second, "--fail-fast", "--fault", "averaged_twice"}).code, kFailed);
    for (const auto& one : reports::from_json(read("run.json")).cases)
      EXPECT_EQ(one.verdict == reports::Verdict::NotRun, one.id == second) << one.id;
  }
  for (const auto& words : std::vector<std::vector<std::string>>{
           {}, {"zero2"}, {kCase, kCase}, {"Contract.1"}, {kCase, "--slots", "2"}}) {
    const auto refused = run(words);
    EXPECT_EQ(refused.code, kUsage) << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("--one-process"));
  }
}

TEST_F(Cli, AFaultOfTheContractIsPlantedByItsName) {
  const std::string family = "Contract.2.two_losses_on_one_forward",
                    one = family + ".zero2.fp32.w2";
  for (const std::string& fault : {std::string("Contract"), family}) {
    const auto result = say({"run", one, "-q", "--fault", fault, "--report", folder_});
    EXPECT_EQ(result.code, kFailed) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr(" --fault " + fault));
    EXPECT_EQ(reports::from_json(read("run.json")).cases.at(0).verdict, reports::Verdict::Failed);
  }
  EXPECT_EQ(say({"run", one, "-q", "--report", folder_}).code, kHeld);
  // What cannot have the fault is not run; nothing else left is a wrong call.
  const auto both = say({"run", one, kCase, "-q", "--fault", family, "--report", folder_});
  EXPECT_EQ(both.code, kFailed);
  EXPECT_EQ(reports::from_json(read("run.json")).cases.size(), 1u);
  EXPECT_THAT(both.out, HasSubstr("the fault is planted into the others"));
  const auto none = say({"run", kCase, "--fault", family, "--report", folder_});
  EXPECT_EQ(none.code, kUsage);
  EXPECT_THAT(none.err, HasSubstr("0 of the selected cases can have the fault"));
  EXPECT_EQ(say({"run", one, "-q", "--fault", "averaged_twice", "--report", folder_}).code,
            kFailed);
  EXPECT_EQ(say({"run", "--fault", "Contract.2.two_loses_on_one_forward"}).code, kUsage);
  const auto list = say({"list", "--faults"});
  EXPECT_EQ(list.code, kHeld);
  EXPECT_THAT(list.out,
              AllOf(StartsWith("micro_batch_dropped: "), HasSubstr("\n" + family + ": ")));
  EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'),
            static_cast<int64_t>(faults::catalogue().size() + 1 + contract::cases().size()));
}

TEST_F(Cli, CasesOfTheContractAreFoundByTheMistakeTheyAnswer) {
  EXPECT_THAT(say({"list", "trap-15"}).out, AllOf(HasSubstr("Contract.7.zero_grad_in_the_window."),
                                                  HasSubstr(".zero_grad_before_the_boundary."),
                                                  Not(HasSubstr("zero_grad_after"))));
  const std::string alias =
      "Contract.trap-15-zero-grad-cancels-the-window.zero_grad_in_the_window.zero2.fp32.w2."
      "accumulation1";
  EXPECT_EQ(say({"list", alias}).out,
            "Contract.7.zero_grad_in_the_window.zero2.fp32.w2.accumulation1\n");
  EXPECT_EQ(say({"run", alias, "-q", "--report", folder_}).code, kHeld);
  EXPECT_THAT(say({"list", "trap-15-zero-gard"}).err, HasSubstr("trap-15-zero-grad"));
  const auto mistakes = say({"list", "--mistakes"});
  EXPECT_EQ(std::count(mistakes.out.begin(), mistakes.out.end(), '\n'), 27);
}

TEST_F(Cli, TrainComparesEveryStepWithTheTwin) {
  for (const char* stage : {"0", "3"}) {
    const auto result =
        say({"train", "--steps", "2", "--stage", stage, "--dtype", "bf16", "--layers", "1", "--dim",
             "16", "--heads", "2", "--context", "8", "--accumulate", "2"});
    EXPECT_EQ(result.code, kHeld) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("HELD  2 steps"));
  }
}

TEST_F(Cli, TrainTakesADeepSpeedFile) {
  const auto file = write("ds.json", R"({"train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 2}})");
  const auto result = say({"train", "--steps", "2", "--config", file, "--layers", "1", "--dim",
                           "16", "--heads", "2", "--context", "8"});
  EXPECT_EQ(result.code, kHeld) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("twin built from the parsed configuration"));
  for (const char* option : {"--stage", "--accumulate", "--micro-batch"})
    EXPECT_EQ(say({"train", "--config", file, option, "1"}).code, kUsage) << option;
  EXPECT_EQ(say({"train", "--config", file, "--dtype", "bf16"}).code, kUsage);
}

TEST_F(Cli, TrainHasTheEncoderAndTheLanguageModelOnRanksOfTheirOwn) {
  const auto result =
      say({"train", "--data", "captions", "--two-groups", "--steps", "1", "--world", "1"});
  EXPECT_EQ(result.code, kHeld) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(StartsWith("# captions, two_groups.zero2_zero2.fp32.w1."),
                                HasSubstr(", 2 processes, "), HasSubstr("HELD  1 steps")));
  const auto of_text = say({"train", "--two-groups", "--steps", "1"});
  EXPECT_EQ(of_text.code, kUsage);
  EXPECT_THAT(of_text.err, HasSubstr("--two-groups goes with --data captions"));
}

TEST_F(Cli, ConfigKeysIsThePageOfTheDocumentsAndConfigSchemaHasItsKeys) {
  std::ifstream file(std::string(build_info::source_directory()) + "/docs/configuration.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const auto keys = say({"config", "keys"});
  EXPECT_EQ(keys.code, 0);
  EXPECT_EQ(keys.out, page);
  const auto schema = say({"config", "schema"});
  EXPECT_EQ(schema.code, 0);
  const auto properties = nlohmann::json::parse(schema.out).at("properties");
  EXPECT_GT(properties.size(), 50u);
  EXPECT_TRUE(properties.contains("zero_optimization"));
}

TEST_F(Cli, ConfigCheckExplainsAFileOrSaysWhatIsWrongWithIt) {
  const auto good = write("good.json", R"({"train_batch_size": 8, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}})");
  const auto result = say({"config", "check", good, "--world", "2"});
  EXPECT_EQ(result.code, kHeld);
  EXPECT_THAT(result.out, HasSubstr("train_micro_batch_size_per_gpu"));
  const auto bad = write("bad.json", R"({"train_batch_size": 8, "zero_optimisation": {}})");
  const auto refused = say({"config", "check", bad});
  EXPECT_EQ(refused.code, kUsage);
  EXPECT_THAT(refused.err, HasSubstr("zero_optimization"));
}

// DeepSpeed's experiment with 16-bit model states: engine/memory/tests/forecast_test.cpp has its
// table.
TEST_F(Cli, ConfigCheckPrintsTheBytesOfARank) {
  const auto file = write("bf16.json", R"({"train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"}, "steps_per_print": 1,
    "zero_optimization": {"stage": 3}})");
  const auto rates = say({"config", "check", file, "--world", "4"});
  EXPECT_EQ(rates.code, kHeld);
  EXPECT_THAT(rates.out, HasSubstr("What a rank of 4 holds, on cpu"));
  EXPECT_THAT(rates.out, ContainsRegex("total +3\\.5"));
  EXPECT_THAT(rates.out, ContainsRegex("master_weights +1 +1\n"));
  const auto sized = say({"config", "check", file, "--world", "4", "--parameters", "6860000000"});
  EXPECT_THAT(sized.out, HasSubstr("6 860 000 000 parameters in 6 543 tensors"));
  EXPECT_THAT(sized.out, ContainsRegex("total +24 010 000 000 "));
  const auto named =
      say({"config", "check", file, "--world", "4", "--numels", "100,0,7", "--json", "-"});
  EXPECT_EQ(named.code, kHeld);
  const auto record = nlohmann::json::parse(named.out);
  EXPECT_EQ(record.at("parameters"), 107);
  std::map<std::string, std::string> origins;
  for (const auto& setting : record.at("settings"))
    origins[setting.at("key")] = setting.at("origin");
  EXPECT_EQ(origins["zero_optimization.stage"], "file");
  EXPECT_EQ(origins["zero_optimization.overlap_comm"], "default");
  EXPECT_EQ(origins["train_batch_size"], "derived");
  EXPECT_EQ(origins["steps_per_print"], "no_effect");
  EXPECT_EQ(record.at("memory").at("master_weights").at("idle_bytes"), (25 + 2) * 4);
  EXPECT_THAT(named.err, HasSubstr("padding included"));
}

TEST_F(Cli, ConfigCheckRefusesSizesThatNoModelHas) {
  const auto file = write("plain.json", R"({"train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW"}})");
  const auto check = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"config", "check", file});
    return say(words).code;
  };
  EXPECT_EQ(check({"--parameters", "-1"}), kUsage);
  EXPECT_EQ(check({"--parameters", "many"}), kUsage);
  EXPECT_EQ(check({"--numels", "5,-1"}), kUsage);
  EXPECT_EQ(check({"--numels", "900000000000000,200000000000000"}), kUsage);
  EXPECT_EQ(check({"--parameters", "5", "--numels", "5"}), kUsage);
  EXPECT_EQ(check({"--device", "tpu"}), kUsage);
  EXPECT_EQ(check({"--parameters", "1000000000000000"}), kHeld);
  EXPECT_EQ(check({"--json", folder_ + "/no/such/folder"}), kUsage);
}

TEST_F(Cli, AFaultThatNobodyCanPlantIsAUsageErrorWithTheNearestName) {
  const auto result = say({"run", kCase, "--fault", "averged_twice"});
  EXPECT_EQ(result.code, kUsage);
  EXPECT_THAT(result.err, HasSubstr("Did you mean \"averaged_twice\"?"));
  EXPECT_THAT(result.err, HasSubstr("equigrad list --faults"));
}

TEST_F(Cli, TheRemedyForTheRanksFolderIsForTheFolderThatTheyUse) {
  EXPECT_THAT(place_remedy("/dev/shm"), HasSubstr("--shm-size"));
  EXPECT_THAT(place_remedy("/tmp"), HasSubstr("set TMPDIR"));
  EXPECT_THAT(place_remedy(""), HasSubstr("set TMPDIR"));
  EXPECT_EQ(ranks::first_writable({folder_ + "/none", folder_, "/tmp"}), folder_);
  EXPECT_EQ(ranks::first_writable({folder_ + "/none"}), "");
  EXPECT_EQ(ranks::private_places().front(), "/dev/shm");
}

TEST_F(Cli, TheDoctorForksRanksAndFindsTheData) {
  const auto result = say({"doctor"});
  EXPECT_EQ(result.code, kHeld) << result.out;
  EXPECT_THAT(result.out, HasSubstr("one sum over Gloo"));
}

}  // namespace
}  // namespace equigrad::conformance::cli
