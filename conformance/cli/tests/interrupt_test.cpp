// Ctrl-C and kill: the exit code says so, and what was found so far is told.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "conformance/cases/matrix.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "conformance/contract/contract_case.hpp"
#include "conformance/faults/fault.hpp"
#include "equigrad_build_info.hpp"
#include "reports/json.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Interrupt : public InAFolder {
 protected:
  // Starts the program, waits until it has said `until`, sends the signal; returns the exit code.
  int interrupted(std::vector<std::string> words, const std::string& until, int signal) {
    const char* program = std::getenv("EQUIGRAD_BINARY");
    if (program == nullptr) ADD_FAILURE() << "run this test through ctest, which says where it is";
    if (program == nullptr) return -1;
    words.insert(words.begin(), program);
    const pid_t process = fork();
    if (process == 0) {
      std::vector<char*> argv;
      for (auto& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      if (freopen(out().c_str(), "w", stdout) != nullptr &&
          freopen(err().c_str(), "w", stderr) != nullptr)
        execv(program, argv.data());
      _exit(127);
    }
    for (int tries = 0;
         tries < 15000 && (text_of(out()) + text_of(err())).find(until) == std::string::npos;
         ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_THAT(text_of(out()) + text_of(err()), HasSubstr(until));
    kill(process, signal);
    int status = 0;
    waitpid(process, &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    return WEXITSTATUS(status);
  }
  std::string out() const { return folder_ + "/out"; }
  std::string err() const { return folder_ + "/err"; }
  std::string report() const { return folder_ + "/report"; }
};

TEST_F(Interrupt, ARunIsWrittenAsFarAsItCame) {
  EXPECT_EQ(interrupted({"run", "--report", report()}, "every value: HELD", SIGINT), 130);
  EXPECT_THAT(text_of(out()), HasSubstr("INTERRUPTED"));
  EXPECT_THAT(text_of(err()), HasSubstr("stopped by signal 2 (Interrupt)"));
  const auto run = reports::from_json(text_of(report() + "/run.json"));
  EXPECT_TRUE(run.interrupted);
  EXPECT_EQ(run.signal, SIGINT);
  ASSERT_EQ(run.cases.size(), default_matrix().size() + contract::default_specs().size());
  const auto first = run.cases.begin() + 20;  // of those that have every value
  EXPECT_TRUE(std::all_of(run.cases.begin(), first, [](const reports::Case& one) {
    return reports::passed(one.verdict);
  })) << "what had ended before the signal is kept";
  EXPECT_TRUE(std::any_of(first, run.cases.end(), [](const reports::Case& one) {
    return one.verdict == reports::Verdict::NotRun;
  }));
}

TEST_F(Interrupt, TheRecordTellsTheSignalAsTheExitCodeDoes) {
  EXPECT_EQ(interrupted({"run", "Contract.2", "--report", report()}, " cases, seed", SIGTERM), 143);
  const auto text = text_of(report() + "/run.json");
  EXPECT_EQ(reports::from_json(text).signal, SIGTERM);
  EXPECT_THAT(text, HasSubstr("\"exit_code\": 143"));
}

TEST_F(Interrupt, ATrainingTellsItsStepsSoFar) {
  EXPECT_EQ(interrupted({"train", "--steps", "100000", "--layers", "1", "--dim", "16", "--heads",
                         "2", "--context", "8", "--json", folder_ + "/train.json"},
                        "\n     3  ", SIGTERM),
            143);
  EXPECT_THAT(text_of(out()), HasSubstr("INTERRUPTED  "));
  EXPECT_THAT(text_of(out()), HasSubstr(" steps of 100000, "));
  EXPECT_THAT(text_of(out()), Not(HasSubstr("INTERRUPTED  0 steps")));
  EXPECT_THAT(text_of(out()), HasSubstr("at most 0 of a step differing"));
  EXPECT_THAT(text_of(out()),
              AllOf(HasSubstr("tokens/s on average"), HasSubstr("\n#           | ")));
  const auto record = nlohmann::json::parse(text_of(folder_ + "/train.json"));
  EXPECT_EQ(record.at("verdict"), "INTERRUPTED");
  EXPECT_GE(record.at("steps").size(), 3U);
}

TEST_F(Interrupt, AComparisonIsWrittenAsFarAsItCame) {
  const std::string config =
      std::string(build_info::source_directory()) + "/conformance/cases/configs/bf16_masters.json";
  std::vector<std::string> words = {"compare", "--config", config,  "--config",
                                    config,    "--report", report()};
  std::istringstream sizes(
      "--seeds 1000 --steps 4 --final-steps 2 --layers 1 --dim 16 --heads 2 --context 8");
  for (std::string word; sizes >> word;) words.push_back(word);
  EXPECT_EQ(interrupted(words, "\n       1236  ", SIGINT), 130);  // the third pair
  EXPECT_THAT(text_of(out()), HasSubstr("INTERRUPTED  Stopped in run "));
  const std::string json = text_of(report() + "/compare.json");
  EXPECT_THAT(json, HasSubstr("\"outcome\":\"interrupted\""));
  EXPECT_THAT(json, AllOf(HasSubstr("\"pairs\":"), Not(HasSubstr("\"pairs\":0,")),
                          Not(HasSubstr("\"pairs\":1,"))));
  EXPECT_THAT(text_of(report() + "/compare.html"), HasSubstr("<h1><span aria-hidden=\"true\">✗"));
}

TEST_F(Interrupt, AKillMatrixIsWrittenAsFarAsItCame) {
  EXPECT_EQ(interrupted({"faults", "--clean", "0", "--report", report()}, " faults, ", SIGINT),
            130);
  EXPECT_THAT(text_of(out()), HasSubstr("INTERRUPTED"));
  const auto matrix = nlohmann::json::parse(text_of(report() + "/faults.json"));
  EXPECT_EQ(matrix.at("exit_code"), 130);
  EXPECT_EQ(matrix.at("outcome"), "interrupted");
  EXPECT_EQ(matrix.at("faults").size(), faults::fault_names().size());
  EXPECT_THAT(text_of(report() + "/faults.html"), HasSubstr("</html>"));
}

TEST_F(Interrupt, WhatWasShrunkSoFarIsKept) {
  const std::string id =
      "Required.grad.zero3.fp16.w4.accumulation4.clip-above.adamw.gpt.tensor_backward";
  EXPECT_EQ(
      interrupted({"repro", id, "--fault", "averaged_twice", "-o", report()}, "so does ", SIGINT),
      130);
  EXPECT_THAT(text_of(out()),
              AllOf(HasSubstr("# shrunk so far: 3 steps -> 1"), HasSubstr("FAIL  ")));
  EXPECT_THAT(text_of(report() + "/repro.sh"), HasSubstr(" --steps 1 --as-is"));
}

TEST_F(Interrupt, TheDoctorTellsItsFindingsSoFar) {
  int code = 0;  // where it had ended before it was looked at
  for (int tries = 0; code == 0 && tries < 10; ++tries)
    code = interrupted({"doctor"}, "  images  ", SIGINT);
  EXPECT_EQ(code, 130);
  EXPECT_THAT(text_of(out()), HasSubstr("ranks' folder"));
}

}  // namespace
}  // namespace equigrad::conformance::cli
