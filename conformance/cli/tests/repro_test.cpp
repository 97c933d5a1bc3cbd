// `equigrad repro`: what fails is shrunk to what it needs, and to nothing less.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "conformance/cases/recipe.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "conformance/on_rank/run.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kLarge =
    "Required.grad.zero3.fp16.w4.accumulation3.clip-above.adamw.irregular.scale_backward";

class Repro : public InAFolder {
 protected:
  CommandResult say(std::vector<std::string> words) const {
    words.insert(words.begin(), "repro");
    words.insert(words.end(), {"-o", folder_ + "/failure"});
    return result_of_words(std::move(words));
  }
  CommandResult repro(const ranks::Handler& serve) const {
    ReproCommand command;
    command.id = kLarge;
    command.folder = folder_ + "/failure";
    return result_of([&] { return repro_command(command, serve); });
  }
  bool has(const std::string& file) const {
    return access((folder_ + "/failure/" + file).c_str(), R_OK) == 0;
  }
};

TEST_F(Repro, AFaultOfTwoRanksIsShrunkToTwoRanksAndOneOfEverythingElse) {
  const auto result = say({kLarge, "--fault", "averaged_twice"});
  EXPECT_EQ(result.code, kFailed) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(StartsWith("FAIL  Required.grad.zero0.fp32.w2.accumulation1.clip-off.sgd.linear"),
            HasSubstr(".engine_backward --steps 1  gradient\n"), HasSubstr("averaged twice"),
            HasSubstr("3 steps -> 1, model irregular -> linear"),
            HasSubstr("4 ranks -> 2, 3 micro-batches -> 1, fp16 -> fp32, clip-above -> "
                      "clip-off, adamw -> sgd, scale_backward -> engine_backward, "
                      "stage 3 -> 0 (")));
  EXPECT_THAT(result.err, HasSubstr("  so does "));
}

// Of a case that is not of the default selection.
TEST_F(Repro, WordsThatOneCaseAloneHasAreItsId) {
  const std::string words = "zero2.bf16.w2.accumulation3.clip-below.adamw.irregular.engine";
  const auto result = say({words, "--fault", "averaged_twice", "--as-is", "-q"});
  EXPECT_EQ(result.code, kFailed) << result.err;
  EXPECT_THAT(result.out, StartsWith("FAIL  Required.grad." + words + "_backward --steps 3"));
  const auto several = say({"zero2 and bf16"});
  EXPECT_EQ(several.code, kUsage);
  EXPECT_THAT(several.err, HasSubstr("equigrad list prints them"));
  const std::string rest = ".w2.accumulation3.clip-below.adamw.irregular.engine_backward";
  EXPECT_THAT(say({"Required.grad.zero2.bf61" + rest}).err,
              HasSubstr("near it is Required.grad.zero2.bf16" + rest));
}

TEST_F(Repro, AFaultOfTheSecondMicroBatchKeepsTwoOfThem) {
  const auto result =
      say({"Required.grad.zero2.fp32.w4.accumulation3.clip-off.sgd.irregular.engine_backward",
           "--fault", "micro_batch_dropped", "-q"});
  EXPECT_EQ(result.code, kFailed) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr(".w2.accumulation2."), HasSubstr("--steps 1  gradient\n"),
                                HasSubstr(" of rank 1 is missing")));
  EXPECT_EQ(result.err, "");
}

TEST_F(Repro, AFaultOfTheSecondStepKeepsTwoOfThem) {
  const auto result =
      say({"Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.engine_backward",
           "--fault", "word_lost", "-q"});
  EXPECT_EQ(result.code, kFailed) << result.err;
  EXPECT_THAT(result.out, HasSubstr("--steps 2  gradient\n"));
}

TEST_F(Repro, ACaseThatHoldsSaysSoAndLeavesNothing) {
  const auto result = say({kLarge});
  EXPECT_EQ(result.code, kHeld) << result.err;
  EXPECT_THAT(result.out, HasSubstr("HELD  " + kLarge + " --steps 3 did not fail: "));
  EXPECT_FALSE(has("repro.sh"));
}

TEST_F(Repro, TheSmallestModelsHoldWithoutAFault) {
  for (const char* mode :
       {"zero0.fp32.w2.accumulation2.clip-off.sgd.linear1.engine_backward",
        "zero1.fp16.w3.accumulation2.clip-above.adamw.linear2.tensor_backward",
        "zero2.autocast-bf16.w4.accumulation1.clip-below.sgd.linear3.scale_backward",
        "zero3.bf16.w2.accumulation3.clip-above-inf.adamw.linear4.loss_backward"})
    for (const char* steps : {"1", "3"}) {
      const auto result = say({std::string("Required.grad.") + mode, "--steps", steps, "--as-is"});
      EXPECT_EQ(result.code, kHeld) << result.out << result.err;
    }
}

// An answer for as many ranks and micro-batches as `fails` says; otherwise the true one.
using Fails = std::function<bool(const CaseSpec& spec)>;
ranks::Handler failing(const Fails& fails, const std::function<void(int rank)>& how) {
  return [=](const nlohmann::json& request, ranks::RankContext& context) {
    if (request.at("do") == "case" && fails(parse_id(request.at("id")))) how(context.rank());
    return serve(request, context);
  };
}

