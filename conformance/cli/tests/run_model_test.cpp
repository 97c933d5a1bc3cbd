// `equigrad run --model LIBRARY`: a model of a user's through the matrix.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "conformance/cli/tests/command_result.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class RunModel : public InAFolder {
 protected:
  // `equigrad run --model LIBRARY WORDS...`, with reports in the test's folder.
  CommandResult run(std::vector<std::string> words) const {
    words.insert(words.begin(), {"run", "--model", library(), "--report", folder_ + "/report"});
    return result_of_words(words);
  }
  static std::string library() { return std::getenv("EQUIGRAD_TEST_MODEL"); }
  nlohmann::json record(const std::string& folder = "report") const {
    return nlohmann::json::parse(text_of(folder_ + "/" + folder + "/run.json"));
  }
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

const std::vector<std::string> kSmall = {"--stages", "2", "--dtypes", "fp32", "--world", "2"};

std::vector<std::string> small_with(const std::vector<std::string>& more) {
  auto words = kSmall;
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(RunModel, AModelThatHoldsEndsWithZeroAndAReport) {
  const auto said = run(small_with({"--json", folder_ + "/other.json", "--seed", "7"}));
  EXPECT_EQ(said.code, kHeld) << said.out << said.err;
  EXPECT_THAT(said.out, AllOf(HasSubstr("\nHELD  "), HasSubstr("# report: " + folder_)));
  EXPECT_THAT(said.err, HasSubstr("3 cases, seed 7"));
  const auto record = this->record();
  EXPECT_EQ(record.at("seed"), "7");
  EXPECT_EQ(record.at("cases").size(), 3u);
  EXPECT_GE(record.at("self_checks").size(), 3u);
  EXPECT_THAT(record.at("command").get<std::string>(), HasSubstr("run --model " + library()));
  EXPECT_THAT(text_of(folder_ + "/report/index.html"), HasSubstr("small_model"));
  EXPECT_THAT(text_of(folder_ + "/report/junit.xml"), HasSubstr("small_model"));
  EXPECT_EQ(text_of(folder_ + "/other.json"), text_of(folder_ + "/report/run.json"));
}

TEST_F(RunModel, AFindingEndsWithOneAndIsRepeatedByItsReplay) {
  const auto said = run(small_with({"-q", "--full", "--fault", "averaged_twice",
                                    "accumulation3.clip-off.sgd", "--timeout-scale", "2.5"}));
  EXPECT_EQ(said.code, kFailed) << said.out << said.err;
  EXPECT_EQ(said.err, "");
  EXPECT_THAT(said.out, HasSubstr(" --timeout-scale 2.5 --report "));
  EXPECT_THAT(said.out, AllOf(HasSubstr("averaged twice"), HasSubstr("folder  " + folder_)));
  const auto one = record().at("cases").at(1);
  const std::string id = one.at("id"), replay = one.at("replay");
  EXPECT_THAT(said.out, HasSubstr(record().at("cases").at(0).at("replay").get<std::string>()));
  std::istringstream stream(replay);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  ASSERT_EQ(words.front(), "equigrad");
  const auto again = result_of_words({words.begin() + 1, words.end()});
  EXPECT_EQ(again.code, kFailed) << again.out << again.err;
  words = small_with({"-q", "--full", "--fault", "averaged_twice", "--failed"});
  EXPECT_THAT(run(words).err, Not(HasSubstr("takes its place"))) << "it repeats it";
  const auto repeated = record("report-replay").at("cases");
  ASSERT_THAT(repeated, SizeIs(1));
  EXPECT_EQ(repeated.at(0).at("id"), id);
  EXPECT_THAT(again.out, HasSubstr("averaged twice"));
  EXPECT_EQ(record().at("cases").size(), 3u);  // the first report is still there
}

TEST_F(RunModel, TheLineBelowRepeatsAllThatFailedInItsPlace) {
  const std::vector<std::string> fault = {"--fault", "averaged_twice", "--world", "2"};
  auto words = fault;
  words.insert(words.end(), {"--stages", "2", "--dtypes", "fp32"});
  const auto said = run(words);
  EXPECT_THAT(said.out, HasSubstr(" --world 2 --fault averaged_twice --report " + folder_ +
                                  "/report --failed\n"));
  words = fault;
  words.push_back("--failed");
  const auto again = run(words);
  EXPECT_EQ(again.code, kFailed) << again.err;
  EXPECT_THAT(again.err, Not(HasSubstr("a part of what went wrong")));
  EXPECT_EQ(text_of(folder_ + "/report-replay/run.json"), "");
}

TEST_F(RunModel, AFailuresFolderRepeatsItByTheProgram) {
  ASSERT_EQ(run(small_with({"-q", "--fault", "averaged_twice"})).code, kFailed);
  const std::string id = record().at("cases").at(0).at("id");
  const auto folder = folder_ + "/report/fail/" + id;
  EXPECT_THAT(text_of(folder + "/message.txt"), HasSubstr("averaged twice"));
  EXPECT_THAT(text_of(folder + "/config.json"), HasSubstr("zero_optimization"));
  EXPECT_NE(text_of(folder + "/rank0.safetensors"), "");
  const std::string binary = std::getenv("EQUIGRAD_BINARY");
  const auto path = binary.substr(0, binary.rfind('/'));
  const auto ended = std::system(("cd / && PATH='" + path + "':\"$PATH\" TMPDIR='" + folder_ +
                                  "' sh '" + folder + "/repro.sh' > '" + folder_ + "/out' 2>&1")
                                     .c_str());
  EXPECT_EQ(WEXITSTATUS(ended), kFailed);
  EXPECT_THAT(text_of(folder_ + "/out"), AllOf(HasSubstr(id), HasSubstr("averaged twice")));
}

TEST_F(RunModel, NoTensorIsKeptWhereNoneIsWanted) {
  ASSERT_EQ(run(small_with({"-q", "--fault", "averaged_twice", "--keep-tensors", "none"})).code,
            kFailed);
  const std::string id = record().at("cases").at(0).at("id");
  EXPECT_NE(text_of(folder_ + "/report/fail/" + id + "/config.json"), "");
  EXPECT_EQ(text_of(folder_ + "/report/fail/" + id + "/rank0.safetensors"), "");
}

TEST_F(RunModel, TheMatrixIsEveryPrecisionThatIsDefined) {
  const auto listed = lines_of(run({"--list"}).out);
  std::set<std::string> expected;
  for (const auto precision : precisions())
    for (const int stage : {0, 1, 2, 3})
      for (const int world : {1, 2, 3})
        for (const auto style :
             {Style::EngineBackward, Style::ScaleBackward, Style::LossBackward}) {
          const CaseSpec spec{.stage = stage,
                              .precision = precision,
                              .style = style,
                              .world = world,
                              .accumulation = 2,
                              .clip = Clip::Above,
                              .optimizer = Rule::AdamW,
                              .model = "small_model"};
          if (!spec.is_refused()) expected.insert(spec.id());
        }
  EXPECT_EQ(std::set<std::string>(listed.begin(), listed.end()), expected);
  EXPECT_EQ(listed.size(), expected.size());
  const auto full = lines_of(run({"--list", "--full", "--dtypes", "bf16", "--stages", "3"}).out);
  EXPECT_EQ(full.size(), 4u * 4u * 4u * 2u * 3u);  // ranks, accumulation, clips, optimizers, styles
}

TEST_F(RunModel, FiltersChooseCasesAndAWrongOneNamesANearOne) {
  const auto listed = lines_of(run({"--list", "zero3.bf16.w[12].*loss_backward"}).out);
  EXPECT_THAT(listed, SizeIs(2));
  EXPECT_THAT(listed, Each(AllOf(HasSubstr("zero3.bf16.w"), HasSubstr("loss_backward"))));
  const auto same =
      run({"--list", "zero3.bf16.w[12]. and not (engine_backward or scale_backward)"});
  EXPECT_EQ(lines_of(same.out), listed);
  const auto word = run({"zero3 and not zerro2"});
  EXPECT_EQ(word.code, kUsage);
  EXPECT_THAT(word.err, AllOf(HasSubstr("got \"zerro2\""), HasSubstr("zero2.")));
  EXPECT_THAT(run({"zero3 and zero2"}).err, HasSubstr("but not together"));
  const auto wrong = run({"zero3.fp33.w1"});
  EXPECT_EQ(wrong.code, kUsage);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr("got \"zero3.fp33.w1\""), HasSubstr("zero3.fp32.w1.")));
  const auto one = run(small_with({"-q", "engine_backward"}));
  EXPECT_EQ(one.code, kHeld) << one.out;
  EXPECT_THAT(one.out, HasSubstr("# selected: 1 of 3 cases\n"));
}

