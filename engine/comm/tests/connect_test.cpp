// Ranks find each other: all of them or none.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "conformance/testing/error_of.hpp"
#include "conformance/testing/port.hpp"
#include "conformance/testing/rank_test.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/comm/launch.hpp"
#include "engine/comm/mesh.hpp"

namespace equigrad::comm {
namespace {

using conformance::Port;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// Limits for what a loaded machine delays; none is waited for where all goes well.
constexpr std::chrono::minutes kLong{2};
constexpr conformance::ranks::Options kPatient{.timeout = std::chrono::minutes(5)};

// Whether a server listens at a port of this machine: in a line of /proc/net/tcp the second word is
// the address, the fourth the state.
bool is_served(int port) {
  std::ostringstream wanted;
  wanted << ':' << std::uppercase << std::hex << std::setw(4) << std::setfill('0') << port;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream table(path);
    std::string line, number, local, remote, state;
    for (std::getline(table, line); std::getline(table, line);)
      if (std::istringstream(line) >> number >> local >> remote >> state;
          local.ends_with(wanted.str()) && state == "0A")
        return true;
  }
  return false;
}

// What others bring about, in a time that says nothing.
template <class Condition>
void wait_until(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error("expected what another rank does, got nothing in two minutes");
    std::this_thread::sleep_for(milliseconds(20));
  }
}

LaunchEnvironment launch_of(const RankContext& context, int port) {
  return {context.rank(), context.world_size(), context.rank(), "127.0.0.1", port, "torchrun"};
}

// One rank and two of the same launch; the two are a tensor group.
TEST(Connect, PartsOfALaunchAreMeshesOfTheirOwn) {
  const Port reserved;
  const int port = reserved.number();
  EXPECT_EQ(on_ranks(
                3,
                [port](RankContext& context) {
                  const auto launch = launch_of(context, port);
                  const int rank = context.rank(), first = rank == 0 ? 0 : 1;
                  const MeshSizes sizes{.tensor = rank == 0 ? 1 : 2};
                  const auto all = connect(launch, c10::kCPU, kLong);
                  const auto part = connect_part(launch, c10::kCPU, kLong, first, sizes);
                  EXPECT_EQ(part.world()->rank(), rank - first);
                  EXPECT_EQ(part.world()->world_size(), sizes.tensor);
                  EXPECT_EQ(part.tensor() != nullptr, rank > 0);
                  const auto heard = exchange(*part.world(), at::full({1}, rank, at::kLong));
                  for (int of = 0; of < sizes.tensor; ++of)
                    EXPECT_EQ(heard[of].item<int64_t>(), first + of);
                  EXPECT_EQ(exchange(*all, at::full({1}, rank, at::kLong)).size(0), 3);
                  EXPECT_THAT(conformance::error_of([&] {
                                connect_part(launch, c10::kCPU, kLong, (rank + 1) % 3, MeshSizes{});
                              }),
                              HasSubstr("expected ranks of 3 that this one is of"));
                },
                kPatient),
            "");
}

TEST(Connect, RanksOfALauncherMeetAtItsAddress) {
  const Port reserved;
  const int port = reserved.number();
  EXPECT_EQ(
      on_ranks(2,
               [port](RankContext& context) {
                 const auto group = connect(launch_of(context, port), c10::kCPU, kLong);
                 const auto said =
                     exchange(*group, at::full({1}, 5 + context.rank(), at::kLong)).view({-1});
                 EXPECT_TRUE(at::equal(said, at::tensor({5, 6}, at::kLong)));
               }),
      "");
}

TEST(Connect, ARankOnTheCpuNeedsNoLocalRank) {
  const Port reserved;
  const int port = reserved.number();
  EXPECT_EQ(on_ranks(2,
                     [port](RankContext& context) {
                       auto launch = launch_of(context, port);
                       launch.local_rank.reset();
                       const auto group = connect(launch, c10::kCPU, kLong);
                       EXPECT_EQ(group->world_size(), 2);
                       try {
                         connect(launch, c10::kCUDA, kLong);
                         ADD_FAILURE() << "expected an error";
                       } catch (const Error& error) {
                         EXPECT_THAT(error.what(), HasSubstr("[comm.connect] expected LOCAL_RANK"));
                       }
                     }),
            "");
}

