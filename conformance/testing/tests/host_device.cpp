// The device "host" for a process of Python's: torch.ops.load_library() of this library makes it.
#include "conformance/testing/host_device.hpp"

namespace {

[[maybe_unused]] const auto taken = equigrad::conformance::take_host_device(0, 1);

}  // namespace
