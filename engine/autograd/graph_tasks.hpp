// Graph tasks: the end of the backward pass that the current node belongs to.
//
// A graph task may run inside a node of another one (reentrant checkpointing); only the end of the
// outermost ends the pass. At the end of an inner one the outer is out of reach, until the node
// that ran it is done: a RecordFunction callback sees that, thrown or not.
//
// Several engines may take part in one pass; they end in the order of their numbers, which is the
// same on every rank, whatever the order in which their gradients arrive.
//
// Invariants: `at_end` is called once, on the thread that runs the pass, when the outermost graph
// task has ended without an exception; if it throws instead, `at_end` is destroyed uncalled, before
// the exception reaches the caller.
// Limit: beyond 60 levels of nesting autograd goes on in another thread, where an inner end cannot
// be told from the outermost; the pass then counts as several.
// Errors: what `at_end` throws reaches the caller of backward.
// Depends on: shared_callback.hpp; autograd's engine, in the source.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/autograd/shared_callback.hpp"

namespace equigrad::autograd {

// While one lives, nested graph tasks are seen.
class GraphTaskObserver {
 public:
  GraphTaskObserver();

 private:
  SharedCallback::Use use_;
};

// -1 outside of one.
int current_graph_task();

// To be called inside a graph task. A smaller order comes first.
void at_end_of_pass(int64_t order, std::function<void()> at_end);

}  // namespace equigrad::autograd