TEST_F(Repro, AnErrorIsShrunkAndADeathIsTheMachines) {
  const auto thrown = repro(failing([](const auto& spec) { return spec.world >= 3; },
                                    [](int rank) {
                                      if (rank == 1) throw Error("engine.step", "expected calm.");
                                    }));
  EXPECT_EQ(thrown.code, kFailed) << thrown.err;
  EXPECT_THAT(thrown.out, HasSubstr("fp32.w3.accumulation1.clip-off.sgd.linear1.engine_backward "
                                    "--steps 1  error [engine.step]"));
  const auto died = repro(failing([](const auto& spec) { return spec.accumulation >= 2; },
                                  [](int rank) {
                                    if (rank == 0) raise(SIGKILL);
                                  }));
  EXPECT_EQ(died.code, kInfrastructure) << died.err;
  EXPECT_THAT(
      died.out,
      HasSubstr(
          "fp32.w1.accumulation2.clip-off.sgd.linear1.engine_backward --steps 1  died: signal 9"));
  EXPECT_TRUE(has("repro.sh"));
}

TEST_F(Repro, AnotherFailureIsNotTakenForThisOne) {
  const auto result = repro([](const nlohmann::json& request, ranks::RankContext& context) {
    if (request.at("do") == "case")
      throw Error(parse_id(request.at("id")).stage == 3 ? "first" : "other", "expected calm.");
    return serve(request, context);
  });
  EXPECT_THAT(result.out, HasSubstr("Required.grad.zero3.fp32.w1.accumulation1"));
}

TEST_F(Repro, ATwinThatCannotBeMadeIsNoFailureOfTheCase) {
  ReproCommand command;
  command.id = kLarge;
  command.folder = folder_ + "/failure";
  const auto no_twin = [](const nlohmann::json& request, ranks::RankContext& context) {
    if (request.at("do") == "twin") throw Error("twin", "expected room.");
    return serve(request, context);
  };
  EXPECT_THROW(repro_command(command, no_twin), Error);
}

// As after a run in the same folder.
TEST_F(Repro, ACaseThatHoldsWithoutWhatItsRunHadSaysWhatThatWas) {
  const std::string id =
      "Required.grad.zero1.fp32.w2.accumulation1.clip-off.sgd.irregular.loss_backward";
  const std::string here = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  result_of_words({"run", id, "-q", "--fault", "averaged_twice"});
  const auto held = say({id, "-q"}), of_another_seed = say({id, "-q", "--seed", "7"});
  const auto alike = say({id, "-q", "--fault", "averaged_twice"});
  result_of_words({"run", id, "-q"});
  const auto green = say({id, "-q", "--seed", "5"});
  std::filesystem::current_path(here);
  EXPECT_EQ(held.code, kHeld);
  EXPECT_THAT(held.out, HasSubstr("/equigrad-report, with --fault averaged_twice --seed 1234: "));
  EXPECT_THAT(held.out,
              EndsWith("\n#   equigrad repro " + id + " --fault averaged_twice --seed 1234\n"));
  EXPECT_THAT(of_another_seed.out, HasSubstr("# note: it went wrong in "));
  EXPECT_EQ(alike.code, kFailed);
  EXPECT_THAT(green.out, AllOf(StartsWith("HELD"), Not(HasSubstr("# note"))));
}

TEST_F(Repro, WhatCannotBeRepeatedIsAUsageError) {
  const auto contract = say({"Contract.2.two_losses_on_one_forward.zero2.fp32.w2.accumulation1"});
  EXPECT_EQ(contract.code, kUsage);
  EXPECT_THAT(contract.err, HasSubstr("equigrad run Contract.2.two_losses"));
  EXPECT_THAT(say({"Generated.1.2.3"}).err, HasSubstr("equigrad run Generated.1.2.3 repeats it"));
  const auto unknown =
      say({"Required.grad.zero3.bf61.w4.accumulation3.clip-above.adamw.irregular.loss_backward"});
  EXPECT_EQ(unknown.code, kUsage);
  EXPECT_THAT(unknown.err, HasSubstr("near it is Required.grad.zero3.bf16"));
  EXPECT_THAT(
      say({"Required.grad.zero1.bf16.w4.accumulation3.clip-off.adamw.irregluar.loss_backward"}).err,
      HasSubstr("got \"irregluar\""));
  EXPECT_EQ(say({kLarge, "--fault", "averaged_thrice"}).code, kUsage);
  EXPECT_EQ(say({kLarge, "--fault", "Contract"}).code, kUsage);
  EXPECT_EQ(say({kLarge, "--steps", "4"}).code, kUsage);
  ASSERT_EQ(std::system(("mkdir '" + folder_ + "/failure'").c_str()), 0);
  std::ofstream(folder_ + "/failure/README.md") << "mine";
  const auto foreign = say({kLarge, "--fault", "averaged_twice"});
  EXPECT_EQ(foreign.code, kUsage);
  EXPECT_THAT(foreign.err, HasSubstr("Choose another with -o"));
  const auto in_full = result_of_words(
      {"repro", kLarge, "--fault", "averaged_twice", "--output", folder_ + "/failure"});
  EXPECT_EQ(in_full.code, kUsage);
  EXPECT_EQ(in_full.err, foreign.err);
  EXPECT_TRUE(has("README.md"));
}

}  // namespace
}  // namespace equigrad::conformance::cli
