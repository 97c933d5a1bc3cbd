// Parallel: a loop over the elements of an array, on the threads that torch's own operators have.
//
//   parallel_for(numel, [&](int64_t begin, int64_t end) { .. });
//
//   elements   0 ............ a ............ 2 a ............ numel
//   parts      |- the caller -|- a thread ----|- a thread -----|
//
// As many threads as at::get_num_threads() says (torch::set_num_threads, OMP_NUM_THREADS), of one
// pool with torch's: at::TensorIterator gives the parts out, inside libtorch_cpu.so. The loop of
// ATen/Parallel.h is inline, and parallel only in sources that are compiled with OpenMP: with
// clang's libomp there would be two such libraries in a process, whose threads spin against each
// other, and libgomp of the wheel can be linked by g++ alone. It costs half a microsecond a loop
// more than that one (1.2 beside 0.7, two threads, g++ with OpenMP, torch 2.11).
//
// Invariants: every element is in one part. Where parts begin depends on the number of threads, so
// what a loop computes must not: element by element, or a sum of integers, which has no order.
// All is one part, on the caller's thread, below 2 kGrainNumel elements, with one thread, inside a
// parallel loop, and in a process that was forked after its parent's loops had threads, for threads
// do not come along. They are made by the first loop that needs them, so a process that was forked
// before has its own. A loop touches memory only: a thread has neither the caller's grad mode nor
// its dispatch keys, nor the interpreter's lock.
// Units: numel counts elements.
// Errors: the first exception of a part, thrown to the caller when all parts have ended.
// Depends on: c10::function_ref; the source on ATen's TensorIterator.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace equigrad::kernels {

inline constexpr int64_t kGrainNumel = int64_t{1} << 15;  // at least so many to a thread

using Part = c10::function_ref<void(int64_t begin, int64_t end)>;

void run_parts(int64_t numel, Part part);

template <class Loop>
void parallel_for(int64_t numel, const Loop& loop) {
  if (numel < 2 * kGrainNumel) return loop(int64_t{0}, numel);
  run_parts(numel, loop);
}

// Of this process, so far: what tells a loop that ran on threads from one that did not.
int64_t parts_on_other_threads();

}  // namespace equigrad::kernels
