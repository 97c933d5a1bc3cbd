#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "engine/comm/backend.hpp"
#include "engine/comm/launch.hpp"

namespace equigrad::comm {

std::shared_ptr<Communicator> connect(const LaunchEnvironment& launch, c10::DeviceType device,
                                      std::chrono::milliseconds timeout) {
  c10::intrusive_ptr<c10d::Store> store;
  if (launch.world_size == 1) {
    store = c10::make_intrusive<c10d::HashStore>();
  } else {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(launch.master_port);
    options.isServer = launch.rank == 0;
    options.numWorkers = static_cast<std::size_t>(launch.world_size);
    options.timeout = timeout;
    store = c10::make_intrusive<c10d::TCPStore>(launch.master_addr, options);
  }
  if (device == c10::kCUDA) {
    return nccl_over(store, launch.rank, launch.world_size, launch.local_rank, timeout);
  }
  return gloo_over(store, launch.rank, launch.world_size, timeout);
}

}  // namespace equigrad::comm
