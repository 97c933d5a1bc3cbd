// From a module, or from named parameters, to an engine: what is taken, and what is refused.
#include "engine/core/assemble.hpp"

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdlib>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad {
namespace {

using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;
using torch::nn::Linear;

const char* const kConfig = R"({
  "train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": 3}})";

struct Network : torch::nn::Module {
  Linear first = register_module("first", Linear(4, 3));
  Linear second = register_module("second", Linear(3, 4));
  at::Tensor loss() { return second(at::tanh(first(sample(8, 3).view({2, 4})))).square().mean(); }
};

void forget_the_launcher() {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "PMI_RANK", "PMI_SIZE"}) {
    unsetenv(name);
  }
}

TEST(Assemble, AModuleAndAJsonTextAreEnoughForOneRank) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       forget_the_launcher();
                       Network network;
                       const auto engine = initialize(network, kConfig);
                       EXPECT_EQ(engine->config().zero.stage, 3);
                       const auto before = engine->full_parameter("first.weight");
                       for (int micro = 0; micro < 2; ++micro) {
                         engine->backward(network.loss());
                         engine->step();
                       }
                       EXPECT_EQ(engine->counters().global_steps, 1);
                       EXPECT_THAT(engine->full_parameter("first.weight"),
                                   testing::Not(HasTheBitsOf(before)));
                     }),
            "");
}

TEST(Assemble, WeightsOfSafeModulesAreRoundedForAutocastAndNoOthers) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       std::string config = kConfig;
                       config.insert(1, R"("torch_autocast": {"enabled": true, "dtype": "bf16",
                           "lower_precision_safe_modules": ["Linear"]},)");
                       struct Mixed : torch::nn::Module {
                         Linear linear = register_module("linear", Linear(4, 3));
                         at::Tensor own = register_parameter("own", sample(5, 7));
                       };
                       const auto weight = sample(12, 3).view({3, 4});
                       const auto own = sample(5, 7);
                       for (const char* stage : {"0", "1", "2", "3"}) {
                         auto text = config;
                         text.replace(text.find("\"stage\": 3") + 9, 1, stage);
                         Mixed fresh;
                         fresh.linear->weight.set_data(weight.clone());
                         fresh.own.set_data(own.clone());
                         const auto engine = initialize(fresh, text, context.group());
                         EXPECT_THAT(engine->full_parameter("own"), HasTheBitsOf(own));
                         EXPECT_THAT(engine->full_parameter("linear.weight"),
                                     HasTheBitsOf(weight.to(at::kBFloat16).to(at::kFloat)));
                       }
                     }),
            "");
}

TEST(Assemble, ASafeModuleThatTheModelDoesNotHaveIsAnError) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       std::string config = kConfig;
                       config.insert(1, R"("torch_autocast": {"enabled": true,
                           "lower_precision_safe_modules": ["my.Block"]},)");
                       Network network;
                       EXPECT_THAT(error_of([&] { initialize(network, config, context.group()); }),
                                   AllOf(HasSubstr("expected a module of the model"),
                                         HasSubstr("my.Block")));
                     }),
            "");
}

TEST(Assemble, TheEnvironmentOfALauncherIsRead) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext&) {
                       forget_the_launcher();
                       setenv("RANK", "0", 1);
                       setenv("WORLD_SIZE", "1", 1);
                       setenv("LOCAL_RANK", "0", 1);
                       Network network;
                       EXPECT_NE(initialize(network, kConfig), nullptr);
                       setenv("WORLD_SIZE", "none", 1);
                       EXPECT_THAT(error_of([&] { initialize(network, kConfig); }),
                                   HasSubstr("WORLD_SIZE"));
                     }),
            "");
}

TEST(Assemble, AGivenCommunicatorSaysHowManyRanksThereAre) {
  EXPECT_EQ(on_ranks(2,
                     [](RankContext& context) {
                       forget_the_launcher();
                       Network network;
                       const auto engine =
                           initialize(network,
                                      R"({"train_batch_size": 6, "gradient_accumulation_steps": 3,
                               "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})",
                                      context.group());
                       EXPECT_EQ(engine->config().train_micro_batch_size_per_gpu, 1);
                     }),
            "");
}

TEST(Assemble, AllRanksStartFromTheFirstRanksValues) {
  EXPECT_EQ(
      on_ranks(3,
               [](RankContext& context) {
                 const auto seed = static_cast<uint64_t>(context.rank());
                 ParameterGroup group;
                 group.parameters.push_back({"w", sample(10, seed).requires_grad_()});
                 group.parameters.push_back({"turned", sample(6, seed).view({2, 3}).t().detach()});
                 group.parameters.push_back({"empty", at::zeros({0}).requires_grad_()});
                 group.parameters.push_back({"count", at::full({2}, context.rank(), at::kLong)});
                 const auto assembly = assemble({group}, EngineConfig{}, context.group());
                 EXPECT_THAT(assembly.tensors[0].detach(), HasTheBitsOf(sample(10, 0)));
                 EXPECT_THAT(assembly.tensors[1],
                             HasTheBitsOf(sample(6, 0).view({2, 3}).t().contiguous()));
                 EXPECT_TRUE(at::equal(assembly.tensors[3], at::zeros({2}, at::kLong)));
               }),
      "");
}

