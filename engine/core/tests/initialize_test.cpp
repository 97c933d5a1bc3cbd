// What initialize() does before there is an engine.
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <cstdlib>
#include <string>

#include "conformance/testing/port.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/engine.hpp"

namespace equigrad {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// The first of two ranks, of which the other one never comes.
class FirstOfTwo : public testing::Test {
 protected:
  FirstOfTwo() {
    set("RANK", "0");
    set("WORLD_SIZE", "2");
    set("LOCAL_RANK", "0");
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(port_.number()));
  }
  ~FirstOfTwo() override {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
      unsetenv(name);
  }

 private:
  static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
  conformance::Port port_;
};

TEST_F(FirstOfTwo, WaitsAsLongAsTheConfigurationSays) {
  torch::nn::Linear model(2, 2);
  EXPECT_THAT(
      [&] {
        initialize(*model, R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"},
                               "communication_timeout_s": 0.75})");
      },
      ThrowsMessage<comm::CommunicationError>(HasSubstr("within 750 ms")));
}

}  // namespace
}  // namespace equigrad
