// Models that are none of the zoo's are green on every stage, and red with a fault in their engine.
#include "conformance/check/check.hpp"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <future>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "conformance/campaigns/environment.hpp"
#include "conformance/check/check_case.hpp"
#include "conformance/check/tests/other_models.hpp"
#include "conformance/testing/error_of.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

template <class Model>
std::shared_ptr<Model> make() {
  return std::make_shared<Model>();
}

const std::vector<std::string> kOneStyle = {"engine_backward"};

int64_t compared_in(const CheckReport& report, const std::string& lane) {
  int64_t sum = 0;
  for (const auto& one : report.run.cases)
    for (const auto& of : one.lanes)
      if (of.name == lane) sum += of.compared;
  return sum;
}

TEST(Check, AConvolutionalNetHoldsInEveryLane) {
  const auto report = equigrad::check(make<ConvNet>, conv_loss, {.ranks = {2}});
  EXPECT_TRUE(report.held) << report.text();
  EXPECT_EQ(report.run.cases.size(), 12u);  // 4 stages in 3 styles
  for (const char* lane : {"exact", "bounded", "cross"}) EXPECT_GT(compared_in(report, lane), 0);
  EXPECT_EQ(report.compared, compared_in(report, "exact") + compared_in(report, "bounded") +
                                 compared_in(report, "cross"));
  EXPECT_GE(report.run.self_checks.size(), 3u);
  for (const auto& planted : report.run.self_checks) EXPECT_TRUE(planted.caught) << planted.fault;
}

TEST(Check, OneAndThreeRanksHoldUnderAutocast) {
  EXPECT_GRADIENTS_EQUAL(equigrad::check(
      [] { return std::make_shared<ConvNet>(); }, conv_loss,
      {.ranks = {1, 3}, .precisions = {"fp32", "autocast-bf16"}, .styles = kOneStyle}));
}

TEST(Check, AnLstmHoldsInBf16AndUnderALossScaleThatOverflows) {
  EXPECT_GRADIENTS_EQUAL(equigrad::check(
      make<Recurrent>, recurrent_loss,
      {.ranks = {2}, .precisions = {"fp32", "bf16", "fp16"}, .styles = {"loss_backward"}}));
}

TEST(Check, ATransformerLayerHolds) {
  EXPECT_GRADIENTS_EQUAL(equigrad::check(
      make<Encoder>, encoder_loss,
      {.ranks = {3}, .precisions = {"fp32", "bf16"}, .styles = kOneStyle, .accumulation = {1, 3}}));
}

TEST(Check, TiedFrozenUnusedAndSometimesUsedParametersHold) {
  EXPECT_GRADIENTS_EQUAL(
      equigrad::check(make<Knotted>, knotted_loss,
                      {.ranks = {2, 3}, .precisions = {"fp32", "bf16"}, .styles = kOneStyle}));
}

TEST(Check, AnOutputWithItsGradientHoldsInTheStyleThatItHas) {
  const auto pair = [](Recurrent& model, const Which& which) {
    const auto output = model.head(std::get<0>(model.lstm(drawn(which, {5, 3, 6}))));
    return std::pair(output, drawn(which, {5, 3, 3}, 1));
  };
  const auto report = equigrad::check(make<Recurrent>, pair, {.precisions = {"fp32", "fp16"}});
  EXPECT_TRUE(report.held) << report.text();
  for (const auto& one : report.run.cases) EXPECT_EQ(one.dimensions.at("style"), "tensor_backward");
  EXPECT_THROW(equigrad::check(make<Recurrent>, pair, {.styles = kOneStyle}), Error);
}

// A module itself may be the model, and be of a class that autocast sends in fewer bits.
TEST(Check, AModuleWithItsParametersAtTheRootHoldsUnderAutocast) {
  const auto loss = [](torch::nn::LinearImpl& model, const Which& which) {
    return (model.forward(drawn(which, {4, 5})) - 1).square().mean();
  };
  EXPECT_GRADIENTS_EQUAL(equigrad::check([] { return torch::nn::Linear(5, 3); }, loss,
                                         {.precisions = {"autocast-bf16"}, .styles = kOneStyle}));
}

TEST(Check, AUsersConfigurationSaysStageAndPrecision) {
  const std::string config = R"({"train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 3, "gradient_clipping": 0.05, "bf16": {"enabled": true},
    "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 10}})";
  const auto report = equigrad::check(make<Recurrent>, recurrent_loss,
                                      {.ranks = {3}, .styles = kOneStyle, .config = config});
  EXPECT_TRUE(report.held) << report.text();
  ASSERT_EQ(report.run.cases.size(), 1u);
  EXPECT_THAT(report.run.cases[0].id, HasSubstr("zero3.bf16.w3.accumulation3"));
  EXPECT_THAT(report.notes, Contains(HasSubstr("scheduler")));
  const auto more = equigrad::check(
      make<Recurrent>, recurrent_loss,
      {.stages = {0, 2}, .precisions = {"fp32"}, .styles = kOneStyle, .config = config});
  EXPECT_TRUE(more.held) << more.text();
  EXPECT_EQ(more.run.cases.size(), 2u);
}

