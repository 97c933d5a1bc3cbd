// Channel: JSON lines over a socket: what the controller of a race and its rank processes say.
//
// Invariants: one request, one answer, in turn. An answer is {"ok": value} or {"error": text}.
// Errors: std::runtime_error when the other side is gone or does not answer in time.
// Depends on: nlohmann json, POSIX. No torch.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

namespace equigrad::perf {

class Channel {
 public:
  explicit Channel(int descriptor) : descriptor_(descriptor) {}

  void send(const nlohmann::json& message);
  // The next line; throws when the other side has closed.
  nlohmann::json receive(std::chrono::milliseconds timeout = std::chrono::hours(24));
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
  std::string rest_;
};

}  // namespace equigrad::perf
