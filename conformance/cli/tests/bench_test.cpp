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
  EXPECT_EQ(bench("scale --gpt 1,8,2,8,16 --ranks 4 --stages 0").code, kHeld);
  EXPECT_EQ(bench("race --suite smoke --no-peers --worker /bin/false").code, kInfrastructure);
}

TEST(Bench, AProgramThatIsMissingIsNamedWithHowToBuildIt) {
  const auto missing = result_of([] { return bench_command({"race"}, "/no/such/folder"); });
  EXPECT_EQ(missing.code, kInfrastructure);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("expected to start /no/such/folder/equigrad_perf"),
                                 HasSubstr("No such file"), HasSubstr("--target equigrad_perf")));
}

TEST(Bench, ASignalReachesTheProgram) {
  const char* path = program();
  const pid_t process = fork();
  if (process == 0) {
    if (freopen("/dev/null", "w", stdout) != nullptr) execl(path, path, "bench", "noise", nullptr);
    _exit(127);
  }
  const std::string link = "/proc/" + std::to_string(process) + "/exe";
  std::error_code ignored;
  for (int tries = 0; tries < 1500; ++tries) {
    if (std::filesystem::read_symlink(link, ignored).filename() == "equigrad_perf") break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(std::filesystem::read_symlink(link, ignored).filename(), "equigrad_perf");
  kill(process, SIGTERM);
  int status = 0;
  waitpid(process, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

}  // namespace
}  // namespace equigrad::conformance::cli
