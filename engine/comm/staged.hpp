// Staged: a communicator on the CPU that carries the tensors of another device, by way of copies.
//
// For ranks that share a CUDA device, which NCCL refuses: each collective copies its input to the
// CPU when it begins, and its output back when it is waited for. Nothing overlaps with a device's
// work, so it is for tests and proofs on one device, not for speed.
//
// Invariants: what arrives are the bits that the given communicator carries; an input is read when
// the collective begins. Words are collectives among the others, in their order.
// Shapes, errors: those of the given communicator.
// Depends on: comm/communicator.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "engine/comm/communicator.hpp"

namespace equigrad::comm {

std::shared_ptr<Communicator> staged(std::shared_ptr<Communicator> on_cpu, c10::Device device);

}  // namespace equigrad::comm
