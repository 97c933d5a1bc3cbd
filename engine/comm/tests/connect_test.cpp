// Ranks find each other: all of them or none.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "conformance/testing/rank_test.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/comm/launch.hpp"

namespace equigrad::comm {
namespace {

using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// Whether a server could listen at `port` now.
bool is_free(int port) {
  const int socket_fd = socket(AF_INET, SOCK_STREAM, 0);
  const int reuse = 1;
  setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool bound =
      bind(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      listen(socket_fd, 1) == 0;
  close(socket_fd);
  return bound;
}

// Ports that are free, and stay so: the kernel gives connections, and sockets that name no port,
// those of its local range, so these lie below it (where it leaves room), others per process.
std::vector<int> free_ports(size_t count) {
  int local_range_begin = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> local_range_begin;
  std::vector<int> ports;
  for (int port = std::max(local_range_begin, 20'000) - getpid() % 8'192; ports.size() < count;)
    if (is_free(--port)) ports.push_back(port);
  return ports;
}

LaunchEnvironment launch_of(const RankContext& context, int port) {
  return {context.rank(), context.world_size(), context.rank(), "127.0.0.1", port, "torchrun"};
}

TEST(Connect, RanksOfALauncherMeetAtItsAddress) {
  const int port = free_ports(1).front();
  EXPECT_EQ(
      on_ranks(2,
               [port](RankContext& context) {
                 const auto group =
                     connect(launch_of(context, port), c10::kCPU, std::chrono::seconds(30));
                 const auto said =
                     exchange(*group, at::full({1}, 5 + context.rank(), at::kLong)).view({-1});
                 EXPECT_TRUE(at::equal(said, at::tensor({5, 6}, at::kLong)));
               }),
      "");
}

TEST(Connect, ARankOnTheCpuNeedsNoLocalRank) {
  const int port = free_ports(1).front();
  EXPECT_EQ(on_ranks(2,
                     [port](RankContext& context) {
                       auto launch = launch_of(context, port);
                       launch.local_rank.reset();
                       const auto group = connect(launch, c10::kCPU, std::chrono::seconds(30));
                       EXPECT_EQ(group->world_size(), 2);
                       try {
                         connect(launch, c10::kCUDA, std::chrono::seconds(30));
                         ADD_FAILURE() << "expected an error";
                       } catch (const Error& error) {
                         EXPECT_THAT(error.what(), HasSubstr("[comm.connect] expected LOCAL_RANK"));
                       }
                     }),
            "");
}

// The lines of this project's that `call` writes to stderr.
template <class Call>
std::vector<std::string> said(Call call) {
  testing::internal::CaptureStderr();
  call();
  std::istringstream all(testing::internal::GetCapturedStderr());
  std::vector<std::string> lines;
  for (std::string line; std::getline(all, line);)
    if (line.starts_with("equigrad:")) lines.push_back(line);
  return lines;
}

// `late` comes after the first notice is due.
std::vector<std::string> said_on(RankContext& context, int late, int port) {
  if (context.rank() == late) std::this_thread::sleep_for(milliseconds(6'500));
  return said([&] { connect(launch_of(context, port), c10::kCPU, std::chrono::seconds(30)); });
}

TEST(Connect, RankZeroSaysWhomItWaitsFor) {
  const int port = free_ports(1).front();
  EXPECT_EQ(on_ranks(3,
                     [port](RankContext& context) {
                       const auto lines = said_on(context, /*late=*/1, port);
                       std::vector<std::string> want;
                       if (context.rank() == 0)
                         want.push_back("equigrad: waiting for rank 1 at 127.0.0.1:" +
                                        std::to_string(port) + " (5 s of 30 s)");
                       EXPECT_EQ(lines, want);
                     }),
            "");
}

TEST(Connect, WhoDoesNotReachTheStoreSaysSo) {
  const int port = free_ports(1).front();
  EXPECT_EQ(on_ranks(2,
                     [port](RankContext& context) {
                       const auto lines = said_on(context, /*late=*/0, port);
                       std::vector<std::string> want;
                       if (context.rank() == 1)
                         want.push_back("equigrad: waiting for rank 0's store at 127.0.0.1:" +
                                        std::to_string(port) + " (5 s of 30 s)");
                       EXPECT_EQ(lines, want);
                     }),
            "");
}

TEST(Connect, TheErrorNamesTheRanksThatNeverCame) {
  const int port = free_ports(1).front();
  EXPECT_EQ(on_ranks(4,
                     [port](RankContext& context) {
                       if (context.rank() % 2 == 1) return;
                       try {
                         connect(launch_of(context, port), c10::kCPU, milliseconds(1'500));
                         ADD_FAILURE() << "expected an error";
                       } catch (const CommunicationError& error) {
                         EXPECT_THAT(error.what(),
                                     AllOf(HasSubstr("/4] [comm.connect] expected 4 ranks at"),
                                           HasSubstr("none of ranks 1, 3 within 1500 ms")));
                       }
                     }),
            "");
}

// Rank 0 serves the store where they meet.
TEST(Connect, RanksOfALauncherThatLeaveAtOnceLetTheOthersConnect) {
  const auto ports = free_ports(40);
  EXPECT_EQ(on_ranks(3,
                     [ports](RankContext& context) {
                       for (const int port : ports)
                         connect(launch_of(context, port), c10::kCPU, std::chrono::seconds(30));
                     }),
            "");
}

// Of this process.
int batch_threads() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    count += sched_getscheduler(std::stoi(thread.path().filename())) == SCHED_BATCH ? 1 : 0;
  return count;
}

TEST(Connect, OnlyTheThreadOfTheSocketsPreemptsNobody) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       const int before = batch_threads();
                       const auto group = connect_gloo(
                           context.rank(), 2, context.directory() + "/batch", milliseconds(30'000));
                       EXPECT_EQ(batch_threads() - before, 1);
                       EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
                     }),
            "");
}

TEST(Connect, APolicyThatTheUserHasChosenStands) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       const sched_param priority{};
                       ASSERT_EQ(sched_setscheduler(0, SCHED_BATCH, &priority), 0);
                       connect({}, c10::kCPU, std::chrono::seconds(5));
                       EXPECT_EQ(sched_getscheduler(0), SCHED_BATCH);
                     }),
            "");
}

TEST(Connect, OneRankNeedsNobody) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       const auto group = connect({}, c10::kCPU, std::chrono::seconds(5));
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
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       for (int round = 0; round < 60; ++round)
                         connect_gloo(context.rank(), 3,
                                      context.directory() + "/brief" + std::to_string(round),
                                      std::chrono::seconds(50));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad::comm