TEST_F(RunModel, WhatFailedIsRepeatedWithTheSameModel) {
  EXPECT_EQ(run(small_with({"-q", "--fault", "averaged_twice"})).code, kFailed);
  std::vector<std::string> failed;
  const auto before = record();
  for (const auto& one : before.at("cases"))
    if (one.at("verdict") == "failed") failed.push_back(one.at("id"));
  const auto again = [&](const std::vector<std::string>& more) {
    auto words = small_with({"--fault", "averaged_twice", "--list"});
    words.insert(words.begin(), more.begin(), more.end());
    words.push_back("--failed");
    return run(words);
  };
  EXPECT_THAT(failed, SizeIs(3));
  EXPECT_EQ(lines_of(again({}).out), failed);
  EXPECT_THAT(lines_of(again({"engine_backward"}).out), SizeIs(1));
  EXPECT_EQ(again({"zero3"}).code, kUsage);
}

TEST_F(RunModel, WhatSaysNothingAboutTheModelIsRefused) {
  for (const auto& words : std::vector<std::vector<std::string>>{{"--covering"},
                                                                 {"--shard", "1/2"},
                                                                 {"--knobs", "{}"},
                                                                 {"--data-dir", "."},
                                                                 {"--fault", "Contract"}}) {
    const auto said = run(words);
    EXPECT_EQ(said.code, kUsage) << words.front();
    EXPECT_THAT(said.err, AllOf(HasSubstr("expected options of --model"), HasSubstr(words[0])));
  }
  EXPECT_EQ(run({"--json", "-", "--junit", "-"}).code, kUsage);
  const auto undefined = run({"--stages", "0", "--dtypes", "offload"});
  EXPECT_EQ(undefined.code, kUsage);
  EXPECT_THAT(undefined.err, HasSubstr("offload is not defined at stage 0"));
}

