// The batch: who counts the passes of a step, and what that says of a window.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/testing/config_text.hpp"
#include "engine/config/config.hpp"

namespace equigrad {
namespace {

using conformance::problems;
using conformance::setting;
using conformance::with;

EngineConfig managed(const std::string& value, int steps = 1) {
  return parse_config(R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )" +
                          std::to_string(steps) + R"(, "managed_gradient_accumulation": )" + value +
                          R"(, "optimizer": {"type": "SGD"}})",
                      2);
}

TEST(Batch, TheEngineCountsPassesUnlessTheCallerDoes) {
  EXPECT_TRUE(parse_config(with(R"("dump_state": false)"), 2).managed_gradient_accumulation);
  EXPECT_TRUE(managed("true").managed_gradient_accumulation);
  EXPECT_FALSE(managed("false").managed_gradient_accumulation);
  const std::string key = R"("managed_gradient_accumulation": )";
  EXPECT_EQ(setting(with(key + "false"), "managed_gradient_accumulation").origin,
            Setting::Origin::File);
  EXPECT_FALSE(problems(with(key + "0")).empty());
}

TEST(Batch, AWindowIsExpectedToHaveOnePassIfTheEngineCountsToOne) {
  EXPECT_TRUE(managed("true").expects_one_pass());
  EXPECT_FALSE(managed("true", 3).expects_one_pass());
  EXPECT_FALSE(managed("false").expects_one_pass());
  EXPECT_FALSE(managed("false", 3).expects_one_pass());
  EXPECT_TRUE(managed("true").reduces_eagerly(2));
  EXPECT_FALSE(managed("false").reduces_eagerly(2));
}

}  // namespace
}  // namespace equigrad