TEST(Assemble, AModuleKnownByATiedParametersSecondNameCanBeALeaf) {
  EXPECT_EQ(
      on_ranks(
          1,
          [](RankContext& context) {
            std::string config = kConfig;
            const std::string stage = "\"stage\": 3";
            config.replace(config.find(stage), stage.size(),
                           stage + R"(, "leaf_module": {"names": ["head"]})");
            const auto tied = sample(4, 1).requires_grad_();
            const ParameterGroup group{{{"embed.weight", tied}, {"head.weight", tied}}, {}, {}};
            EXPECT_NE(initialize({group}, parse_config(config, 1), context.group()), nullptr);
          }),
      "");
}

TEST(Assemble, ATiedParameterIsOneUnderBothNames) {
  EXPECT_EQ(
      on_ranks(1,
               [](RankContext& context) {
                 const auto tied = sample(4, 1).requires_grad_();
                 const auto other = sample(3, 2).requires_grad_();
                 const ParameterGroup first{{{"a", tied}, {"b", other}}, 0.5, {}};
                 const ParameterGroup again{{{"a", tied}, {"c", tied}, {"b", other}}, {}, 0.1};
                 const auto assembly = assemble({again}, EngineConfig{}, context.group());
                 EXPECT_EQ(assembly.table.size(), 2U);
                 EXPECT_EQ(assembly.table.index_of("c"), assembly.table.index_of("a"));
                 EXPECT_TRUE(assembly.tensors[0].is_same(tied));
                 EXPECT_TRUE(assembly.tensors[1].is_same(other));
                 EXPECT_EQ(assembly.groups[0].weight_decay, 0.1);
                 EXPECT_EQ(assemble({first}, {}, context.group()).groups[0].lr, 0.5);
               }),
      "");
}

TEST(Assemble, AParameterWithoutAGradientIsFrozen) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       const ParameterGroup group{
                           {{"a", sample(4, 1).requires_grad_()},
                            {"frozen", at::zeros({3}, at::kLong)}},  // of any dtype
                           {},
                           {}};
                       const auto assembly = assemble({group}, {}, context.group());
                       EXPECT_TRUE(assembly.table[0].trainable);
                       EXPECT_FALSE(assembly.table[1].trainable);
                     }),
            "");
}

TEST(Assemble, AParameterBelongsToOneEngineAtATimeAndBringsNoGradient) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       forget_the_launcher();
                       Network network;
                       const std::string config =
                           R"({"train_batch_size": 1, "zero_optimization": {"stage": 3},
                               "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})";
                       const auto named = network.named_parameters();
                       for (const auto& item : named) item.value().sum().backward();
                       auto engine = initialize(network, config, context.group());
                       for (const auto& item : named)
                         EXPECT_FALSE(item.value().grad().defined()) << item.key();
                       EXPECT_THAT(error_of([&] { initialize(network, config, context.group()); }),
                                   HasSubstr("expected a parameter that no engine trains"));
                       engine.reset();
                     }),
            "");
}

std::string refusal(RankContext& context, const ParameterGroup& group, DataType dtype) {
  EngineConfig config;
  config.precision.param = dtype;
  return error_of([&] { assemble({group}, config, context.group()); });
}

TEST(Assemble, WhatCannotBeTrainedIsRefusedByName) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       const auto of = [](const at::Tensor& tensor) {
                         return ParameterGroup{{{"layer.w", tensor}}, {}, {}};
                       };
                       const auto leaf = at::zeros({2}).requires_grad_();
                       EXPECT_THAT(refusal(context, of(leaf * 2), DataType::Fp32),
                                   AllOf(HasSubstr("leaf"), HasSubstr("\"layer.w\""),
                                         HasSubstr("the result of an operator")));
                       EXPECT_THAT(refusal(context, of({}), DataType::Fp32),
                                   AllOf(HasSubstr("\"layer.w\""), HasSubstr("got none")));
                       for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
                         EXPECT_THAT(
                             refusal(context, of(leaf.detach().to(dtype).requires_grad_()),
                                     DataType::Fp32),
                             AllOf(HasSubstr("expected dtype Float for parameter \"layer.w\""),
                                   HasSubstr(c10::toString(dtype))));
                       }
                       const auto bf16 = leaf.detach().to(at::kBFloat16).requires_grad_();
                       EXPECT_EQ(refusal(context, of(bf16), DataType::Bf16), "");
                       EXPECT_EQ(refusal(context, of(leaf), DataType::Bf16), "");
                     }),
            "");
}

TEST(Assemble, AModelWithoutParametersIsRefused) {
  EXPECT_EQ(on_ranks(1,
                     [](RankContext& context) {
                       EXPECT_THAT(refusal(context, {}, DataType::Fp32),
                                   HasSubstr("expected at least one parameter"));
                       forget_the_launcher();
                       torch::nn::Module nothing;
                       EXPECT_THAT(error_of([&] { initialize(nothing, kConfig, context.group()); }),
                                   HasSubstr("expected at least one parameter"));
                     }),
            "");
}

TEST(Assemble, AConfigurationThatDoesNotFitTheRanksIsRefused) {
  EXPECT_EQ(on_ranks(3,
                     [](RankContext& context) {
                       Network network;
                       EXPECT_THAT(error_of([&] { initialize(network, kConfig, context.group()); }),
                                   HasSubstr("train_batch_size"));
                     }),
            "");
}

}  // namespace
}  // namespace equigrad
