// A build without CUDA refuses tensors on a CUDA device, by name and with the remedy. This
// program's kernels are those of such a build; they stand before the harness's.
#define EQUIGRAD_WITHOUT_CUDA "no nvcc was found. Install one, and build it again"
#include "engine/kernels/without_cuda.cpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace equigrad::kernels {
namespace {

using testing::HasSubstr;

const char* kRefusal =
    "expected a tensor on the CPU, got one on a CUDA device; this build has no CUDA kernels: no "
    "nvcc was found. Install one, and build it again.";

TEST(WithoutCuda, EveryKernelSaysWhyAndWhatToDo) {
  float value = 1;
  int64_t words[kWords] = {};
  EXPECT_THAT([&] { tree_sum_cuda(&value, Element::Fp32, 1, 1, &value, Element::Fp32, nullptr); },
              testing::ThrowsMessage<Error>(HasSubstr(kRefusal)));
  EXPECT_THAT([&] { square_sum_cuda(&value, Element::Fp32, 1, words, nullptr); },
              testing::ThrowsMessage<Error>(HasSubstr(kRefusal)));
  EXPECT_THAT([&] { largest_cuda(&value, Element::Fp32, 1, words, nullptr); },
              testing::ThrowsMessage<Error>(HasSubstr(kRefusal)));
}

}  // namespace
}  // namespace equigrad::kernels