// The lines of this project's that a rank has written to stderr.
std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream all(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(all, line);)
    if (line.starts_with("equigrad:")) lines.push_back(line);
  return lines;
}

// While it lives, stderr of this process is a file.
class StderrTo {
 public:
  explicit StderrTo(const std::string& path) : kept_(dup(STDERR_FILENO)) {
    const int file = open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(file, STDERR_FILENO);
    close(file);
  }
  ~StderrTo() {
    dup2(kept_, STDERR_FILENO);
    close(kept_);
  }
  StderrTo(const StderrTo&) = delete;
  StderrTo& operator=(const StderrTo&) = delete;

 private:
  int kept_;
};

// What each rank says of a meeting to which `late` comes once `speaker` has said `words`.
std::vector<std::string> said_on(RankContext& context, int late, int speaker,
                                 const std::string& words, int port) {
  const auto file_of = [&](int rank) {
    return context.directory() + "/stderr" + std::to_string(rank);
  };
  if (context.rank() == late)
    wait_until([&] {
      const auto lines = lines_of(file_of(speaker));
      return std::any_of(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.starts_with(words); });
    });
  {
    const StderrTo file(file_of(context.rank()));
    connect(launch_of(context, port), c10::kCPU, kLong);
  }
  return lines_of(file_of(context.rank()));
}

TEST(Connect, RankZeroSaysWhomItWaitsFor) {
  const Port reserved;
  const int port = reserved.number();
  const auto words = "equigrad: waiting for rank 1 at 127.0.0.1:" + std::to_string(port) + " (";
  EXPECT_EQ(on_ranks(
                3,
                [&](RankContext& context) {
                  const auto lines = said_on(context, /*late=*/1, /*speaker=*/0, words, port);
                  // Nobody else does, however long it takes them to reach the store.
                  if (context.rank() == 0)
                    EXPECT_THAT(lines, Contains(AllOf(StartsWith(words), EndsWith(" of 120 s)"))));
                  else
                    EXPECT_THAT(lines, Each(HasSubstr("for rank 0's store")));
                },
                kPatient),
            "");
}

TEST(Connect, WhoDoesNotReachTheStoreSaysSo) {
  const Port reserved;
  const int port = reserved.number();
  const auto words =
      "equigrad: waiting for rank 0's store at 127.0.0.1:" + std::to_string(port) + " (";
  EXPECT_EQ(on_ranks(
                2,
                [&](RankContext& context) {
                  const auto lines = said_on(context, /*late=*/0, /*speaker=*/1, words, port);
                  // Rank 0 may wait in its turn: c10d asks again for a store ever more rarely.
                  if (context.rank() == 1)
                    EXPECT_THAT(lines, Each(AllOf(StartsWith(words), EndsWith(" of 120 s)"))));
                },
                kPatient),
            "");
}

// What ranks 0 and 2 of 4 are told when 1 and 3 do not come.
std::array<std::string, 2> told_of_two(milliseconds timeout) {
  const Port reserved;
  const int port = reserved.number();
  const auto outcomes = conformance::ranks::run_ranks(
      4,
      [=](RankContext& context) -> nlohmann::json {
        if (context.rank() % 2 == 1) return "";
        if (context.rank() == 2) wait_until([&] { return is_served(port); });
        try {
          connect(launch_of(context, port), c10::kCPU, timeout);
          return "connected";
        } catch (const CommunicationError& error) {
          return error.what();
        }
      },
      kPatient);
  EXPECT_EQ(conformance::ranks::failures(outcomes), "");
  return {outcomes[0].answer.dump(), outcomes[2].answer.dump()};
}

