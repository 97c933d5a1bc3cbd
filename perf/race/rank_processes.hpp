// RankProcesses: the ranks of one contestant, each a process of its own that lives through a race.
//
// The command is a program and its arguments; "--channel C --rank R --world W --rendezvous FILE" is
// added. C is a socket on which it answers JSON lines (perf/worker/channel.hpp). What it prints
// goes to a file a rank, and into the error when the rank fails.
//
// Invariants: a request is sent to all ranks before any answer is awaited. They end with this; a
// Ctrl-C of the terminal does not reach them.
// Errors: std::runtime_error naming contestant and rank, with what the rank said; also where an
// answer takes longer than four minutes. Interrupted.
// Depends on: perf/worker/channel.hpp, conformance/ranks/interrupt.hpp (sources only), POSIX. No
// torch.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/worker/channel.hpp"

namespace equigrad::perf {

// A signal came while an answer was awaited. No std::exception: it is no contestant's failure.
struct Interrupted {};

class RankProcesses {
 public:
  // `directory` is the contestant's own; made where there is none.
  RankProcesses(std::string name, const std::vector<std::string>& command, int world,
                std::string directory);
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
  std::vector<pid_t> processes_;
  std::vector<Channel> channels_;
};

}  // namespace equigrad::perf