TEST_F(RunModel, OnCudaWithoutADeviceItIsBrokenAndSaysSo) {
  if (std::filesystem::exists("/proc/driver/nvidia/gpus")) return;
  ASSERT_EQ(run(small_with({"-q"})).code, kHeld);
  const auto before = text_of(folder_ + "/report/run.json");
  const auto said = run(small_with({"--device", "cuda"}));
  EXPECT_EQ(said.code, kInfrastructure);
  EXPECT_EQ(text_of(folder_ + "/report/run.json"), before) << "nothing has taken its place";
  EXPECT_THAT(said.err, AllOf(HasSubstr("[check] expected a CUDA device, got none"),
                              HasSubstr("leave --device cuda out")));
}

TEST_F(RunModel, WhatIsNoModelEndsWithTwo) {
  const auto said = result_of_words({"run", "--model", folder_ + "/no.so"});
  EXPECT_EQ(said.code, kUsage);
  EXPECT_THAT(said.err, HasSubstr("equigrad: [model] expected the file of a shared library"));
}

TEST_F(RunModel, AModelThatCannotBeCheckedEndsWithTwoAndOneThatDiesWithThree) {
  ASSERT_EQ(setenv("SMALL_MODEL", "detached", 1), 0);
  const auto detached = run(kSmall);
  ASSERT_EQ(setenv("SMALL_MODEL", "dies", 1), 0);
  const auto died = run(kSmall);
  unsetenv("SMALL_MODEL");
  EXPECT_EQ(detached.code, kUsage);
  EXPECT_THAT(detached.err, HasSubstr("a loss with a graph to the parameters"));
  EXPECT_EQ(died.code, kInfrastructure);
  EXPECT_THAT(died.err, AllOf(HasSubstr("by plain autograd"), HasSubstr("Aborted")));
}

// The program itself has no symbol of the harness to give to a library.
TEST_F(RunModel, TheProgramRunsALibraryThatLinksTorchAlone) {
  const std::string command = std::string(std::getenv("EQUIGRAD_BINARY")) + " run --model " +
                              library() + " --world 1 --stages 0 --dtypes bf16 --report '" +
                              folder_ + "/report' > '" + folder_ + "/out' 2> '" + folder_ + "/err'";
  EXPECT_EQ(std::system(command.c_str()), 0) << text_of(folder_ + "/err");
  EXPECT_THAT(text_of(folder_ + "/out"), HasSubstr("\nHELD  "));
  EXPECT_THAT(text_of(folder_ + "/err"), HasSubstr("3 cases, seed 1234"));
}

}  // namespace
}  // namespace equigrad::conformance::cli
