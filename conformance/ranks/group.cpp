// The part of RankContext that needs torch and the engine's communicator.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "conformance/ranks/rank_context.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/comm/staged.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::ranks {

void use_one_thread() {
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
}

std::shared_ptr<comm::Communicator> RankContext::group(int world) {
  if (world == 0) world = world_size();
  if (world < 1 || world > world_size() || rank_ >= world)
    throw Error("ranks.group", "expected a world of " + std::to_string(rank_ + 1) + " to " +
                                   std::to_string(world_size()) + " ranks, got " +
                                   std::to_string(world) + ". Ask for one that holds this rank.");
  std::string name = "group";
  for (int rank = 0; rank < world; ++rank) name += "-" + members_[static_cast<std::size_t>(rank)];
  return connected(name, rank_, world);
}

std::shared_ptr<comm::Communicator> RankContext::group(const std::string& name, int rank,
                                                       int size) {
  if (name == "world") return group(size);
  std::string file = name + "-of";
  std::replace(file.begin(), file.end(), '/', '-');
  for (const auto& member : members_) file += "-" + member;
  return connected(file + "-in-" + std::to_string(size), rank, size);
}

// The environment variable is read when cuBLAS is first used.
RankDevice take_cuda_device(int slot, int ranks) {
  const auto devices = static_cast<int>(at::getNumGPUs());
  if (devices == 0)
    throw Error("ranks.device",
                "expected a CUDA device, got none that torch sees. Look at nvidia-smi and "
                "CUDA_VISIBLE_DEVICES, or leave --device cuda out.");
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setAllowTF32CuDNN(false);
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(slot % devices));
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return {device.str(), ranks > devices};
}

std::shared_ptr<comm::Communicator> RankContext::reached(const std::string& rendezvous, int rank,
                                                         int size) const {
  const c10::Device device(device_.name);
  if (device.is_cuda() && !device_.is_shared)
    return comm::connect_nccl(rank, size, device.index(), rendezvous, timeout_);
  auto group = comm::connect_gloo(rank, size, rendezvous, timeout_);
  return device.is_cpu() ? group : comm::staged(std::move(group), device);
}

std::shared_ptr<comm::Communicator> RankContext::connected(const std::string& name, int rank,
                                                           int size) {
  auto& group = groups_[name];
  if (!group) {
    note("rendezvous of " + std::to_string(size) + " ranks");
    try {
      group = reached(directory_ + "/" + name, rank, size);
    } catch (const std::exception& error) {
      const std::string text = error.what();  // LibTorch appends a backtrace, from the second line
      throw comm::CommunicationError("ranks.group",
                                     "expected to reach all " + std::to_string(size) +
                                         " ranks, got: " + text.substr(0, text.find('\n')) +
                                         " equigrad doctor tries it with two.");
    }
  }
  return group;
}

}  // namespace equigrad::conformance::ranks
