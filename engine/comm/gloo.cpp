#include <fmt/format.h>
#include <netdb.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "engine/comm/backend.hpp"
#include "engine/comm/communication_error.hpp"

namespace equigrad::comm {
namespace {

[[noreturn]] void not_connected(int rank, int world_size, std::chrono::milliseconds timeout,
                                const char* reason) {
  throw CommunicationError(
      fmt::format("rank {}/{}] [comm.connect", rank, world_size),
      fmt::format(
          "expected {} ranks to connect over Gloo, no step longer than {} ms, got: {}. See "
          "that every rank was started and still runs, and that hosts reach each other on the "
          "way to MASTER_ADDR, or name the interface in GLOO_SOCKET_IFNAME; "
          "communication_timeout_s is the time they have.",
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

// Gloo writes to a connection that its peer may just have closed; by default the system then ends
// the process instead of failing the write. Where the user has chosen an action, it stands.
void ignore_broken_pipes() {
  struct sigaction chosen {};
  if (sigaction(SIGPIPE, nullptr, &chosen) != 0) return;
  const bool is_default = (chosen.sa_flags & SA_SIGINFO) == 0 && chosen.sa_handler == SIG_DFL;
  if (is_default) std::signal(SIGPIPE, SIG_IGN);
}

// Who serves the store; empty: it is no TCP store.
std::string host_of(c10d::Store& store) {
  auto* under = &store;
  c10::intrusive_ptr<c10d::Store> held;
  if (auto* prefix = dynamic_cast<c10d::PrefixStore*>(under)) {
    held = prefix->getUnderlyingNonPrefixStore();
    under = held.get();
  }
  const auto* tcp = dynamic_cast<c10d::TCPStore*>(under);
  return tcp == nullptr ? "" : tcp->getHost();
}

// This host's address on the way to another, which all ranks have reached; empty: there is none. A
// host's own name may resolve to 127.0.0.1, which no other host reaches.
std::string address_towards(const std::string& host) {
  if (host.empty()) return {};
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};  // connect() sends nothing
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> freed(found, freeaddrinfo);
  for (const auto* at = found; at != nullptr; at = at->ai_next) {
    const int probe = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe < 0) continue;
    sockaddr_storage mine{};
    socklen_t length = sizeof mine;
    char text[NI_MAXHOST] = "";
    auto* name = reinterpret_cast<sockaddr*>(&mine);
    const bool is_known =
        connect(probe, at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(probe, name, &length) == 0 &&
        getnameinfo(name, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
    close(probe);
    if (is_known) return text;
  }
  return {};
}

// A device has one thread, which sends and receives on all sockets. It does not wait for the lock
// of a connection, it asks for it again and again: were it to preempt the thread that has the lock,
// both ranks would wait until its slice of time is over (about 4 ms, in one of 14 small collectives
// of two ranks on two cores).
std::shared_ptr<gloo::transport::Device> make_device(c10d::Store& store, int world_size) {
  using c10d::ProcessGroupGloo;
  const BatchThreads its_thread;
  if (world_size == 1) return ProcessGroupGloo::createDeviceForInterface("lo");
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME"); name != nullptr && *name != 0)
    return ProcessGroupGloo::createDeviceForInterface(name);
  const auto address = address_towards(host_of(store));
  if (!address.empty()) return ProcessGroupGloo::createDeviceForHostname(address);
  return ProcessGroupGloo::createDefaultDevice();
}

// Its thread is to disturb as little as Gloo's.
std::shared_ptr<SharedRings> make_rings(c10d::Store& store, int rank, int world_size,
                                        const std::shared_ptr<const Peers>& peers,
                                        std::chrono::milliseconds timeout) {
  const BatchThreads its_thread;
  const SharedRings::Board board{
      [&store](const std::string& key, const std::string& value) { store.set(key, value); },
      [&store](const std::string& key) { return store.get_to_str(key); }};
  return SharedRings::connect(board, rank, world_size, peers, timeout);
}

}  // namespace

std::shared_ptr<Communicator> gloo_over(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                        int world_size, std::chrono::milliseconds timeout) {
  ignore_broken_pipes();
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(make_device(*store, world_size));
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
    const Board board{[store](const std::string& name) { store->set(name, "1"); },
                      [store](const std::string& name) { return store->check({name}); }};
    const std::chrono::milliseconds most(10'000);
    const auto peers = std::make_shared<const Peers>(
        introductions, RollCall{board, rank, world_size, std::min(timeout / 2, most)});
    auto rings = make_rings(*store, rank, world_size, peers, timeout);
    store->set(done(rank), "1");
    for (int of = 0; rank == 0 && of < world_size; ++of) store->get(done(of));
    return wrap(group, c10::Device(c10::kCPU), GatherBy::AllToAll, {peers, nullptr, rings});
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
