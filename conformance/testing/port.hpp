// Port: a port of this process's, and of ranks that it forks, as long as this lives.
//
// Invariants: it is bound to a socket that does not listen. The kernel gives it to nobody else, and
// a server that names it, and reuses addresses as stores do, may listen there.
// Errors: std::runtime_error where no port is free.   Depends on: the system's sockets.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

namespace equigrad::conformance {

class Port {
 public:
  Port() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    address.sin_family = AF_INET;
    auto* name = reinterpret_cast<sockaddr*>(&address);
    const int reuse = 1;
    if (bind(socket_, name, length) != 0 || getsockname(socket_, name, &length) != 0 ||
        setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse) != 0)
      throw std::runtime_error("expected a free port, got none");
    number_ = ntohs(address.sin_port);
  }
  ~Port() { close(socket_); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  int number() const { return number_; }

 private:
  int socket_;
  int number_ = 0;
};

}  // namespace equigrad::conformance
