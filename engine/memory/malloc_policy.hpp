// Kept memory: what a step frees stays with the process for the next step.
//
// A step takes and frees the same blocks as the step before: gradients, activations, buckets, the
// window. glibc's malloc gives the largest back to the kernel when they are freed, and the kernel
// clears fresh pages for the next step: a tenth of the CPU's time at 5.3 M parameters, 2 ranks
// (perf/results/races.md). keep_freed_memory() tells malloc to keep them. The peak of a process was
// the same in those runs; between two steps it does not fall.
//
// Invariants: once a process, by the first engine. Nothing is changed where the user has said how
// malloc is to behave (GLIBC_TUNABLES with glibc.malloc, MALLOC_TRIM_THRESHOLD_,
// MALLOC_MMAP_THRESHOLD_, MALLOC_TOP_PAD_), or EQUIGRAD_KEEP_MEMORY=0; another allocator than
// glibc's is not touched.
// Errors: none: a malloc that declines either threshold goes on as before.   Depends on: the C
// library. Page: man 3 mallopt, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
#pragma once

namespace equigrad {

// Whether malloc keeps freed memory because of this.
bool keep_freed_memory();

}  // namespace equigrad
