// 16. What carries an engine's bytes: launches, collectives, and ranks that are not there.
#include <ATen/ATen.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/comm/launch.hpp"
#include "engine/comm/peers.hpp"
#include "engine/comm/roll_call.hpp"
#include "engine/comm/wait_notice.hpp"

namespace equigrad::conformance::contract {
namespace {

using comm::Communicator;
using comm::LaunchEnvironment;
using std::chrono::milliseconds;

// "RANK=1 WORLD_SIZE=2", asked for by name.
comm::GetEnvironment environment_of(const std::string& text) {
  std::map<std::string, std::string> all;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    all[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  return [all](const char* name) -> const char* {
    const auto found = all.find(name);
    return found == all.end() ? nullptr : found->second.c_str();
  };
}

const std::string kTorchrun = "RANK=1 WORLD_SIZE=3 ",
                  kMeetingAt = "MASTER_ADDR=a MASTER_PORT=65535 ",
                  kMpirun =
                      "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 "
                      "OMPI_COMM_WORLD_LOCAL_RANK=2 ",
                  kSlurm = "SLURM_PROCID=1 SLURM_NTASKS=3 SLURM_LOCALID=0 ",
                  kPmi = "PMI_RANK=1 PMI_SIZE=3 ";

struct Launched {
  std::string environment;
  LaunchEnvironment want;
};

std::vector<Launched> launches() {
  const auto of = [](std::optional<int> local, const std::string& source) {
    return LaunchEnvironment{1, 3, local, "a", 65535, source};
  };
  const LaunchEnvironment alone{0, 1, 0, "", 0, "single process"};
  constexpr int kMost = 1 << 20;
  return {
      {"", alone},
      {"MASTER_ADDR=a MASTER_PORT=1", {0, 1, 0, "a", 1, "single process"}},
      {"MPI_LOCALRANKID=1", alone},
      {"SLURM_NTASKS=4 SLURM_LOCALID=1", alone},
      {"RANK=0 WORLD_SIZE=1", {0, 1, std::nullopt, "", 0, "torchrun"}},
      {"RANK=1048575 WORLD_SIZE=1048576 " + kMeetingAt,
       {kMost - 1, kMost, std::nullopt, "a", 65535, "torchrun"}},
      {kTorchrun + kMeetingAt, of(std::nullopt, "torchrun")},
      {kTorchrun + kMeetingAt + "LOCAL_RANK=2", of(2, "torchrun")},
      {kMpirun + kMeetingAt, of(2, "mpirun")},
      {kSlurm + kMeetingAt, of(0, "slurm")},
      {kPmi + kMeetingAt, of(1, "pmi")},
      {kPmi + kMeetingAt + "MPI_LOCALRANKID=0", of(0, "pmi")},
      {kTorchrun + kMpirun + kMeetingAt, of(2, "torchrun")},
      {kTorchrun + kSlurm + kMeetingAt, of(0, "torchrun")},
      {kTorchrun + kPmi + kMeetingAt, of(std::nullopt, "torchrun")},
      {kTorchrun + kPmi + kMeetingAt + "LOCAL_RANK=2 MPI_LOCALRANKID=0", of(2, "torchrun")},
      {kTorchrun + kMeetingAt + "TORCHELASTIC_RUN_ID=x SLURM_PROCID=0 SLURM_NTASKS=1",
       of(std::nullopt, "torchrun")},
      {kMpirun + kMeetingAt + "SLURM_PROCID=0 SLURM_NTASKS=1", of(2, "mpirun")},
      {kMpirun + kPmi + kMeetingAt, of(2, "mpirun")},
      {kSlurm + kPmi + kMeetingAt, of(0, "slurm")},
  };
}

using ToldOfLaunch = std::vector<std::pair<std::string, std::string>>;

ToldOfLaunch parts_of_launches() {
  const auto parts = [](const std::string& present, const std::string& missing) {
    return "[launch] expected " + present + " and " + missing + " together, got only " + present +
           ". Set both, or unset both.";
  };
  const std::string mpi = "OMPI_COMM_WORLD_", place = ". Export rank 0's host name";
  return {
      {"RANK=0", parts("RANK", "WORLD_SIZE")},
      {"WORLD_SIZE=2", parts("WORLD_SIZE", "RANK")},
      {"LOCAL_RANK=0", parts("LOCAL_RANK", "RANK")},
      {mpi + "LOCAL_RANK=0", parts(mpi + "LOCAL_RANK", mpi + "RANK")},
      {mpi + "RANK=0 " + mpi + "SIZE=1", parts(mpi + "RANK", mpi + "LOCAL_RANK")},
      {"SLURM_PROCID=0 SLURM_NTASKS=1", parts("SLURM_PROCID", "SLURM_LOCALID")},
      {"SLURM_PROCID=0", parts("SLURM_PROCID", "SLURM_NTASKS")},
      {"PMI_SIZE=2", parts("PMI_SIZE", "PMI_RANK")},
      {kTorchrun, "for 3 ranks, got no MASTER_ADDR and no MASTER_PORT" + place},
      {kTorchrun + "MASTER_ADDR=a", "got \"a\" and no MASTER_PORT" + place},
      {kTorchrun + "MASTER_PORT=7",
       "expected MASTER_ADDR and MASTER_PORT for 3 ranks, got no "
       "MASTER_ADDR and 7"},
      {kTorchrun + "MASTER_ADDR= MASTER_PORT=7", "got \"\" and 7"},
  };
}

ToldOfLaunch numbers_of_launches() {
  const auto number = [](const std::string& name, int least, int most, const std::string& got) {
    return "expected " + name + " to be a whole number from " + std::to_string(least) + " to " +
           std::to_string(most) + ", got \"" + got +
           "\". Correct it, or unset it to run as one rank.";
  };
  const auto conflict = [](const std::string& first, const std::string& second) {
    return "expected one answer from the launchers, got " + first + " and " + second +
           ". Unset the one that is left over from another launch.";
  };
  ToldOfLaunch all = {
      {"RANK=0 WORLD_SIZE=0", number("WORLD_SIZE", 1, 1 << 20, "0")},
      {"RANK=0 WORLD_SIZE=1048577", number("WORLD_SIZE", 1, 1 << 20, "1048577")},
      {"RANK=0 WORLD_SIZE=99999999999", number("WORLD_SIZE", 1, 1 << 20, "99999999999")},
      {"MASTER_PORT=0", number("MASTER_PORT", 1, 65535, "0")},
      {"MASTER_PORT=65536", number("MASTER_PORT", 1, 65535, "65536")},
      {kTorchrun + "LOCAL_RANK=3", number("LOCAL_RANK", 0, 2, "3")},
      {kTorchrun + "LOCAL_RANK=-1", number("LOCAL_RANK", 0, 2, "-1")},
      {kMpirun + kMeetingAt + "PMI_RANK=1 PMI_SIZE=2",
       conflict("OMPI_COMM_WORLD_SIZE=3", "PMI_SIZE=2")},
      {kTorchrun + kMeetingAt + "PMI_RANK=2 PMI_SIZE=3", conflict("RANK=1", "PMI_RANK=2")},
      {kTorchrun + kMeetingAt + kMpirun + "LOCAL_RANK=1",
       conflict("LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_RANK=2")},
      {kTorchrun + kMeetingAt + kSlurm + "LOCAL_RANK=1",
       conflict("LOCAL_RANK=1", "SLURM_LOCALID=0")},
  };
  for (const std::string wrong : {"", "3", "-1", "1x", "x", "0.5"})
    all.push_back({"WORLD_SIZE=3 RANK=" + wrong, number("RANK", 0, 2, wrong)});
  return all;
}

void check_one_process(Play& play) {
  const auto refused = [](const std::string& variable) {
    return "expected one process of it, which starts its own ranks, got " + variable +
           ". Start it without a launcher, or unset the variable";
  };
  const auto ask = [](const std::string& text) {
    comm::expect_one_process("it", environment_of(text));
  };
  for (const std::string variable : {"WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=3", "PMI_SIZE=17"})
    play.refuse(refused(variable), [&] { ask(variable); });
  play.refuse(refused("SLURM_NTASKS=2"), [&] { ask("SLURM_NTASKS=2 SLURM_PROCID=0"); });
  play.refuse(refused("PMI_SIZE=2"), [&] { ask("WORLD_SIZE=1 PMI_SIZE=2"); });
  for (const std::string text : {"", "WORLD_SIZE=1", "SLURM_NTASKS=4", "WORLD_SIZE=x"}) ask(text);
}

void reads_launches(Play& play) {
  if (play.group()) {
    for (const auto& [environment, want] : launches()) {
      const auto got = comm::read_launch_environment(environment_of(environment));
      play.check("what \"" + environment + "\" says is read", got == want && !play.fault());
    }
    for (const auto& all : {parts_of_launches(), numbers_of_launches()})
      for (const auto& [environment, told] : all)
        play.refuse(told, [&text = environment] {
          (void)comm::read_launch_environment(environment_of(text));
        });
    check_one_process(play);
  }
  train_along(play);
}

// Element i of the row that rank `from` has for rank `to`.
at::Tensor row_sent(int64_t from, int64_t to, int64_t numel) {
  return at::arange(numel, at::kLong).add(1'000'000 * from + 1'000 * to).to(at::kDouble);
}

template <class Row>
at::Tensor rows_of(int world, Row one) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world; ++rank) all.push_back(one(rank));
  return at::stack(all);
}

void check_rows(Play& play, Communicator& group, int64_t numel) {
  const int rank = group.rank(), world = group.world_size();
  const std::string of = " of " + std::to_string(numel);
  const auto mine = rows_of(world, [&](int to) { return row_sent(rank, to, numel); });
  const auto theirs =
      rows_of(world, [&](int from) { return row_sent(from, rank, numel); }).flatten();
  const auto got = at::empty_like(theirs), later = at::empty_like(theirs);
  group.all_to_all(got, mine.flatten())->wait();
  play.check("all_to_all" + of, at::equal(got, theirs));
  const auto apart = at::full({world, numel + 5}, -1, at::kDouble);
  apart.narrow(1, 2, numel).copy_(mine);
  group.all_to_all(later, apart.narrow(1, 2, numel))->wait();
  play.check("all_to_all of rows that lie apart" + of, at::equal(later, theirs));
  const auto own = row_sent(rank, 0, numel);
  const auto wholes = rows_of(world, [&](int from) { return row_sent(from, 0, numel); }).flatten();
  group.all_to_all(later, own.expand({world, numel}))->wait();
  play.check("all_to_all of one row" + of, at::equal(later, wholes));
  got.fill_(-1), later.fill_(-1);
  const auto first = group.all_gather(got, own);
  const auto second = group.all_to_all(later, mine.flatten());
  second->wait(), first->wait();
  play.check("two under way" + of, at::equal(got, wholes) && at::equal(later, theirs));
  if (!group.trades()) return;
  const auto other = at::empty({numel}, at::kDouble);
  group.trade(other, mine[1 - rank])->wait();
  play.check("a trade" + of, at::equal(other, row_sent(1 - rank, rank, numel)));
}

void check_others(Play& play, Communicator& group, int64_t numel) {
  const int rank = group.rank(), world = group.world_size();
  const std::string of = " of " + std::to_string(numel);
  for (int root = 0; root < world; ++root) {
    const auto sent = row_sent(rank, rank, numel);
    group.broadcast(sent, root)->wait();
    play.check("a broadcast" + of, at::equal(sent, row_sent(root, root, numel)));
  }
  const auto mine = rows_of(world, [&](int to) { return row_sent(rank, to, numel); }).flatten();
  const auto sum = rows_of(world, [&](int to) {
    return rows_of(world, [&](int from) { return row_sent(from, to, numel); }).sum(0);
  });
  const auto all = mine.clone(), slice = at::empty({numel}, at::kDouble);
  group.all_reduce_sum(all)->wait();
  group.reduce_scatter_sum(slice, mine)->wait();
  play.check("sums" + of, at::equal(all, sum.flatten()) && at::equal(slice, sum[rank]));
  const auto words = row_sent(rank, 0, numel).to(at::kLong);
  const auto said =
      rows_of(world, [&](int from) { return row_sent(from, 0, numel); }).to(at::kLong);
  play.check("words" + of, at::equal(comm::exchange(group, words), said));
  comm::Exchange one(group, words), two(group, words + 1);
  play.check("words of two", at::equal(one.wait(), said) && at::equal(two.wait(), said + 1));
}

// Carries nothing.
class Mute final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  c10::Device device() const override { return at::kCPU; }
  comm::PendingPtr all_to_all(const at::Tensor&, const at::Tensor&) override { return {}; }
  comm::PendingPtr all_gather(const at::Tensor&, const at::Tensor&) override { return {}; }
  comm::PendingPtr all_reduce_sum(const at::Tensor&) override { return {}; }
  comm::PendingPtr reduce_scatter_sum(const at::Tensor&, const at::Tensor&) override { return {}; }
  comm::PendingPtr broadcast(const at::Tensor&, int) override { return {}; }
};

void carries(Play& play) {
  if (const auto group = play.group()) {
    const auto& context = play.context();
    play.check("ranks are those of the place", group->rank() == context.rank &&
                                                   group->world_size() == context.world &&
                                                   group->device().is_cpu() && !play.fault());
    play.check("two ranks trade, others do not", group->trades() == (context.world == 2));
    play.check("words go the same way", &group->words() == group.get());
    for (const int64_t numel : {1, 3, 64, 1027}) {
      check_rows(play, *group, numel);
      check_others(play, *group, numel);
    }
    play.refuse("words are int64", [&] { comm::exchange(*group, at::zeros({1})); });
    Mute mute;
    play.check("one that does not say so does not trade",
               !mute.trades() && &mute.words() == &mute && mute.companion() == nullptr);
    play.refuse("expected a communicator that trades, got one that does not. Ask trades() before",
                [&] { mute.trade(at::zeros({1}), at::zeros({1})); });
  }
  train_along(play);
}

// What a board has been told, kept by whoever still asks it.
struct Notes {
  std::mutex mutex;
  std::vector<std::string> written;
};

// Its patience doubles until it is answered in time, on a machine that is busy with other things.
void check_silent(Play& play) {
  const auto notes = std::make_shared<Notes>();
  const comm::Board answers{
      [notes](const std::string& key) {
        const std::lock_guard lock(notes->mutex);
        notes->written.push_back(key);
      },
      [](const std::string& key) { return key.back() == '0' || key.back() == '3'; }};
  std::optional<std::vector<int>> silent;
  for (int patience = 10; !silent && patience < 3000; patience *= 2)
    silent = comm::RollCall(answers, 2, 5, milliseconds(patience)).silent();
  play.check("ranks without a word are told", silent == std::vector<int>({1, 4}));
  const std::lock_guard lock(notes->mutex);
  play.check("the rank that asks has said so",
             !notes->written.empty() && notes->written[0].back() == '2');
}

// Boards that answer, break, or never answer.
void check_roll_call(Play& play) {
  check_silent(play);
  const comm::Board full{[](const std::string&) {}, [](const std::string&) { return true; }};
  const auto begin = std::chrono::steady_clock::now();
  play.check("where all have a word nobody is silent, and nobody is waited for",
             comm::RollCall(full, 0, 3, std::chrono::hours(1)).silent() == std::vector<int>() &&
                 std::chrono::steady_clock::now() - begin < std::chrono::minutes(5));
  const comm::Board broken{[](const std::string&) { throw std::runtime_error("broken"); },
                           [](const std::string&) { return true; }};
  play.check("a board that breaks is no answer",
             !comm::RollCall(broken, 0, 3, milliseconds(50)).silent());
  const auto over = std::make_shared<std::promise<void>>();
  const comm::Board mute{[done = over->get_future().share()](const std::string&) { done.wait(); },
                         [](const std::string&) { return true; }};
  play.check("nor is one that does not answer",
             !comm::RollCall(mute, 0, 3, milliseconds(10)).silent());
  over->set_value();
  play.check("without a board nobody is asked", comm::RollCall().silent() == std::vector<int>() &&
                                                    !comm::RollCall() &&
                                                    comm::RollCall(full, 0, 3, milliseconds(1)));
}

void check_peers(Play& play) {
  std::istringstream words(comm::introduction());
  std::string machine, process, started;
  words >> machine >> process >> started;
  play.check("an introduction is of this process", process == std::to_string(getpid()));
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t ended = {};
  waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  const auto gone = std::to_string(child);
  std::ifstream stat("/proc/" + gone + "/stat");
  std::string start;
  for (int word = 0; word < 22; ++word) stat >> start;  // its name has no blank
  const std::string here = machine + " ", now = " " + started;
  const comm::Peers peers({here + process + now, here + process + now + "1", here + gone + " 1",
                           "elsewhere " + process + " 1", here + process, "", here + "0 1"});
  const comm::Peers dead({here + process + now, here + gone + " " + start});
  play.check("who has ended is told by its number and its start",
             peers.ended() == std::vector<int>({1, 2, 6}));
  play.check("one that nobody has waited for has ended too", dead.ended() == std::vector<int>({1}));
  waitpid(child, nullptr, 0);
  play.check("nobody is known to who knows nobody",
             comm::Peers().ended().empty() && !comm::Peers().roll_call());
}

// A port that is free, and stays so while this lives: nobody listens at it.
class UnservedPort {
 public:
  UnservedPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(socket_, reinterpret_cast<sockaddr*>(&at), sizeof at);
    socklen_t length = sizeof at;
    getsockname(socket_, reinterpret_cast<sockaddr*>(&at), &length);
    number_ = ntohs(at.sin_port);
  }
  ~UnservedPort() { close(socket_); }
  UnservedPort(const UnservedPort&) = delete;
  UnservedPort& operator=(const UnservedPort&) = delete;
  int number() const { return number_; }

