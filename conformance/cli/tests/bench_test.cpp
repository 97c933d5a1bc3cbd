// `equigrad bench` is the program equigrad_perf: its words, its help, its exit codes, its signals.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "conformance/cli/tests/command_result.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct Ended {
  std::string output;  // with what went to stderr
  int code = -1;
};

const char* program() {
  const char* path = std::getenv("EQUIGRAD_BINARY");
  if (path == nullptr) ADD_FAILURE() << "run this test through ctest, which says where it is";
  return path == nullptr ? "/bin/false" : path;
}

Ended bench(const std::string& words) {
  FILE* pipe = popen((std::string(program()) + " bench " + words + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {"no pipe"};
  std::array<char, 256> buffer{};
  Ended ended;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) ended.output += buffer.data();
  ended.code = WEXITSTATUS(pclose(pipe));
  return ended;
}

// What it measures, in which direction it is better, and how long it takes.
TEST(Bench, ItsHelpSaysWhatEveryCommandMeasures) {
  const auto help = bench("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, HasSubstr("equigrad bench [OPTIONS]"));
  EXPECT_THAT(help.output, HasSubstr("Exit codes: 0, 1 for a finding"));
  const std::vector<std::vector<std::string>> all = {
      {"race", "below 1 is faster", "a minute"},
      {"memory", "lower is better", "minute"},
      {"counts", "any difference is a finding", "minute"},
      {"gate", "below 1 is faster", "minutes"},
      {"leaks", "0 is right", "minutes"},
      {"noise", "0 is right", "As long as"},
      {"scale", "lower is better", "seconds"}};
  for (const auto& words : all) {
    const auto one = bench(words[0] + " --help");
    EXPECT_EQ(one.code, 0) << words[0];
    for (std::size_t i = 1; i < words.size(); ++i)
      EXPECT_THAT(one.output, HasSubstr(words[i])) << words[0];
  }
  const auto own = result_of_words({"--help"});
  EXPECT_THAT(own.out, AllOf(HasSubstr("bench"), HasSubstr("Measure speed and memory")));
}

TEST(Bench, ExitCodesAreThoseOfTheProgram) {
  const auto wrong = bench("rase");
  EXPECT_EQ(wrong.code, kUsage);
  EXPECT_THAT(wrong.output, HasSubstr("equigrad bench: Did you mean \"race\"?"));
  EXPECT_THAT(bench("bogus").output,
              HasSubstr("equigrad bench: expected a command, got \"bogus\": race, "));
  EXPECT_EQ(bench("scale --gpt 1,8,2,8,16 --ranks 4 --stages 0").code, kHeld);
  EXPECT_EQ(bench("race --suite smoke --no-peers --worker /bin/false").code, kInfrastructure);
}

TEST(Bench, WrongWordsAreAnAnnotationOfAJob) {
  const std::string annotation = "::error title=equigrad::Wrong words";
  EXPECT_THAT(bench("rase").output, Not(HasSubstr(annotation)));
  setenv("GITHUB_ACTIONS", "true", 1);
  const auto words = bench("rase"), file = bench("gate --old /no/such"), help = bench("--help");
  unsetenv("GITHUB_ACTIONS");
  EXPECT_THAT(words.output, HasSubstr(annotation));
  EXPECT_THAT(file.output, HasSubstr(annotation));
  EXPECT_THAT(help.output, Not(HasSubstr(annotation)));
}

// One pair is fewer than any confidence needs.
TEST(Bench, TimesThatStayOpenAreExitCodeFour) {
  const auto worker = std::filesystem::path(program()).parent_path() / "perf_worker";
  const auto open = bench("gate --pairs 1 --lives 1 --steps 1 --old '" + worker.string() + "'");
  EXPECT_EQ(open.code, kInconclusive) << open.output;
  EXPECT_THAT(open.output, HasSubstr("inconclusive"));
}

TEST(Bench, AProgramThatIsMissingIsNamedWithHowToBuildIt) {
  const auto missing = result_of([] { return bench_command({"race"}, "/no/such/folder"); });
  EXPECT_EQ(missing.code, kInfrastructure);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("expected to start /no/such/folder/equigrad_perf"),
                                 HasSubstr("No such file"), HasSubstr("--target equigrad_perf")));
}

class BenchSignal : public InAFolder {
 protected:
  // Of `equigrad bench WORDS`, whose temporary files are in folder_/tmp, once `until` is there.
  int ended_by(std::vector<std::string> words, const std::string& until, int signal) {
    std::filesystem::create_directory(folder_ + "/tmp");
    words.insert(words.begin(), {program(), "bench"});
    const pid_t process = fork();
    if (process == 0) {
      std::vector<char*> argv;
      for (auto& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      setenv("TMPDIR", (folder_ + "/tmp").c_str(), 1);
      if (freopen((folder_ + "/out").c_str(), "w", stdout) != nullptr &&
          freopen((folder_ + "/err").c_str(), "w", stderr) != nullptr)
        execv(argv[0], argv.data());
      _exit(127);
    }
    for (int tries = 0; tries < 6000 && !is_there(until); ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(is_there(until)) << text_of(folder_ + "/err");
    kill(process, signal);
    int status = 0;
    waitpid(process, &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    return WEXITSTATUS(status);
  }
  bool is_there(const std::string& name) const {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_, ignored))
      if (entry.path().filename() == name) return true;
    return false;
  }
};

TEST_F(BenchSignal, EndsItAndLeavesNothing) {
  EXPECT_EQ(ended_by({"noise"}, "rank1.log", SIGINT), 130);
  EXPECT_THAT(text_of(folder_ + "/err"), HasSubstr("equigrad bench: stopped by signal 2"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/tmp"));
}

TEST_F(BenchSignal, ARaceTellsTheGroupsThatItHadRun) {
  EXPECT_EQ(ended_by({"race", "--suite", "smoke", "--no-peers", "--no-proof", "--rounds", "1",
                      "--report", folder_ + "/report"},
                     "race.html", SIGTERM),
            143);
  EXPECT_THAT(text_of(folder_ + "/out"),
              AllOf(HasSubstr("| Equigrad stage 3 | "), HasSubstr("# small\n"),
                    ::testing::Not(HasSubstr("# 100 tensors\n"))));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/tmp"));
}

// Five contestants are counted and started in the first life, started again in each other one.
TEST_F(BenchSignal, ARaceTellsTheLivesThatItsGroupHadRun) {
  EXPECT_EQ(ended_by({"race", "--suite", "smoke", "--no-peers", "--no-proof", "--rounds", "1",
                      "--lives", "100", "--filter", "100 tensors", "--report", folder_ + "/report"},
                     "contestant16", SIGTERM),
            143);
  EXPECT_TRUE(is_there("race.html"));
  EXPECT_THAT(text_of(folder_ + "/out"), AllOf(HasSubstr("| Equigrad stage 3 | "),
                                               ContainsRegex("[2-9] lives of 1 round of 2 steps")));
}

}  // namespace
}  // namespace equigrad::conformance::cli
