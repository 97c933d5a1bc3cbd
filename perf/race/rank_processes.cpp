#include "perf/race/rank_processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "conformance/ranks/interrupt.hpp"

namespace equigrad::perf {
namespace {

constexpr std::size_t kPrintedBytes = 2000;
constexpr auto kTimeout = std::chrono::minutes(4);

void print_into(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  if (file < 0) return;
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  close(file);
}

// Until there is something to read, or it has taken too long, which receive() says.
void await_answer(const Channel& channel) {
  const auto until = std::chrono::steady_clock::now() + kTimeout;
  for (int ready = 0; ready <= 0 && std::chrono::steady_clock::now() < until;) {
    pollfd wanted{channel.descriptor(), POLLIN, 0};
    ready = poll(&wanted, 1, /*ms=*/1000);
    if (conformance::ranks::interrupted() != 0) throw Interrupted{};
  }
}

}  // namespace

RankProcesses::RankProcesses(std::string name, const std::vector<std::string>& command, int world,
                             std::string directory)
    : name_(std::move(name)), directory_(std::move(directory)) {
  std::filesystem::create_directories(directory_);
  unlink((directory_ + "/rendezvous").c_str());
  for (int rank = 0; rank < world; ++rank) fork_rank(command, rank, world);
}

RankProcesses::~RankProcesses() {
  for (auto& channel : channels_) close(channel.descriptor());
  for (const pid_t process : processes_) kill(process, SIGKILL);
  for (const pid_t process : processes_) waitpid(process, nullptr, 0);
}

void RankProcesses::fork_rank(const std::vector<std::string>& command, int rank, int world) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw std::runtime_error("[race] no socket pair for " + name_ + ".");
  auto words = command;
  for (const auto& [key, value] :
       {std::pair<std::string, std::string>{"--channel", std::to_string(pair[1])},
        {"--rank", std::to_string(rank)},
        {"--world", std::to_string(world)},
        {"--rendezvous", directory_ + "/rendezvous"}}) {
    words.push_back(key);
    words.push_back(value);
  }
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::string log = directory_ + "/rank" + std::to_string(rank) + ".log";
  const pid_t process = fork();
  if (process < 0) throw std::runtime_error("[race] cannot fork a rank of " + name_ + ".");
  if (process == 0) {
    fcntl(pair[1], F_SETFD, 0);
    std::signal(SIGINT, SIG_IGN);
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("MKL_NUM_THREADS", "1", 1);
    print_into(log);
    execvp(arguments.front(), arguments.data());
    _exit(127);
  }
  close(pair[1]);
  processes_.push_back(process);
  channels_.emplace_back(pair[0]);
}

std::string RankProcesses::printed(std::size_t rank) const {
  std::ifstream file(directory_ + "/rank" + std::to_string(rank) + ".log");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.size() > kPrintedBytes ? text.substr(text.size() - kPrintedBytes) : text;
}

std::vector<nlohmann::json> RankProcesses::ask(const nlohmann::json& request) {
  std::vector<nlohmann::json> answers;
  const auto fail = [&](std::size_t rank, const std::string& why) {
    throw std::runtime_error("[race] " + name_ + ", rank " + std::to_string(rank) + ": " + why +
                             "\n" + printed(rank));
  };
  for (std::size_t rank = 0; rank < channels_.size(); ++rank) try {
      channels_[rank].send(request);
    } catch (const std::exception& error) {
      fail(rank, error.what());
    }
  for (std::size_t rank = 0; rank < channels_.size(); ++rank) {
    nlohmann::json answer;
    try {
      await_answer(channels_[rank]);
      answer = channels_[rank].receive(kTimeout);
    } catch (const std::exception& error) {
      fail(rank, error.what());
    }
    if (!answer.contains("ok")) fail(rank, answer.value("error", "no answer"));
    answers.push_back(answer["ok"]);
  }
  return answers;
}

}  // namespace equigrad::perf
