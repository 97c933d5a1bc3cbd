// Backend: one c10d backend behind the Communicator seam. For comm/gloo.cpp and comm/nccl.cpp only.
//
// Invariants: as in communicator.hpp. A failed collective is told with its name, the rank, and what
// c10d said.
// Errors: CommunicationError, with the lost rank if its process has ended, or if there are but two.
// Depends on: ATen tensors; c10d by name only.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>

#include "engine/comm/communicator.hpp"
#include "engine/comm/mesh.hpp"
#include "engine/comm/peers.hpp"
#include "engine/comm/shared_rings.hpp"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace equigrad::comm {

// How an all-gather is carried out. Gloo's own is a ring of W - 1 steps, each waiting for a
// neighbour's thread; an all-to-all of W copies sends the same bytes in one step (small messages, 4
// ranks on 2 cores: 0.9 ms against 2.0 ms).
enum class GatherBy { AllGather, AllToAll };

// What a communicator has beside its backend.
struct Beside {
  std::shared_ptr<const Peers> peers = std::make_shared<const Peers>();
  std::shared_ptr<Communicator> words = nullptr;  // carries small messages, if it is given
  std::shared_ptr<SharedRings> rings = nullptr;   // carries rows, if it is given
};
std::shared_ptr<Communicator> wrap(const c10::intrusive_ptr<c10d::Backend>& backend,
                                   c10::Device device, GatherBy gather_by, Beside beside = {});

std::shared_ptr<Communicator> gloo_over(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                        int world_size, std::chrono::milliseconds timeout);
std::shared_ptr<Communicator> nccl_over(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                        int world_size, int device_index,
                                        std::chrono::milliseconds timeout);
// All groups of a mesh; over NCCL if there is a device.
Mesh mesh_over(const c10::intrusive_ptr<c10d::Store>& store, int rank, const MeshSizes& sizes,
               std::optional<int> device_index, std::chrono::milliseconds timeout);

}  // namespace equigrad::comm
