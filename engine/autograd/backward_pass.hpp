// BackwardPass: when a backward pass begins, when a parameter's gradient is ready in it, and when
// it ends.
//
// Autograd tells, whoever started the pass (engine.backward, loss.backward, out.backward(grad)): a
// hook after a leaf has accumulated, once per leaf and graph task, and a callback at the end of the
// graph task. The gradient is taken out of .grad, so .grad is undefined between passes and nothing
// is added twice. A graph task that runs inside a node of another (reentrant checkpointing) belongs
// to the pass of the outermost one.
//
// Invariants: begin, ready*, end come in this order for every pass that reaches a parameter; a
// parameter that the pass does not reach is not ready; a pass that throws after its begin is
// abandoned instead of ended, before the exception reaches the caller.
// Shapes: a gradient has its parameter's shape and dtype, dense.
// Errors: those of the callbacks, which reach the caller of backward with their type. A sparse
// gradient is refused.
// Depends on: ATen tensors; autograd's hooks and gradient/graph_tasks in the source.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace equigrad::autograd {

struct PassCallbacks {
  std::function<void()> begin;
  std::function<void(std::size_t parameter, at::Tensor gradient)> ready;
  std::function<void()> end;
  std::function<void()> abandoned;  // must not throw
  // At the first gradient of each graph task of the pass, after `begin`; may be empty.
  std::function<void()> graph_task = {};
};

struct WatchedParameter {
  std::size_t index;  // handed to `ready`
  std::string name;
  at::Tensor tensor;  // a leaf that requires a gradient
};

// Whether a BackwardPass that still lives watches this leaf.
bool is_watched(const at::Tensor& leaf);

// Drops what .grad holds when it begins: it belongs to no window.
class BackwardPass {
 public:
  // Of several that take part in one pass, the smaller order ends first.
  BackwardPass(std::vector<WatchedParameter> parameters, PassCallbacks callbacks,
               int64_t order = 0);
  ~BackwardPass();  // the parameters are plain leaves again
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;

  // Passes that ended, since construction.
  int64_t completed() const;
  // Inside of a graph task: it is one of this pass, whatever it reaches. Who calls it at the root
  // ends at its place among all that take part, on ranks that reach no parameter too.
  void join();
  // Runs `backward`. A pass that reaches no parameter of this rank still begins and ends, or is
  // abandoned, since others wait for it; unless it is part of a pass that is under way.
  void run(const std::function<void()>& backward);

 private:
  struct State;
  struct Task;
  class Hook;
  friend bool is_watched(const at::Tensor& leaf);
  std::shared_ptr<State> state_;
};

}  // namespace equigrad::autograd
