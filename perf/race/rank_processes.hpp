// RankProcesses: the ranks of one contestant, each a process of its own that lives through a race.
//
// The command is a program and its arguments; "--channel C --rank R --world W --rendezvous FILE" is
// added. C is a socket on which it answers JSON lines (perf/worker/channel.hpp). What it prints
// goes to a file a rank, and into the error when the rank fails.
//
// Invariants: a request is sent to all ranks before any answer is awaited. They end with this.
// Units: milliseconds of wall clock.
// Errors: std::runtime_error naming contestant and rank, with what the rank said.
// Depends on: perf/worker/channel.hpp, POSIX. No torch.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/worker/channel.hpp"

namespace equigrad::perf {

class RankProcesses {
 public:
  // `directory` is the contestant's own; it exists.
  RankProcesses(std::string name, const std::vector<std::string>& command, int world,
                const std::string& directory, std::chrono::milliseconds timeout);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // An answer a rank, in rank order.
  std::vector<nlohmann::json> ask(const nlohmann::json& request);
  const std::string& name() const { return name_; }

 private:
  void fork_rank(const std::vector<std::string>& command, int rank, int world);
  std::string printed(std::size_t rank) const;

  std::string name_, directory_;
  std::chrono::milliseconds timeout_;
  std::vector<pid_t> processes_;
  std::vector<Channel> channels_;
};

}  // namespace equigrad::perf
