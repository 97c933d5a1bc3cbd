// NCCL in a build that has none: EQUIGRAD_WITHOUT_CUDA says why, and what to do.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/comm/backend.hpp"
#include "engine/error.hpp"

namespace equigrad::comm {
namespace {

[[noreturn]] void refuse() {
  throw Error("comm.connect",
              "expected parameters on the CPU, got a CUDA device; this build of Equigrad has no "
              "CUDA: " EQUIGRAD_WITHOUT_CUDA ".");
}

}  // namespace

std::shared_ptr<Communicator> nccl_over(const c10::intrusive_ptr<c10d::Store>&, int, int, int,
                                        std::chrono::milliseconds) {
  refuse();
}

std::shared_ptr<Communicator> connect_nccl(int, int, int, const std::string&,
                                           std::chrono::milliseconds) {
  refuse();
}

}  // namespace equigrad::comm
