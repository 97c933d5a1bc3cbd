// --device cuda: which cases are left out, and what is said where there is no device.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "conformance/cases/precision_modes.hpp"
#include "conformance/cli/inputs.hpp"
#include "conformance/cli/tests/command_result.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Devices = InAFolder;

// Where one is, the programs that use it are those of the `gpu` preset and of perf/gpu/run.
bool has_a_device() { return std::filesystem::exists("/proc/driver/nvidia/gpus"); }

TEST_F(Devices, ARunWithoutOneIsBrokenAndSaysSoOnce) {
  if (has_a_device()) return;
  const auto report = folder_ + "/report";
  const auto result = result_of_words({"run", "zero1.fp32.w2.accumulation1.clip-off.sgd.irregular",
                                       "--device", "cuda", "--report", report, "--color", "never"});
  EXPECT_EQ(result.code, kInfrastructure);
  EXPECT_THAT(result.err, AllOf(HasSubstr("expected a CUDA device, got none"),
                                HasSubstr("nvidia-smi"), HasSubstr("leave --device cuda out")));
  EXPECT_THAT(result.out, AllOf(HasSubstr("BROKEN"), Not(HasSubstr("NOT CAUGHT"))));
  const auto line = [&](const std::string& begin) {
    const auto at = result.out.find(begin);
    return result.out.substr(at, result.out.find('\n', at) - at);
  };
  EXPECT_THAT(line("# again:"), HasSubstr("--device cuda"));
  const auto record = nlohmann::json::parse(text_of(report + "/run.json"));
  EXPECT_EQ(record.at("verdict").at("outcome"), "broken");
  EXPECT_THAT(record.at("environment").at("device").get<std::string>(), HasSubstr("cuda"));
}

TEST_F(Devices, TrainingAndComparingWithoutOneAreBroken) {
  if (has_a_device()) return;
  const auto train = result_of_words({"train", "--device", "cuda", "--steps", "1"});
  EXPECT_EQ(train.code, kInfrastructure);
  EXPECT_THAT(train.err, HasSubstr("expected a CUDA device, got none"));
  const auto config = folder_ + "/a.json";
  std::ofstream(config) << R"({"train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}}})";
  const auto compare =
      result_of_words({"compare", "--config", config, "--config", config, "--device", "cuda",
                       "--steps", "4", "--final-steps", "1", "--seeds", "2", "--report", folder_});
  EXPECT_EQ(compare.code, kInfrastructure);
  EXPECT_THAT(compare.out + compare.err, HasSubstr("expected a CUDA device, got none"));
}

TEST_F(Devices, FaultsWithoutOneProveNothing) {
  if (has_a_device()) return;
  const auto result = result_of_words(
      {"faults", "averaged_twice", "--covering", "--device", "cuda", "--report", folder_, "-q"});
  EXPECT_NE(result.code, kHeld);
  EXPECT_THAT(result.out + result.err, HasSubstr("expected a CUDA device, got none"));
}

TEST_F(Devices, CasesOfTheCpuAloneAreLeftOutByName) {
  if (has_a_device()) return;
  const auto record_of = [&](const std::vector<std::string>& filters) {
    const auto report = folder_ + "/report";
    std::vector<std::string> words = {"run"};
    words.insert(words.end(), filters.begin(), filters.end());
    for (const auto* word : {"--device", "cuda", "-q", "--report"}) words.emplace_back(word);
    words.push_back(report);
    const auto result = result_of_words(words);
    EXPECT_EQ(result.code, kInfrastructure) << result.err;
    return nlohmann::json::parse(text_of(report + "/run.json")).at("not_run");
  };
  const auto record = record_of({"zero1.fp32.w2.accumulation1.clip-off.sgd.irregular", "dropout2",
                                 "zero2.fp32-exact.w2", "Contract.2.two_losses_on_one_forward"});
  EXPECT_THAT(record.dump(),
              AllOf(HasSubstr("sums are pinned on CUDA"), HasSubstr("the CPU's random numbers"),
                    HasSubstr("the contract and generated cases are of the CPU")));
}

TEST_F(Devices, NoGeneratedCaseIsAskedForByZero) {
  const auto result =
      result_of_words({"run", "zero1.fp32.w2.accumulation1.clip-off.sgd.irregular", "--generate",
                       "0", "--device", "cuda", "-q", "--report", folder_});
  EXPECT_NE(result.code, kUsage) << result.err;
}

TEST_F(Devices, WhatHasNothingToRunThereIsAWrongCommand) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"run", "dropout2", "--device", "cuda"}, "their twin knows the CPU's random numbers"},
      {{"run", "Contract.2.two_losses_on_one_forward", "--device", "cuda"},
       "run on CUDA: the contract and generated cases are of the CPU"},
      {{"run", "Generated", "--generate", "5", "--device", "cuda"}, "generated ones"},
      {{"run", "zero1", "--generate", "5", "--device", "cuda"}, "generated ones"},
      {{"train", "--data", "captions", "--device", "cuda"}, "--device cuda goes with text"},
      {{"run", "--device", "tpu"}, "tpu"}};
  for (const auto& [words, text] : wrong) {
    const auto result = result_of_words(words);
    EXPECT_EQ(result.code, kUsage) << text;
    EXPECT_THAT(result.err, HasSubstr(text));
  }
}

TEST(WhyNotOnCuda, ExactSumsAndDropoutsAndNothingElse) {
  for (const auto& spec : default_matrix()) {
    const bool is_of_cpu = sums_exactly(spec.precision) || spec.model == "dropout2";
    EXPECT_EQ(std::string(why_not_on_cuda(spec)).empty(), !is_of_cpu) << spec.id();
  }
}

}  // namespace
}  // namespace equigrad::conformance::cli
