// A build without CUDA refuses ranks on CUDA devices, by name and with the remedy. This program's
// NCCL is that of such a build; it stands before the harness's, so connect() meets it.
#define EQUIGRAD_WITHOUT_CUDA "its torch has no libtorch_cuda.so. Keep the model on the CPU"
#include "engine/comm/without_cuda.cpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/launch.hpp"

namespace equigrad::comm {
namespace {

using testing::HasSubstr;

const char* kRefusal =
    "[comm.connect] expected parameters on the CPU, got a CUDA device; this build of Equigrad has "
    "no CUDA: its torch has no libtorch_cuda.so. Keep the model on the CPU.";

TEST(WithoutCuda, ConnectingOnACudaDeviceSaysWhyAndWhatToDo) {
  EXPECT_THAT([] { connect(LaunchEnvironment{}, c10::kCUDA, std::chrono::seconds(1)); },
              testing::ThrowsMessage<Error>(HasSubstr(kRefusal)));
  EXPECT_THAT([] { connect_nccl(0, 1, 0, "", std::chrono::seconds(1)); },
              testing::ThrowsMessage<Error>(HasSubstr(kRefusal)));
  EXPECT_EQ(connect(LaunchEnvironment{}, c10::kCPU, std::chrono::seconds(60))->world_size(), 1);
}

}  // namespace
}  // namespace equigrad::comm