 private:
  int socket_, number_;
};

// Every rank by itself: the others of its world never come.
void check_nobody_comes(Play& play) {
  const UnservedPort port;
  const std::string place = "127.0.0.1:" + std::to_string(port.number());
  play.refuse(
      "[rank 1/2] [comm.connect] expected a store at " + place + " (from srun), got: ", [&] {
        comm::connect({1, 2, 0, "127.0.0.1", port.number(), "srun"}, at::kCPU, milliseconds(20));
      });
  play.refuse("expected LOCAL_RANK, the rank among those of this machine", [&] {
    comm::connect({0, 2, std::nullopt, "127.0.0.1", port.number(), "srun"}, at::kCUDA,
                  milliseconds(20));
  });
  const auto path = file_beside(play, "nobody");
  play.refuse(
      "[rank 0/2] [comm.connect] expected 2 ranks to connect over Gloo, no step longer than "
      "30 ms, got: ",
      [&] { comm::connect_gloo(0, 2, path, milliseconds(30)); });
  std::remove(path.c_str());
}

// The other one of two leaves between two collectives.
void check_lost(Play& play, Communicator& group) {
  const int rank = group.rank();
  const auto process = comm::exchange(group, at::full({1}, getpid(), at::kLong))[0].item<int64_t>();
  const auto path = play.context().directory + "/" + std::to_string(process) + "-lost";
  auto two = comm::connect_gloo(rank, 2, path, std::chrono::minutes(1));
  const auto said = comm::exchange(*two, at::full({1}, rank + 5, at::kLong)).flatten();
  play.check("two ranks meet at a file", at::equal(said, at::tensor({5, 6}, at::kLong)));
  std::optional<int> lost;
  const std::string told = "[rank 0/2] [comm.all_gather] expected all 2 ranks to take part in time";
  if (rank == 1) {
    two.reset();
  } else {
    play.refuse(told, [&] {
      try {
        two->all_gather(at::empty({2}), at::zeros({1}))->wait();
      } catch (const comm::CommunicationError& error) {
        lost = error.lost_rank();
        throw;
      }
    });
    play.check("the other one of two is lost", lost == 1);
  }
  comm::exchange(group, at::zeros({1}, at::kLong));
  std::remove(path.c_str());
}

