#include "perf/worker/operators.hpp"

#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <utility>

namespace equigrad::perf {
namespace {

std::atomic<int64_t> g_operators = 0;
bool g_installed = false;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& /*function*/) {
  ++g_operators;
  return nullptr;
}

}  // namespace

void install_operator_counter() {
  if (std::exchange(g_installed, true)) return;
  at::addGlobalCallback(at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}));
}

int64_t operators() { return g_operators; }

}  // namespace equigrad::perf
