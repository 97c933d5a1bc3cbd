#include "engine/autograd/interpreter_lock.hpp"

#include <atomic>

namespace equigrad::autograd {
namespace {

// Two words, for a reader must not wait: null until an interpreter is there.
std::atomic<void* (*)()> give_up = nullptr;
std::atomic<void (*)(void*)> take_back = nullptr;

}  // namespace

void set_interpreter_lock(const InterpreterLock& lock) {
  take_back = lock.take_back;
  give_up = lock.give_up;
}

WithoutInterpreter::WithoutInterpreter() : given_up_(nullptr) {
  if (auto* const call = give_up.load()) given_up_ = call();
}

WithoutInterpreter::~WithoutInterpreter() {
  if (given_up_ != nullptr) take_back.load()(given_up_);
}

}  // namespace equigrad::autograd