TEST(Connect, TheErrorNamesTheRanksThatNeverCame) {
  for (const int timeout_ms : {1'500, 6'000, 24'000, 60'000}) {
    const auto told = told_of_two(milliseconds(timeout_ms));
    // On a loaded machine rank 2 may come too late itself.
    if (timeout_ms < 60'000 && told[0].find("ranks 1, 2, 3") != std::string::npos) continue;
    EXPECT_THAT(
        told,
        Each(AllOf(HasSubstr("/4] [comm.connect] expected 4 ranks at"),
                   HasSubstr("none of ranks 1, 3 within " + std::to_string(timeout_ms) + " ms"))));
    break;
  }
}

TEST(Connect, AStoreThatNeverComesIsACommunicationError) {
  const Port reserved;
  const int port = reserved.number();
  EXPECT_EQ(on_ranks(2,
                     [port](RankContext& context) {
                       if (context.rank() == 0) return;
                       try {
                         connect(launch_of(context, port), c10::kCPU, milliseconds(300));
                         ADD_FAILURE() << "expected an error";
                       } catch (const CommunicationError& error) {
                         EXPECT_THAT(error.what(),
                                     AllOf(HasSubstr("[rank 1/2] [comm.connect] expected a store"),
                                           HasSubstr("See that rank 0 runs")));
                       }
                     }),
            "");
}

// Rank 0 serves the store where they meet.
TEST(Connect, RanksOfALauncherThatLeaveAtOnceLetTheOthersConnect) {
  const std::vector<Port> ports(40);
  EXPECT_EQ(on_ranks(
                3,
                [&ports](RankContext& context) {
                  for (const Port& port : ports) {
                    // Who finds no store asks again a second later.
                    if (context.rank() != 0) wait_until([&] { return is_served(port.number()); });
                    connect(launch_of(context, port.number()), c10::kCPU, kLong);
                  }
                },
                kPatient),
            "");
}

// Of this process.
int batch_threads() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    count += sched_getscheduler(std::stoi(thread.path().filename())) == SCHED_BATCH ? 1 : 0;
  return count;
}

TEST(Connect, OnlyTheThreadsOfTheSocketsAndTheRingsPreemptNobody) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const int before = batch_threads();
                       const auto group =
                           connect_gloo(context.rank(), 2, context.directory() + "/batch", kLong);
                       EXPECT_EQ(batch_threads() - before, 2);
                       EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
                     }),
            "");
}

TEST(Connect, APolicyThatTheUserHasChosenStands) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       const sched_param priority{};
                       ASSERT_EQ(sched_setscheduler(0, SCHED_BATCH, &priority), 0);
                       connect({}, c10::kCPU, kLong);
                       EXPECT_EQ(sched_getscheduler(0), SCHED_BATCH);
                     }),
            "");
}

TEST(Connect, OneRankNeedsNobody) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       const auto group = connect({}, c10::kCPU, kLong);
                       EXPECT_EQ(group->world_size(), 1);
                       EXPECT_TRUE(at::equal(exchange(*group, at::full({1}, 3, at::kLong)),
                                             at::full({1, 1}, 3)));
                     }),
            "");
}

TEST(Connect, ARankThatDoesNotComeIsACommunicationError) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       if (context.rank() == 1) return;
                       try {
                         connect_gloo(0, 2, context.directory() + "/alone", milliseconds(300));
                         ADD_FAILURE() << "expected an error";
                       } catch (const CommunicationError& error) {
                         EXPECT_THAT(error.what(),
                                     AllOf(HasSubstr("[rank 0/2] [comm.connect] expected 2 ranks"),
                                           HasSubstr("no step longer than 300 ms")));
                       }
                     }),
            "");
}

TEST(Connect, ARankThatLeavesAtOnceLetsTheOthersConnect) {
  EXPECT_EQ(on_ranks(
                3,
                [](RankContext& context) {
                  for (int round = 0; round < 60; ++round)
                    connect_gloo(context.rank(), 3,
                                 context.directory() + "/brief" + std::to_string(round), kLong);
                },
                kPatient),
            "");
}

}  // namespace
}  // namespace equigrad::comm
