// A check of a model that is on another device than the CPU.
#include <gmock/gmock.h>

#include "conformance/check/check.hpp"
#include "conformance/check/check_cases.hpp"
#include "conformance/check/tests/other_models.hpp"
#include "conformance/testing/error_of.hpp"
#include "conformance/testing/host_device.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const std::vector<std::string> kOneStyle = {"engine_backward"};

template <class Model, class Loss>
MakeSubject subjects(Loss loss) {
  return subject_maker(user_model([] { return std::make_shared<Model>(); }, loss));
}

// Its loss is refused on the CPU.
template <class Model, class Loss>
MakeSubject subjects_there(Loss loss) {
  return subjects<Model>([loss](Model& model, const Which& which) {
    if (which.device.is_cpu()) throw std::runtime_error("a pass on the CPU");
    if (at::globalContext().defaultGenerator(which.device).current_seed() != which.seed)
      throw std::runtime_error("a generator that was not seeded");
    for (const auto& parameter : model.parameters())
      if (parameter.device() != which.device) throw std::runtime_error("a parameter elsewhere");
    return loss(model, which);
  });
}

TEST(CheckOnADevice, ModelsHoldThereInEveryLane) {
  const CheckOptions options{
      .ranks = {2}, .precisions = {"fp32", "bf16", "fp16"}, .styles = kOneStyle};
  for (const auto& make :
       {subjects_there<Encoder>(encoder_loss), subjects_there<Knotted>(knotted_loss)}) {
    const auto report = run_check(make, options, take_host_device);
    EXPECT_TRUE(report.held) << report.text();
    EXPECT_EQ(report.run.cases.size(), 12u);
    for (const auto& planted : report.run.self_checks) EXPECT_TRUE(planted.caught);
    EXPECT_GE(report.run.self_checks.size(), 3u);
    for (const auto& one : report.run.cases)
      for (const auto& lane : one.lanes) EXPECT_GT(lane.compared, 0) << one.id << lane.name;
  }
}

TEST(CheckOnADevice, AFaultIsSeenThere) {
  const auto report =
      run_check(subjects_there<Knotted>(knotted_loss),
                {.ranks = {2}, .stages = {2}, .styles = kOneStyle, .fault = "averaged_twice"},
                take_host_device);
  EXPECT_FALSE(report.held);
  EXPECT_THAT(report.text(), HasSubstr("averaged twice over 2 ranks"));
}

TEST(CheckOnADevice, ABatchThatStaysOnTheCpuIsTheModels) {
  const auto make = subjects<Knotted>([](Knotted& model, const Which& which) {
    auto here = which;
    here.device = at::kCPU;
    return knotted_loss(model, here);
  });
  EXPECT_THAT(error_of([&] { run_check(make, {.stages = {1}}, take_host_device); }),
              AllOf(HasSubstr("expected the model to run by plain autograd"), HasSubstr("host")));
}

TEST(CheckOnADevice, NumbersThatDifferFromPassToPassAreRefusedWithTheirOperator) {
  const auto make = subjects_there<Knotted>([](Knotted& model, const Which& which) {
    static float count = 0;
    return knotted_loss(model, which) * (1 + at::full({}, ++count).to(which.device));
  });
  EXPECT_THAT(error_of([&] { run_check(make, {.stages = {1}}, take_host_device); }),
              AllOf(HasSubstr("run twice under one seed"), HasSubstr("another result is aten::")));
}

TEST(CheckOnADevice, ExactSumsAreLeftOutOnCudaAndNoOtherDeviceIsKnown) {
  const auto cases = cases_without_styles(
      {.stages = {1, 2}, .precisions = {"fp32", "fp32-exact"}, .device = "cuda"});
  EXPECT_EQ(cases.cases.size(), 2u);
  EXPECT_THAT(cases.not_run, ElementsAre(Pair("sums are pinned on CUDA, not exact", 2)));
  EXPECT_THAT(error_of([] { cases_without_styles({.device = "cuda:1"}); }),
              HasSubstr("expected the device cpu or cuda, got \"cuda:1\""));
}

}  // namespace
}  // namespace equigrad::conformance
