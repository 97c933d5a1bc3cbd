// Pool: rank processes, forked once, which serve one request after another.
//
//   controller (never runs torch, one thread)        rank 0   rank 1   rank 2   rank 3
//     start({0,1}, request) ------------------------>  [handler][handler]
//     start({2,3}, request) ---------------------------------------->  [handler][handler]
//     wait() -> whichever set is done first
//
// The handler is fixed when the ranks are forked; requests and answers are JSON lines over a socket
// pair, one outstanding request a rank. A request ends with one Outcome a rank, always: an answer,
// the text of an exception, a death with its signal or exit code, or a time-out with what the rank
// was doing. After anything but answers the whole set is killed and forked anew.
//
// Invariants: the controller has one thread whenever it forks. Ranks die with the controller; the
// pool's directory is removed with it. A rank belongs to at most one request at a time.
// Units: time-outs are wall clock.
// Errors: equigrad::Error for a busy or unknown rank, or a fork from a process with threads.
// Depends on: POSIX, nlohmann-json, rank_context.hpp. No torch in the header.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "conformance/ranks/rank_context.hpp"

namespace equigrad::conformance::ranks {

using Handler = std::function<nlohmann::json(const nlohmann::json& request, RankContext& context)>;

struct Outcome {
  enum class Kind {
    Ok,        // `answer` is what the handler returned
    Error,     // the handler threw `text`
    Died,      // the process ended: `text` has the signal or exit code and its last words
    TimedOut,  // no answer in time
    Stopped    // healthy, but stopped because another rank of the set failed
  };
  Kind kind = Kind::Ok;
  nlohmann::json answer;
  std::string text;
  std::string doing;       // the rank's last note, where it did not answer
  bool lost_peer = false;  // Error: `text` is that of a comm::CommunicationError
  std::optional<int> lost_rank = std::nullopt;  // where that error knows it
};

// "rank 1 died: signal 9 (Killed) while step 1 backward", or empty when all ranks answered.
std::string failures(const std::vector<Outcome>& outcomes);
bool all_ok(const std::vector<Outcome>& outcomes);
// An error that says nothing about what was computed: a peer or memory was not to be had.
bool is_infrastructure_error(const Outcome& outcome);

struct Finished {
  int job;
  std::vector<int> ranks;
  std::vector<Outcome> outcomes;  // in the order of ranks
};

struct Options {
  std::chrono::milliseconds timeout{60'000};
  std::chrono::milliseconds grace{2'000};  // for the others, once one rank of a set has failed
  bool keep_stderr = false;                // false: kept in a file, its end told when a rank dies
  TakeDevice device = nullptr;             // in each rank when it starts; null: the CPU
};

class Pool {
 public:
  Pool(int size, Handler handler, Options options = {});
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  bool idle(int rank) const;
  int jobs() const { return static_cast<int>(jobs_.size()); }
  pid_t process_id(int rank) const { return ranks_.at(static_cast<std::size_t>(rank)).process; }
  const std::string& directory() const { return directory_; }

  // Gives the request to idle ranks and returns the job's number. Time-out 0: that of the options.
  int start(const std::vector<int>& ranks, const nlohmann::json& request,
            std::chrono::milliseconds timeout = std::chrono::milliseconds{0});
  // The next job to finish; nothing after `patience`, without jobs, or when interrupted.
  std::optional<Finished> wait(std::chrono::milliseconds patience);
  // A fresh process in the place of an idle rank's.
  void renew(int rank);
  // start() and wait() for one set while nothing else runs.
  std::vector<Outcome> run(const std::vector<int>& ranks, const nlohmann::json& request);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kNoteBytes = 256;
  struct Rank {
    pid_t process = -1;
    int socket = -1;
    int generation = 0;
    bool busy = false;
    std::string received;  // bytes of an answer that is not whole yet
  };
  struct Job {
    int number;
    std::vector<int> ranks;
    std::vector<std::optional<Outcome>> outcomes;
    Clock::time_point deadline;
    std::string first_failure;
  };

  void fork_rank(int slot);
  void end_rank(int slot);
  void replace_rank(int slot);
  [[noreturn]] void serve(int slot, int socket);
  void read_answers(int patience_ms);
  void take_bytes(int slot);
  void take_death(int slot);
  void settle(int slot, Outcome outcome);
  void expire(Job& job);
  std::optional<Finished> take_finished();
  Outcome stopped(const Job& job, int slot) const;
  std::string note_of(int slot) const;
  std::string last_words(int slot) const;

  Handler handler_;
  Options options_;
  std::string directory_;
  pid_t owner_;
  char* notes_;
  std::vector<Rank> ranks_;
  std::vector<Job> jobs_;
  int next_job_ = 0;
};

// Forks `world` ranks which run fn(context) once. For tests whose parent has not run torch.
template <class Fn>
std::vector<Outcome> run_ranks(int world, Fn fn, Options options = {}) {
  const Handler handler = [fn](const nlohmann::json&, RankContext& context) -> nlohmann::json {
    if constexpr (std::is_void_v<std::invoke_result_t<Fn, RankContext&>>) {
      fn(context);
      return nullptr;
    } else {
      return fn(context);
    }
  };
  options.keep_stderr = true;
  std::vector<int> all(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) all[static_cast<std::size_t>(rank)] = rank;
  return Pool(world, handler, options).run(all, nullptr);
}

}  // namespace equigrad::conformance::ranks
