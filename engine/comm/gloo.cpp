#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "engine/comm/backend.hpp"

namespace equigrad::comm {

std::shared_ptr<Communicator> gloo_over(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                        int world_size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(world_size == 1
                                 ? c10d::ProcessGroupGloo::createDeviceForInterface("lo")
                                 : c10d::ProcessGroupGloo::createDefaultDevice());
  const auto key = [](int of) { return "equigrad/process/" + std::to_string(of); };
  store->set(key(rank), introduction());
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world_size, options);
  std::vector<std::string> introductions;  // it took all ranks to make the group
  for (int of = 0; of < world_size; ++of) introductions.push_back(store->get_to_str(key(of)));
  return wrap(group, c10::Device(c10::kCPU), GatherBy::AllToAll, Peers(introductions));
}

std::shared_ptr<Communicator> connect_gloo(int rank, int world_size, const std::string& rendezvous,
                                           std::chrono::milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::FileStore>(rendezvous, world_size);
  store->setTimeout(timeout);
  return gloo_over(store, rank, world_size, timeout);
}

}  // namespace equigrad::comm
