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

EngineConfig managed(const std::string& value, const std::string& more = "") {
  return parse_config(with(R"("managed_gradient_accumulation": )" + value + more), 2);
}

TEST(Batch, TheEngineCountsPassesUnlessTheCallerDoes) {
  EXPECT_TRUE(parse_config(with(R"("dump_state": false)"), 2).managed_gradient_accumulation);
  EXPECT_TRUE(managed("true").managed_gradient_accumulation);
  EXPECT_FALSE(managed("false").managed_gradient_accumulation);
  EXPECT_EQ(
      setting("managed_gradient_accumulation", with(R"("managed_gradient_accumulation": false)"))
          .origin,
      Setting::Origin::File);
  EXPECT_FALSE(problems(with(R"("managed_gradient_accumulation": 0)")).empty());
}

TEST(Batch, AWindowIsExpectedToHaveOnePassIfTheEngineCountsToOne) {
  const std::string three = R"(, "gradient_accumulation_steps": 3)";
  EXPECT_TRUE(managed("true").expects_one_pass());
  EXPECT_FALSE(managed("true", three).expects_one_pass());
  EXPECT_FALSE(managed("false").expects_one_pass());
  EXPECT_FALSE(managed("false", three).expects_one_pass());
  EXPECT_TRUE(managed("true").reduces_eagerly(2));
  EXPECT_FALSE(managed("false").reduces_eagerly(2));
}

}  // namespace
}  // namespace equigrad
