#include "conformance/ranks/pool.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include "conformance/ranks/interrupt.hpp"
#include "conformance/ranks/private_directory.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::ranks {
namespace {

[[noreturn]] void system_failure(const std::string& call) {
  throw Error("ranks.Pool", "expected " + call + " to work, got: " + std::strerror(errno) +
                                ". Look at the machine's limits (ulimit -a, df /dev/shm).");
}

int threads_here() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("Threads:", 0) == 0) return std::atoi(line.c_str() + 8);
  return 1;
}

void require_one_thread() {
  if (threads_here() != 1)
    throw Error("ranks.Pool", "expected one thread where ranks are forked, got " +
                                  std::to_string(threads_here()) +
                                  ". torch starts threads when it first runs: do this before, in a "
                                  "process of its own, or with OMP_NUM_THREADS=1 in the "
                                  "environment.");
}

bool write_all(int socket, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

std::string describe_status(int status) {
  if (WIFSIGNALED(status))
    return "signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Pool::Pool(int size, Handler handler, Options options)
    : handler_((require_one_thread(), std::move(handler))),
      options_(options),
      directory_(make_private_directory()),
      owner_(getpid()),
      ranks_(static_cast<std::size_t>(size)) {
  void* notes = mmap(nullptr, kNoteBytes * ranks_.size() + 1, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (notes == MAP_FAILED) system_failure("mmap");
  notes_ = static_cast<char*>(notes);
  for (int slot = 0; slot < size; ++slot) fork_rank(slot);
}

Pool::~Pool() {
  if (getpid() != owner_) return;
  for (int slot = 0; slot < size(); ++slot) end_rank(slot);
  munmap(notes_, kNoteBytes * ranks_.size() + 1);
  remove_private_directory(directory_);
}

void Pool::fork_rank(int slot) {
  require_one_thread();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) system_failure("socketpair");
  auto& rank = ranks_[static_cast<std::size_t>(slot)];
  ++rank.generation;
  rank.busy = false;
  rank.received.clear();
  notes_[kNoteBytes * static_cast<std::size_t>(slot)] = 0;
  std::fflush(nullptr);  // or the rank would write what is buffered once more
  std::cout.flush();
  const pid_t process = fork();
  if (process < 0) system_failure("fork");
  if (process == 0) {
    for (const auto& other : ranks_)
      if (other.socket >= 0) close(other.socket);
    close(ends[0]);
    serve(slot, ends[1]);
  }
  close(ends[1]);
  rank.process = process;
  rank.socket = ends[0];
}

void Pool::end_rank(int slot) {
  auto& rank = ranks_[static_cast<std::size_t>(slot)];
  if (rank.socket >= 0) close(rank.socket);
  rank.socket = -1;
  if (rank.process > 0) {
    kill(rank.process, SIGKILL);
    while (waitpid(rank.process, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  rank.process = -1;
}

void Pool::replace_rank(int slot) {
  end_rank(slot);
  fork_rank(slot);
}

void Pool::renew(int rank) {
  if (!idle(rank))
    throw Error("ranks.Pool.renew", "expected an idle rank, got rank " + std::to_string(rank) +
                                        " at work. Wait for its job first.");
  replace_rank(rank);
}

bool Pool::idle(int rank) const { return !ranks_.at(static_cast<std::size_t>(rank)).busy; }

int Pool::start(const std::vector<int>& ranks, const nlohmann::json& request,
                std::chrono::milliseconds timeout) {
  std::vector<std::string> members;
  for (const int slot : ranks) {
    if (slot < 0 || slot >= size() || !idle(slot))
      throw Error("ranks.Pool.start", "expected idle ranks below " + std::to_string(size()) +
                                          ", got rank " + std::to_string(slot) +
                                          ". Wait for its job first.");
    if (ranks_[static_cast<std::size_t>(slot)].process < 0) replace_rank(slot);
    members.push_back(std::to_string(slot) + "." +
                      std::to_string(ranks_[static_cast<std::size_t>(slot)].generation));
  }
  if (timeout.count() == 0) timeout = options_.timeout;
  jobs_.push_back({next_job_++, ranks, std::vector<std::optional<Outcome>>(ranks.size()),
                   Clock::now() + timeout, ""});
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    auto& peer = ranks_[static_cast<std::size_t>(ranks[rank])];
    peer.busy = true;
    const nlohmann::json envelope = {{"rank", rank},
                                     {"members", members},
                                     {"timeout_ms", timeout.count()},
                                     {"request", request}};
    // A rank that is gone already is noticed when its answer is read.
    write_all(peer.socket, envelope.dump() + "\n");
  }
  return jobs_.back().number;
}

std::vector<Outcome> Pool::run(const std::vector<int>& ranks, const nlohmann::json& request) {
  start(ranks, request);
  for (;;) {
    if (auto finished = wait(std::chrono::hours(1))) return std::move(finished->outcomes);
    if (interrupted() != 0) throw Error("ranks.Pool.run", "expected an answer, got an interrupt.");
  }
}

std::optional<Finished> Pool::wait(std::chrono::milliseconds patience) {
  const auto until = Clock::now() + patience;
  while (!jobs_.empty()) {
    if (auto finished = take_finished()) return finished;
    auto next = until;
    for (const auto& job : jobs_) next = std::min(next, job.deadline);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    read_answers(static_cast<int>(std::clamp<long long>(left, 0, 1000)));
    for (auto& job : jobs_)
      if (Clock::now() >= job.deadline) expire(job);
    if (auto finished = take_finished()) return finished;
    if (interrupted() != 0 || Clock::now() >= until) break;
  }
  return std::nullopt;
}

void Pool::read_answers(int patience_ms) {
  std::vector<pollfd> sockets;
  std::vector<int> slots;
  for (int slot = 0; slot < size(); ++slot) {
    const auto& rank = ranks_[static_cast<std::size_t>(slot)];
    if (!rank.busy || rank.process < 0) continue;  // the end of a dead rank's stream is seen once
    sockets.push_back({rank.socket, POLLIN, 0});
    slots.push_back(slot);
  }
  if (poll(sockets.data(), static_cast<nfds_t>(sockets.size()), patience_ms) <= 0) return;
  for (std::size_t i = 0; i < sockets.size(); ++i)
    if (sockets[i].revents != 0) take_bytes(slots[i]);
}

void Pool::take_bytes(int slot) {
  auto& rank = ranks_[static_cast<std::size_t>(slot)];
  char bytes[65536];
  const ssize_t n = recv(rank.socket, bytes, sizeof bytes, 0);
  if (n < 0 && errno == EINTR) return;
  if (n <= 0) return take_death(slot);
  rank.received.append(bytes, static_cast<std::size_t>(n));
  if (rank.received.back() != '\n') return;  // one answer a request: the newline ends it
  const auto message = nlohmann::json::parse(rank.received, nullptr, false);
  rank.received.clear();
  Outcome outcome;
  if (message.is_object() && message.contains("ok")) {
    outcome.answer = message["ok"];
  } else {
    outcome.kind = Outcome::Kind::Error;
    outcome.text = message.is_object() ? message.value("error", "") : "answer is not JSON";
    outcome.doing = note_of(slot);
    outcome.lost_peer = message.is_object() && message.value("lost_peer", false);
    if (message.is_object() && message.contains("lost_rank"))
      outcome.lost_rank = message["lost_rank"].get<int>();
  }
  settle(slot, std::move(outcome));
}

void Pool::take_death(int slot) {
  auto& rank = ranks_[static_cast<std::size_t>(slot)];
  int status = 0;
  while (waitpid(rank.process, &status, 0) < 0 && errno == EINTR) {
  }
  rank.process = -1;
  Outcome outcome{Outcome::Kind::Died, nullptr, describe_status(status) + last_words(slot),
                  note_of(slot)};
  settle(slot, std::move(outcome));
}

void Pool::settle(int slot, Outcome outcome) {
  for (auto& job : jobs_)
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
      if (job.ranks[i] != slot || job.outcomes[i]) continue;
      if (outcome.kind != Outcome::Kind::Ok && job.first_failure.empty()) {
        job.first_failure = "rank " + std::to_string(i);
        job.deadline = std::min(job.deadline, Clock::now() + options_.grace);
      }
      job.outcomes[i] = std::move(outcome);
      // Not idle yet: the whole set is, when its job is taken.
      return;
    }
}

void Pool::expire(Job& job) {
  for (std::size_t i = 0; i < job.ranks.size(); ++i) {
    if (job.outcomes[i]) continue;
    job.outcomes[i] = stopped(job, job.ranks[i]);
  }
}

Outcome Pool::stopped(const Job& job, int slot) const {
  Outcome outcome;
  outcome.doing = note_of(slot);
  if (job.first_failure.empty()) {
    outcome.kind = Outcome::Kind::TimedOut;
    outcome.text = "no answer in time" + last_words(slot);
  } else {
    outcome.kind = Outcome::Kind::Stopped;
    outcome.text = "stopped because " + job.first_failure + " failed";
  }
  return outcome;
}

std::optional<Finished> Pool::take_finished() {
  for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
    if (std::any_of(job->outcomes.begin(), job->outcomes.end(), [](auto& o) { return !o; }))
      continue;
    Finished finished{job->number, job->ranks, {}};
    for (auto& outcome : job->outcomes) finished.outcomes.push_back(std::move(*outcome));
    jobs_.erase(job);
    // A collective may be half done: after a failure no rank of the set is trusted.
    const bool replace = !all_ok(finished.outcomes);
    for (const int slot : finished.ranks) {
      if (replace) end_rank(slot);
      ranks_[static_cast<std::size_t>(slot)].busy = false;
    }
    if (replace && interrupted() == 0)
      for (const int slot : finished.ranks) replace_rank(slot);
    return finished;
  }
  return std::nullopt;
}

std::string Pool::note_of(int slot) const {
  const char* note = notes_ + kNoteBytes * static_cast<std::size_t>(slot);
  return std::string(note, strnlen(note, kNoteBytes));
}

std::string Pool::last_words(int slot) const {
  std::ifstream file(directory_ + "/stderr." + std::to_string(slot));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() > 2000) text = "..." + text.substr(text.size() - 2000);
  return text.empty() ? "" : "; last words: " + text;
}

}  // namespace equigrad::conformance::ranks