TEST(Check, APrecisionThatIsGivenTakesThePlaceOfTheConfigurations) {
  for (const std::string section :
       {R"("fp16": {"enabled": true})", R"("bf16": {"enabled": true})",
        R"("amp": {"enabled": true})", R"("torch_autocast": {"enabled": true, "dtype": "bf16"})",
        R"("prescale_gradients": true)", R"("gradient_allreduce_op": "sum")",
        R"("communication_data_type": "fp16", "reduction": "native")"}) {
    const std::string config = R"({"train_micro_batch_size_per_gpu": 4,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, )" +
                               section + "}";
    EXPECT_THAT(spec_of_config(config_with(config, 1, "fp32"), 2).id(), HasSubstr("zero1.fp32."))
        << section;
    EXPECT_THAT(spec_of_config(config_with(config, 2, "autocast-fp16"), 2).id(),
                HasSubstr("zero2.autocast-fp16."))
        << section;
  }
}

TEST(Check, AFaultInTheEngineIsSeenAndNamed) {
  const auto seen = [](const std::string& fault, const std::string& cause) {
    const auto report = equigrad::check(
        make<ConvNet>, conv_loss,
        {.ranks = {2}, .stages = {2}, .styles = kOneStyle, .accumulation = {3}, .fault = fault});
    EXPECT_FALSE(report.held) << fault;
    EXPECT_THAT(report.text(), HasSubstr(cause)) << fault;
    EXPECT_THAT(report.text(), HasSubstr("# note: planted into every case, which is to fail where "
                                         "it acts: " +
                                         fault))
        << fault;
  };
  seen("averaged_twice", "averaged twice");
  seen("micro_batch_dropped", "micro-batch 2 of rank 1 is missing");
  seen("gather_stale", "parameter");
}

// In its second step, where the first passes have been looked at already.
TEST(Check, AModelThatDiesOrThrowsLaterIsSaidToBeTheModel) {
  const auto told = [](bool dies) {
    const auto loss = [dies](ConvNet& model, const Which& which) {
      if (which.step == 2 && dies) raise(SIGABRT);
      if (which.step == 2) throw std::runtime_error("of the model");
      return conv_loss(model, which);
    };
    return error_of(
        [&] { equigrad::check(make<ConvNet>, loss, {.stages = {1}, .styles = kOneStyle}); });
  };
  EXPECT_THAT(told(true), AllOf(HasSubstr("expected the model to run by plain autograd"),
                                HasSubstr("signal 6 (Aborted)")));
  EXPECT_THAT(told(false), AllOf(HasSubstr("expected the model to run by plain autograd"),
                                 HasSubstr("of the model")));
}

TEST(Check, AProcessThatHasThreadsIsToldWhatToDo) {
  std::promise<void> over;
  std::thread other([&] { over.get_future().wait(); });
  const auto said = error_of(
      [&] { equigrad::check(make<ConvNet>, conv_loss, {.stages = {1}, .styles = kOneStyle}); });
  over.set_value();
  other.join();
  EXPECT_THAT(said, AllOf(HasSubstr("expected one thread where ranks are forked, got 2"),
                          HasSubstr("OMP_NUM_THREADS=1")));
}

// What only the processes of the engine do, the twin does not.
struct Stained : torch::nn::Module {
  Stained() {
    register_module("linear", linear);
    process = register_buffer("process", at::zeros({1}, at::kLong));
  }
  torch::nn::Linear linear{5, 3};
  at::Tensor process;
};

TEST(Check, ABufferThatDiffersIsSeen) {
  const auto loss = [](Stained& model, const Which& which) {
    model.process.fill_(getpid());
    return model.linear(drawn(which, {4, 5})).square().mean();
  };
  const auto report = equigrad::check(make<Stained>, loss, {.stages = {1}, .styles = kOneStyle});
  EXPECT_FALSE(report.held);
  EXPECT_THAT(report.text(), HasSubstr("step 1 buffer process"));
}

// It reads floats, so that it does not run in fp64.
TEST(Check, WhatWasNotComparedIsNamed) {
  const auto loss = [](torch::nn::LinearImpl& model, const Which& which) {
    auto batch = drawn(which, {4, 5}).to(at::kFloat);
    return model.forward(batch).square().mean();
  };
  const auto report =
      equigrad::check([] { return torch::nn::Linear(5, 3); }, loss, {.styles = kOneStyle});
  EXPECT_TRUE(report.held) << report.text();
  EXPECT_THAT(report.notes,
              Contains(AllOf(HasSubstr("not compared  bound: "), HasSubstr("more bits"))));
  EXPECT_THAT(report.text(), HasSubstr("# note: not compared  bound"));
  testing::internal::CaptureStdout();
  EXPECT_GRADIENTS_EQUAL(report);
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("equigrad: 4 cases: 4 equal"),
                    HasSubstr("equigrad: note: not compared  bound: ")));
}

