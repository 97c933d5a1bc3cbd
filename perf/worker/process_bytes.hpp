// ProcessBytes: what the kernel says of this process: its memory, and what it has sent.
//
// Units: bytes.   Errors: std::runtime_error where /proc says nothing.
// Depends on: Linux (/proc, TCP_INFO). No torch.
#pragma once

#include <cstdint>
#include <string>

namespace equigrad::perf {

// A line of /proc/self/status: VmRSS, VmHWM.
int64_t status_bytes(const std::string& key);
// From here on VmHWM is the peak since now.
void forget_peak();
// Payload of all TCP connections of this process, headers excluded, retransmissions included.
int64_t sent_bytes();

}  // namespace equigrad::perf
