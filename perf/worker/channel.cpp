#include "perf/worker/channel.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace equigrad::perf {

void Channel::send(const nlohmann::json& message) {
  const std::string text =
      message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = ::send(descriptor_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw std::runtime_error("[channel] the other side is gone.");
    sent += static_cast<std::size_t>(n);
  }
}

nlohmann::json Channel::receive(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (std::size_t end; (end = rest_.find('\n')) == std::string::npos;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    pollfd wanted{descriptor_, POLLIN, 0};
    const int ready = left.count() > 0 ? poll(&wanted, 1, static_cast<int>(left.count())) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) throw std::runtime_error("[channel] expected an answer, got none in time.");
    char bytes[65536];
    const ssize_t n = recv(descriptor_, bytes, sizeof bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw std::runtime_error("[channel] the other side is gone.");
    rest_.append(bytes, static_cast<std::size_t>(n));
  }
  const std::size_t end = rest_.find('\n');
  const std::string line = rest_.substr(0, end);
  rest_.erase(0, end + 1);
  return nlohmann::json::parse(line);
}

}  // namespace equigrad::perf