// That such a check holds proves nothing, and it says so.
TEST(Check, AFaultThatNeverActsIsTold) {
  const auto report =
      equigrad::check(make<ConvNet>, conv_loss,
                      {.ranks = {2}, .stages = {0}, .styles = kOneStyle, .fault = "gather_stale"});
  EXPECT_TRUE(report.held);
  EXPECT_THAT(report.text(), HasSubstr("The planted fault \"gather_stale\" never acted in "));
}

TEST(Check, ReportsLieInTheirFolder) {
  std::string folder = ::testing::TempDir() + "check-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto report = equigrad::check(make<Recurrent>, recurrent_loss,
                                      {.stages = {2},
                                       .styles = kOneStyle,
                                       .report = folder + "/below",
                                       .name = "lstm",
                                       .fault = "averaged_twice"});
  const auto read = [&](const std::string& name) {
    std::ifstream file(folder + "/below/" + name);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  EXPECT_THAT(read("junit.xml"), HasSubstr("averaged twice"));
  EXPECT_THAT(read("run.json"), HasSubstr("lstm.engine_backward"));
  EXPECT_THAT(read("index.html"), HasSubstr("<html"));
  EXPECT_THAT(read("history.jsonl"), HasSubstr("\"outcome\":\"failed\""));
  EXPECT_EQ(read("check.txt"), report.text());
  EXPECT_EQ(report.run.environment.cpu, environment_here().cpu);
  EXPECT_EQ(report.run.environment.os, environment_here().os);
  const auto& id = report.run.cases.at(0).id;
  EXPECT_THAT(read("fail/" + id + "/message.txt"), HasSubstr("averaged twice"));
  EXPECT_THAT(read("fail/" + id + "/config.json"), HasSubstr("zero_optimization"));
  EXPECT_NE(read("fail/" + id + "/rank0.safetensors"), "");
  EXPECT_THAT(report.run.cases.at(0).replay, HasSubstr("EQUIGRAD_CHECK_ONLY=" + id));
}

TEST(Check, OneCaseIsRepeatedByItsName) {
  const CheckOptions options{.stages = {1, 2}, .styles = kOneStyle};
  ASSERT_EQ(setenv("EQUIGRAD_CHECK_ONLY", "zero2", 1), 0);
  const auto report = equigrad::check(make<Recurrent>, recurrent_loss, options);
  setenv("EQUIGRAD_CHECK_ONLY", "zero7", 1);
  EXPECT_THROW(equigrad::check(make<Recurrent>, recurrent_loss, options), Error);
  unsetenv("EQUIGRAD_CHECK_ONLY");
  EXPECT_TRUE(report.held) << report.text();
  ASSERT_EQ(report.run.cases.size(), 1u);
  EXPECT_THAT(report.run.cases[0].id, HasSubstr("zero2"));
}

TEST(Check, OptionsThatMeanNothingAreRefused) {
  const auto refused = [](const CheckOptions& options) {
    try {
      equigrad::check(make<Recurrent>, recurrent_loss, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused({.ranks = {0}}), HasSubstr("ranks from 1 to 64, got 0"));
  EXPECT_THAT(refused({.ranks = {}}), HasSubstr("values for ranks, got none"));
  EXPECT_THAT(refused({.stages = {4}}), HasSubstr("stages from 0 to 3, got 4"));
  EXPECT_THAT(refused({.precisions = {"fp8"}}),
              AllOf(HasSubstr("fp32, bf16"), HasSubstr("got \"fp8\"")));
  EXPECT_THAT(refused({.styles = {"backward"}}), HasSubstr("engine_backward, scale_backward"));
  EXPECT_THAT(refused({.fault = "averaged_twise"}),
              AllOf(HasSubstr("expected a fault that can be planted, got \"averaged_twise\""),
                    HasSubstr("Did you mean \"averaged_twice\"?")));
  EXPECT_THAT(refused({.name = "a.b"}), HasSubstr("a name of letters"));
  EXPECT_THAT(refused({.config = "nowhere.json"}), HasSubstr("nowhere.json"));
  EXPECT_THAT(refused({.config = R"({"zero_optimization": {"stage": 5}})"}), HasSubstr("stage"));
  EXPECT_THAT(refused({.stages = {0}, .precisions = {"offload"}}),
              HasSubstr("offload is not defined at stage 0"));
}

}  // namespace
}  // namespace equigrad::conformance
