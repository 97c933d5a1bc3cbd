// The line of a campaign on a terminal.
#include "conformance/campaigns/progress.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <regex>
#include <thread>

#include "conformance/campaigns/fault_panel.hpp"
#include "conformance/campaigns/fault_run.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What `work` writes to stderr where that is a terminal. A process of its own reads it meanwhile: a
// thread must not be there when ranks are forked, and a terminal that nobody reads is full soon.
std::string on_a_terminal(const std::function<void()>& work, unsigned short columns = 200) {
  std::string path = testing::TempDir() + "terminal-XXXXXX";
  const int file = mkstemp(path.data());
  const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  EXPECT_TRUE(file >= 0 && master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
  const pid_t reader = fork();
  if (reader == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
      char bytes[4096];
      const ssize_t n = read(master, bytes, sizeof bytes);
      if (n > 0 && write(file, bytes, static_cast<std::size_t>(n)) != n) _exit(1);
      if (n <= 0 && lseek(file, 0, SEEK_CUR) > 0) _exit(0);  // the terminal is closed again
      if (n <= 0) usleep(1'000);                             // it is not open yet
    }
  }
  const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
  const int before = dup(STDERR_FILENO);
  dup2(terminal, STDERR_FILENO);
  close(terminal);
  setenv("TERM", "xterm", 1);
  work();
  dup2(before, STDERR_FILENO);
  close(before);
  close(master);
  int status = 0;
  waitpid(reader, &status, 0);
  EXPECT_EQ(status, 0);
  std::ifstream read_back(path);
  const std::string text{std::istreambuf_iterator<char>(read_back), {}};
  close(file);
  unlink(path.c_str());
  return text;
}

void wait_for_the_next_line() { std::this_thread::sleep_for(std::chrono::milliseconds(120)); }

TEST(Progress, WhatGoesWrongIsNamedAtOnceUpToALimit) {
  const auto text = on_a_terminal([] {
    Progress cases(1'000, false);
    for (int i = 0; i < 30; ++i) cases.name_wrong("failed  case" + std::to_string(i));
  });
  EXPECT_THAT(text, AllOf(HasSubstr("\x1b[2Kfailed  case0\r\n"), HasSubstr("failed  case19\r\n"),
                          Not(HasSubstr("case20")), HasSubstr("more at the end")));
  EXPECT_EQ(text.find("more at the end"), text.rfind("more at the end"));
  const auto quiet = on_a_terminal([] {
    Progress cases(1'000, true);
    cases.name_wrong("failed  case0");
    std::fprintf(stderr, "end");
  });
  EXPECT_EQ(quiet, "end");
}

// Seconds that have passed and that are left in a line; -1 where it does not say.
std::pair<int, int> times_in(const std::string& line) {
  std::smatch found;
  if (std::regex_search(line, found, std::regex(R"(, (\d+) s, about (\d+) s left)")))
    return {std::stoi(found[1]), std::stoi(found[2])};
  if (std::regex_search(line, found, std::regex(R"(, (\d+) s)"))) return {std::stoi(found[1]), -1};
  return {-1, -1};
}

// What comes before the first case takes no part in it.
TEST(Progress, TimeLeftIsThatOfCases) {
  const auto before = on_a_terminal([] {
    Progress cases(1'000, false);
    wait_for_the_next_line();
    cases.update(0, 0, "");
  });
  EXPECT_THAT(before, AllOf(HasSubstr("0/1000 cases"), Not(HasSubstr("left"))));
  const auto after = on_a_terminal([] {
    Progress cases(1'000, false);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    cases.update(0, 0, "");
    wait_for_the_next_line();
    cases.update(500, 0, "");  // so many in a tenth of a second
  });
  EXPECT_THAT(after, HasSubstr("500/1000 cases, 0 failed, "));
  const auto [elapsed_s, left_s] = times_in(after);
  EXPECT_GE(elapsed_s, 2);
  EXPECT_LT(left_s, elapsed_s - 1);
}

TEST(Progress, SaysWhatItCounts) {
  const auto text = on_a_terminal([] {
    Progress cases(4, false), faults(5, false, "faults", "caught"), quiet(7, true);
    wait_for_the_next_line();
    cases.update(2, 1, "it");
    faults.update(3, 2, "");
    quiet.update(6, 0, "");
  });
  EXPECT_THAT(text, AllOf(HasSubstr("2/4 cases, 1 failed, "), HasSubstr("left  it"),
                          HasSubstr("3/5 faults, 2 caught, "), Not(HasSubstr("/7"))));
}

TEST(Progress, ThatEndsWithTheTimeSaysWhatIsLeftOfIt) {
  const auto text = on_a_terminal([] {
    Progress timed(0, false), open(0, false, "tried"), either(1'000'000, false, "of many");
    timed.ends_after(5000);
    either.ends_after(3000);
    wait_for_the_next_line();
    timed.update(289, 0, "");
    open.update(7, 0, "");
    either.update(1, 0, "");
  });
  EXPECT_THAT(text, AllOf(HasSubstr("289 cases, 0 failed, "), HasSubstr("7 tried, 0 failed, ")));
  const auto of = [&](const std::string& begin) {
    const auto at = text.find(begin);
    return times_in(text.substr(at, text.find('\r', at) - at));
  };
  const auto timed = of("289 cases"), open = of("7 tried"), either = of("1/1000000 of many");
  EXPECT_THAT(timed.first + timed.second, AnyOf(4999, 5000, 5001));  // each is rounded
  EXPECT_EQ(open.second, -1) << "nobody knows";
  EXPECT_THAT(either.first + either.second, AnyOf(2999, 3000, 3001));
}

// A longer line would begin a second row, of which the next line leaves the first.
TEST(Progress, TheLineIsShorterThanTheTerminalIsWide) {
  const auto text = on_a_terminal(
      [] {
        Progress cases(5872, false);
        wait_for_the_next_line();
        cases.update(3000, 12, std::string(60, 'x'));
      },
      60);
  const std::string clear = "\r\x1b[2K";
  ASSERT_TRUE(text.starts_with(clear));
  EXPECT_EQ(text.size() - clear.size(), 59u) << text;
  EXPECT_THAT(text, HasSubstr("3000/5872 cases, 12 failed, "));
}

TEST(Progress, PartsThatFollowOneAnotherAreCountedOn) {
  const auto text = on_a_terminal([] {
    Progress cases(10, false);
    cases.end_part(4, 1);
    wait_for_the_next_line();
    cases.update(2, 1, "");
  });
  EXPECT_THAT(text, HasSubstr("6/10 cases, 2 failed, "));
}

// The second fault takes long enough for a line after the first.
TEST(Progress, OfFaultsCountsThoseThatAreCaught) {
  FaultOptions options;
  options.faults = {"averaged_twice", "word_lost"};
  options.panel = {fault_panel().front()};
  options.covering_only = true;
  options.data = find_data("", false);
  options.slots = 1;
  options.serve = [](const nlohmann::json& request, ranks::RankContext& context) {
    if (request.value("fault", "") == "word_lost")
      std::this_thread::sleep_for(std::chrono::seconds(1));
    return serve(request, context);
  };
  reports::KillMatrix matrix;
  const auto text = on_a_terminal([&] { matrix = run_faults(options); });
  EXPECT_EQ(counts(matrix, reports::Faults::All).caught, 2);
  EXPECT_THAT(text, AllOf(HasSubstr("1/2 faults, 1 caught, "), Not(HasSubstr("1 failed"))));
}

}  // namespace
}  // namespace equigrad::conformance
