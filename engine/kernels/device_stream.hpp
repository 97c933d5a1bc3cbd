// Device stream: the stream that a CUDA kernel is launched on, asked of torch without CUDA's own
// headers, which a torch for the CPU does not come with.
//
// Invariants: the stream is the device's current one; it belongs to torch.
// Errors: c10::Error where torch has no CUDA.
// Depends on: c10.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace equigrad::kernels {

// A cudaStream_t.
inline void* current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace equigrad::kernels
