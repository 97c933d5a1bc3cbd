// The configured profiler: at the step that it names, once, on the first rank, and not elsewhere.
#include "engine/profile/profiled_step.hpp"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "conformance/testing/rank_test.hpp"
#include "engine/engine.hpp"

namespace equigrad::profile {
namespace {

using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

std::string config_text(int stage, const std::string& output_file) {
  return nlohmann::json(
             {{"train_micro_batch_size_per_gpu", 4},
              {"gradient_accumulation_steps", 2},
              {"zero_optimization", {{"stage", stage}, {"stage3_param_persistence_threshold", 0}}},
              {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.1}}}}},
              {"flops_profiler",
               {{"enabled", true}, {"profile_step", 2}, {"output_file", output_file}}}})
      .dump();
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ProfiledStep, TheEngineWritesTheStepThatItsConfigurationNames) {
  EXPECT_EQ(
      on_ranks(2,
               [](RankContext& context) {
                 std::string first;
                 for (const int stage : {0, 3}) {
                   const auto folder = context.directory() + "/profile" + std::to_string(stage) +
                                       "-" + std::to_string(context.rank());
                   const std::string path = folder + "/step.json";
                   torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::Tanh(),
                                               torch::nn::Linear(16, 3));
                   const auto engine =
                       initialize(*model, config_text(stage, path), context.group());
                   for (int micro = 0; micro < 8; ++micro) {
                     // Two boundaries pass, the third step is profiled, the fourth is not.
                     EXPECT_EQ(contents(path).empty(), micro < 6 || context.rank() != 0) << micro;
                     engine->backward(engine->forward(*model, at::ones({4, 8})).sum());
                     engine->step();
                   }
                   if (context.rank() != 0) continue;
                   const auto report = nlohmann::json::parse(contents(path));
                   EXPECT_EQ(report.at("step"), 2);
                   // One micro-batch forward, biases included: 4 rows through 8 x 16, 16 x 3.
                   const auto model_row = report.at("modules").at(0);
                   const std::string macs = model_row.at("forward").at("macs").dump();
                   EXPECT_EQ(macs, std::to_string(4 * (8 * 16 + 16 * 3)));
                   if (stage == 0) first = macs;
                   EXPECT_EQ(macs, first);
                 }
               }),
      "");
}

}  // namespace
}  // namespace equigrad::profile
