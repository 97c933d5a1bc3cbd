// Values of the optimizer that are refused, each with the path of its key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/testing/config_text.hpp"
#include "engine/config/config.hpp"
#include "engine/config/load_for_client.hpp"

namespace equigrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> problems_of_sgd(const std::string& params) {
  return conformance::problems(
      R"({"train_batch_size": 2, "optimizer": {"type": "SGD", "params": {)" + params + "}}}");
}

TEST(OptimizerSection, NesterovNeedsMomentumAndNoDampening) {
  EXPECT_THAT(problems_of_sgd(R"("nesterov": true, "momentum": 0.5)"), IsEmpty());
  for (const char* wrong :
       {R"("momentum": 0, "dampening": 0)", R"("momentum": 0, "dampening": 0.5)",
        R"("momentum": 0.5, "dampening": 0.5)"}) {
    EXPECT_THAT(problems_of_sgd(R"("nesterov": true, )" + std::string(wrong)),
                ElementsAre(HasSubstr("nesterov: expected a momentum above 0 and no dampening")))
        << wrong;
    EXPECT_THAT(problems_of_sgd(R"("nesterov": false, )" + std::string(wrong)), IsEmpty()) << wrong;
  }
}

// Keys of an optimizer that is not here would be taken for misspelt ones.
TEST(OptimizerSection, ParametersOfARefusedTypeAreNotLookedAt) {
  const auto of = [](const std::string& type) {
    return conformance::problems(R"({"train_batch_size": 2, "optimizer": {"type": ")" + type +
                                 R"(", "params": {"lr": 1e-3, "freeze_step": 3}}})");
  };
  for (const char* type : {"OneBitAdam", "onebitadam"})
    EXPECT_THAT(of(type), ElementsAre(HasSubstr("optimizer.type: expected SGD, Adam or AdamW")));
  EXPECT_THAT(of("OneBitAdma"), testing::SizeIs(2));
  EXPECT_THAT(of("Adam"), ElementsAre(HasSubstr("params.freeze_step: expected a known key")));
}

TEST(OptimizerSection, IsTheCallersOrTheConfigurations) {
  const std::string batch = R"({"train_batch_size": 2)";
  EXPECT_THROW(load_config(batch + "}", 2), ConfigError);
  EXPECT_EQ(load_config_for_client(batch + "}", 2).optimizer, OptimizerConfig{});
  for (const char* both : {R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})",
                           R"(, "optimizer": {}})", R"(, "optimizer": {"type": "Sgdd"}})"})
    EXPECT_THROW(load_config_for_client(batch + both, 2), ConfigError) << both;
  try {
    load_config_for_client(batch + R"(, "optimizer": {"type": "SGD"}})", 2);
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("optimizer: expected no optimizer beside the one"));
  }
}

}  // namespace
}  // namespace equigrad
