#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "engine/comm/backend.hpp"
#include "engine/error.hpp"

namespace equigrad::comm {

std::shared_ptr<Communicator> nccl_over(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                        int world_size, int device_index,
                                        std::chrono::milliseconds timeout) {
  const int devices = static_cast<int>(c10::cuda::device_count());
  if (device_index >= devices) {
    throw Error("comm.connect_nccl",
                "expected CUDA device " + std::to_string(device_index) + ", got a machine with " +
                    std::to_string(devices) +
                    ". NCCL needs one device a rank: start fewer ranks, or use Gloo on the CPU.");
  }
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(device_index));
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, world_size, options);
  group->setBoundDeviceId(device);
  std::shared_ptr<Communicator> words;
  if (world_size > 1)
    words = gloo_over(c10::make_intrusive<c10d::PrefixStore>("words", store), rank, world_size,
                      timeout);
  return wrap(group, device, GatherBy::AllGather, {.words = std::move(words)});
}

std::shared_ptr<Communicator> connect_nccl(int rank, int world_size, int device_index,
                                           const std::string& rendezvous,
                                           std::chrono::milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::FileStore>(rendezvous, world_size);
  store->setTimeout(timeout);
  return nccl_over(store, rank, world_size, device_index, timeout);
}

}  // namespace equigrad::comm
