#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "engine/comm/backend.hpp"
#include "engine/comm/launch.hpp"
#include "engine/error.hpp"

namespace equigrad::comm {
namespace {

// torchrun's agent serves the store at MASTER_PORT itself and says so.
bool agent_serves_the_store() {
  const char* said = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return said != nullptr && std::string(said) == "True";
}

c10::intrusive_ptr<c10d::Store> tcp_store(const LaunchEnvironment& launch,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.master_port);
  options.isServer = launch.rank == 0 && !agent_serves_the_store();
  options.numWorkers = static_cast<std::size_t>(launch.world_size);
  options.timeout = timeout;
  options.multiTenant = true;  // a second engine of this process meets at the same place
  try {
    return c10::make_intrusive<c10d::TCPStore>(launch.master_addr, options);
  } catch (const c10::Error& error) {
    throw Error("comm.connect",
                fmt::format("expected a store at {}:{} (from {}), got: {}. See that rank 0 runs, "
                            "that the port is free, and that all ranks name the same place.",
                            launch.master_addr, launch.master_port, launch.source,
                            error.what_without_backtrace()));
  }
}

}  // namespace

std::shared_ptr<Communicator> connect(const LaunchEnvironment& launch, c10::DeviceType device,
                                      std::chrono::milliseconds timeout) {
  static std::atomic<int> connections{
      0};  // engines of a process are made in one order on all ranks
  c10::intrusive_ptr<c10d::Store> store;
  if (launch.world_size == 1) {
    store = c10::make_intrusive<c10d::HashStore>();
  } else {
    store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("equigrad/{}", connections++),
                                                   tcp_store(launch, timeout));
  }
  if (device == c10::kCUDA) {
    return nccl_over(store, launch.rank, launch.world_size, launch.local_rank, timeout);
  }
  return gloo_over(store, launch.rank, launch.world_size, timeout);
}

}  // namespace equigrad::comm
