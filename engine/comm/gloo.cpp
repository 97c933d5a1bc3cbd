#include <fmt/format.h>
#include <sched.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "engine/comm/backend.hpp"
#include "engine/comm/communication_error.hpp"

namespace equigrad::comm {
namespace {

[[noreturn]] void not_connected(int rank, int world_size, std::chrono::milliseconds timeout,
                                const char* reason) {
  throw CommunicationError(
      fmt::format("rank {}/{}] [comm.connect", rank, world_size),
      fmt::format("expected {} ranks to connect over Gloo, no step longer than {} ms, got: {}. See "
                  "that every rank was started and still runs, and that each host's name resolves "
                  "to an address the others reach; communication_timeout_s is the time they have.",
                  world_size, timeout.count(), reason));
}

// Threads that a thread starts while it has one of these are batch threads (sched(7)): when they
// wake they preempt nobody. Where the user has chosen another policy, it stands.
class BatchThreads {
 public:
  BatchThreads() : chosen_(sched_getscheduler(0) != SCHED_OTHER) { set(SCHED_BATCH); }
  ~BatchThreads() { set(SCHED_OTHER); }
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  void set(int policy) const {
    const sched_param priority{};
    if (!chosen_) sched_setscheduler(0, policy, &priority);  // where it may not, all stays right
  }
  bool chosen_;
};

// A device has one thread, which sends and receives on all sockets. It does not wait for the lock
// of a connection, it asks for it again and again: were it to preempt the thread that has the lock,
// both ranks would wait until its slice of time is over (about 4 ms, in one of 14 small collectives
// of two ranks on two cores).
std::shared_ptr<gloo::transport::Device> make_device(int world_size) {
  const BatchThreads its_thread;
  if (world_size == 1) return c10d::ProcessGroupGloo::createDeviceForInterface("lo");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

std::shared_ptr<Communicator> gloo_over(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                        int world_size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(make_device(world_size));
  const auto key = [](int of) { return "equigrad/process/" + std::to_string(of); };
  const auto done = [](int of) { return "equigrad/connected/" + std::to_string(of); };
  try {
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world_size, options);
    // A rank that is connected introduces itself, and waits for all others: who leaves at once
    // would close connections that another rank has yet to see made.
    store->set(key(rank), introduction());
    std::vector<std::string> introductions;
    for (int of = 0; of < world_size; ++of) introductions.push_back(store->get_to_str(key(of)));
    // Rank 0 may be who serves the store, so it leaves last.
    store->set(done(rank), "1");
    for (int of = 0; rank == 0 && of < world_size; ++of) store->get(done(of));
    return wrap(group, c10::Device(c10::kCPU), GatherBy::AllToAll, Peers(introductions));
  } catch (const c10::Error& error) {
    not_connected(rank, world_size, timeout, error.what_without_backtrace());
  } catch (const std::exception& error) {
    not_connected(rank, world_size, timeout, error.what());
  }
}

std::shared_ptr<Communicator> connect_gloo(int rank, int world_size, const std::string& rendezvous,
                                           std::chrono::milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::FileStore>(rendezvous, world_size);
  store->setTimeout(timeout);
  return gloo_over(store, rank, world_size, timeout);
}

}  // namespace equigrad::comm
