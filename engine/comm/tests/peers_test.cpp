// Which process a rank is, and that it is known to have ended: killed, or gone; not merely slow.
#include "engine/comm/peers.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "conformance/testing/rank_test.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::comm {
namespace {

using conformance::ranks::Outcome;
using conformance::ranks::RankContext;
using conformance::ranks::run_ranks;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(Peers, OnlyAProcessThatHasEndedIsNamed) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const auto self = introduction(), machine = self.substr(0, self.find(' '));
  std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
  const std::vector<std::string> fields{std::istream_iterator<std::string>(stat), {}};
  const std::string of_child = machine + " " + std::to_string(child) + " " + fields.at(21);
  const std::string number_reused = machine + " " + std::to_string(getpid()) + " 1";
  const Peers peers({self, of_child, "another-machine 1 1", number_reused, ""});
  EXPECT_THAT(peers.ended(), ElementsAre(3));
  kill(child, SIGSTOP);  // slow, not ended
  EXPECT_THAT(peers.ended(), ElementsAre(3));
  kill(child, SIGKILL);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_THAT(peers.ended(), ElementsAre(1, 3));  // nobody has waited for it yet
  waitpid(child, nullptr, 0);
  EXPECT_THAT(peers.ended(), ElementsAre(1, 3));
  EXPECT_THAT(Peers().ended(), IsEmpty());
}

TEST(Peers, RanksThatFillHostsOneAfterTheOtherAreCounted) {
  const auto local = [](const std::string& machines) {
    std::vector<std::string> introductions;
    for (const char machine : machines)
      introductions.push_back(std::string(machine == ' ' ? 0 : 1, machine) + " 17 4");
    return Peers(introductions).local_ranks(static_cast<int>(machines.size()));
  };
  EXPECT_EQ(local("aabbcc"), 2);
  EXPECT_EQ(local("aaabbb"), 3);
  EXPECT_EQ(local("abc"), 1);
  EXPECT_EQ(local("aaaa"), 4) << "one host";
  EXPECT_EQ(local("aabbc"), 5) << "the last one is not full";
  EXPECT_EQ(local("aabbbb"), 6);
  EXPECT_EQ(local("aaaabb"), 6);
  EXPECT_EQ(local("aabccc"), 6);
  EXPECT_EQ(local("abab"), 4) << "round and round";
  EXPECT_EQ(local("aabbaa"), 6);
  EXPECT_EQ(local("aa  "), 4) << "one does not say where it is";
  EXPECT_EQ(Peers().local_ranks(3), 3);
}

TEST(Peers, ACollectiveNamesTheRankThatDiedAmongMany) {
  const auto outcomes = run_ranks(4, [](RankContext& context) {
    const auto group = context.group();
    exchange(*group, at::zeros({1}, at::kLong));
    if (context.rank() == 2) raise(SIGKILL);
    try {
      exchange(*group, at::zeros({1}, at::kLong));
    } catch (const CommunicationError& error) {
      return nlohmann::json(error.lost_rank().value_or(-1));
    }
    return nlohmann::json("no error");
  });
  EXPECT_EQ(outcomes[2].kind, Outcome::Kind::Died);
  for (const int rank : {0, 1, 3})
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].answer, 2) << rank;
}

}  // namespace
}  // namespace equigrad::comm
