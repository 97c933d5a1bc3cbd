#include "conformance/ranks/interrupt.hpp"

#include <csignal>

namespace equigrad::conformance::ranks {
namespace {

volatile std::sig_atomic_t signal_number = 0;

void remember(int number) { signal_number = number; }

}  // namespace

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // no SA_RESTART: poll() must return
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int interrupted() { return signal_number; }

}  // namespace equigrad::conformance::ranks
