// The CUDA kernels of a build that has none: EQUIGRAD_WITHOUT_CUDA says why, and what to do.
#include "engine/error.hpp"
#include "engine/kernels/largest.hpp"
#include "engine/kernels/square_sum.hpp"
#include "engine/kernels/tree_sum.hpp"

namespace equigrad::kernels {
namespace {

[[noreturn]] void refuse(const char* kernel) {
  throw Error(kernel,
              "expected a tensor on the CPU, got one on a CUDA device; this build has no "
              "CUDA kernels: " EQUIGRAD_WITHOUT_CUDA ".");
}

}  // namespace

void tree_sum_cuda(const void*, Element, int, int64_t, void*, Element, void*) {
  refuse("kernels.tree_sum");
}
void square_sum_cuda(const void*, Element, int64_t, int64_t*, void*) {
  refuse("kernels.square_sum");
}
void largest_cuda(const void*, Element, int64_t, int64_t*, void*) { refuse("kernels.largest"); }

}  // namespace equigrad::kernels
