// The rank's side of the pool: the loop that serves requests, and what failures read like.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "conformance/ranks/pool.hpp"
#include "engine/comm/communication_error.hpp"

namespace equigrad::conformance::ranks {
namespace {

// Reads up to a newline. Empty at the end of the stream: the controller is gone.
std::string read_line(int socket) {
  std::string line;
  char bytes[65536];
  while (line.empty() || line.back() != '\n') {
    const ssize_t n = recv(socket, bytes, sizeof bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return {};
    line.append(bytes, static_cast<std::size_t>(n));
  }
  return line;
}

void write_line(int socket, const nlohmann::json& message) {
  const std::string text =
      message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(0);
    sent += static_cast<std::size_t>(n);
  }
}

// The controller decides when a rank ends; Ctrl-C reaches the whole process group.
void live_with_the_controller(pid_t controller) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != controller) _exit(0);
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
}

void keep_stderr_in(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  if (file < 0) return;
  dup2(file, STDERR_FILENO);
  close(file);
}

// LibTorch appends a C++ backtrace to its messages; people want the first part.
std::string without_backtrace(const std::string& text) {
  return text.substr(0, text.find("\nException raised from "));
}

}  // namespace

void Pool::serve(int slot, int socket) {
  live_with_the_controller(owner_);
  if (!options_.keep_stderr) keep_stderr_in(directory_ + "/stderr." + std::to_string(slot));
  // For what reads them later; torch has its own switch, below.
  setenv("OMP_NUM_THREADS", "1", 1);
  setenv("MKL_NUM_THREADS", "1", 1);
  use_one_thread();
  RankDevice device;
  std::string problem;  // why there is none
  try {
    if (options_.device != nullptr) device = options_.device(slot, size());
  } catch (const std::exception& error) {
    problem = without_backtrace(error.what());
  }
  RankContext context(slot, directory_, notes_ + kNoteBytes * static_cast<std::size_t>(slot),
                      kNoteBytes, device);
  for (;;) {
    const std::string line = read_line(socket);
    if (line.empty()) _exit(0);
    nlohmann::json answer;
    try {
      const auto envelope = nlohmann::json::parse(line);
      context.enter(envelope["rank"], envelope["members"],
                    std::chrono::milliseconds(envelope["timeout_ms"].get<long long>()));
      if (problem.empty())
        answer["ok"] = handler_(envelope["request"], context);
      else
        answer["error"] = problem;
    } catch (const comm::CommunicationError& error) {
      answer = {{"error", without_backtrace(error.what())}, {"lost_peer", true}};
      if (error.lost_rank()) answer["lost_rank"] = *error.lost_rank();
    } catch (const std::exception& error) {
      answer = {{"error", without_backtrace(error.what())}};
    } catch (...) {
      answer = {{"error", "an exception that is no std::exception"}};
    }
    std::fflush(nullptr);
    write_line(socket, answer);
  }
}

RankContext::RankContext(int slot, std::string directory, char* note_text, std::size_t note_bytes,
                         RankDevice device)
    : slot_(slot),
      directory_(std::move(directory)),
      note_text_(note_text),
      note_bytes_(note_bytes),
      device_(device) {}

void RankContext::enter(int rank, std::vector<std::string> members,
                        std::chrono::milliseconds timeout) {
  rank_ = rank;
  members_ = std::move(members);
  timeout_ = timeout;
  note("");
}

void RankContext::note(const std::string& text) {
  const std::size_t length = std::min(text.size(), note_bytes_ - 1);
  note_text_[length] = 0;
  std::memcpy(note_text_, text.data(), length);
}

bool all_ok(const std::vector<Outcome>& outcomes) {
  return std::all_of(outcomes.begin(), outcomes.end(),
                     [](const Outcome& outcome) { return outcome.kind == Outcome::Kind::Ok; });
}

bool is_infrastructure_error(const Outcome& outcome) {
  if (outcome.kind != Outcome::Kind::Error) return false;
  const auto& text = outcome.text;
  const bool memory = text.find("bad_alloc") != std::string::npos ||
                      text.find("can't allocate memory") != std::string::npos;
  const bool of_harness = text.starts_with("[ranks.");  // such as no device
  return outcome.lost_peer || memory || of_harness;
}

std::string failures(const std::vector<Outcome>& outcomes) {
  std::string text;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& outcome = outcomes[rank];
    if (outcome.kind == Outcome::Kind::Ok) continue;
    if (!text.empty()) text += "\n";
    text += "rank " + std::to_string(rank) + "/" + std::to_string(outcomes.size());
    if (outcome.kind == Outcome::Kind::Error) text += " failed: ";
    if (outcome.kind == Outcome::Kind::Died) text += " died: ";
    if (outcome.kind == Outcome::Kind::TimedOut) text += " timed out: ";
    if (outcome.kind == Outcome::Kind::Stopped) text += ": ";
    text += outcome.text;
    if (!outcome.doing.empty()) text += " (while: " + outcome.doing + ")";
  }
  return text;
}

}  // namespace equigrad::conformance::ranks