void misses_ranks(Play& play) {
  if (const auto group = play.group()) {
    check_roll_call(play);
    check_peers(play);
    const std::vector<int64_t> seconds = {5, 30, 90, 150};
    for (int notice = 0; notice < 4; ++notice)
      play.check("the time of a notice",
                 comm::notice_time(notice).count() == seconds[static_cast<std::size_t>(notice)] &&
                     !play.fault());
    comm::WaitNotice("nothing", milliseconds(1)).wait_for("");
    const auto alone =
        comm::connect({0, 1, std::nullopt, "", 0, "it"}, at::kCPU, milliseconds(500));
    const auto output = at::zeros({3}), input = at::ones({3});
    alone->all_gather(output, input)->wait();
    play.check("one rank needs nobody", at::equal(output, input) && alone->world_size() == 1);
    if (play.context().stage == 0) check_nobody_comes(play);
    if (play.context().stage == 0 && play.context().world == 2) check_lost(play, *group);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> communicators() {
  const std::string fault = "something else is expected";
  return {
      of_part("launches_are_read", "every launcher's variables are read, or refused by their names",
              fault, reads_launches, Plays::EveryStage),
      of_part("collectives_carry_rows", "what ranks send arrives where it belongs, in any order",
              fault, carries, Plays::EveryStage),
      of_part("ranks_that_are_missing", "who is not there, or has gone, is told by its rank", fault,
              misses_ranks, Plays::EveryStage)};
}

}  // namespace equigrad::conformance::contract
