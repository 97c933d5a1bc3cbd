// Interpreter lock: the lock of a caller's interpreter, given up while the engine waits inside an
// operator.
//
// A thread may hold it when an operator begins (autograd.Function.apply does), and the engine's
// collective may wait there for a thread that needs it, to drop a tensor the interpreter knows.
// Invariants: given up by a thread that holds it only, and taken back by the same thread; without
// an interpreter nothing happens.
// Errors: none of its own.
// Depends on: nothing of the engine's.
#pragma once

namespace equigrad::autograd {

struct InterpreterLock {
  void* (*give_up)();        // null: this thread does not hold it
  void (*take_back)(void*);  // what give_up returned, unless null
};

// For the process, once, before engines are made.
void set_interpreter_lock(const InterpreterLock& lock);

class WithoutInterpreter {
 public:
  WithoutInterpreter();
  ~WithoutInterpreter();
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  void* given_up_;
};

}  // namespace equigrad::autograd
