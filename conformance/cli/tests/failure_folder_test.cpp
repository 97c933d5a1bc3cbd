// What a failed case leaves can be handed on: the script and the program repeat it from anywhere.
#include "conformance/cli/failure_folder.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "conformance/cases/recipe.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "conformance/oracle/tensor_file.hpp"
#include "reports/json.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kCase =
    "Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward";
const std::string kContract = "Contract.2.two_losses_on_one_forward";

// A command of the shell, in the root directory.
CommandResult shell(const std::string& command) {
  CommandResult result{-1, "", ""};
  FILE* pipe = popen(("cd / && (" + command + ") 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) result.out += buffer.data();
  result.code = WEXITSTATUS(pclose(pipe));
  return result;
}

class FailureFolder : public InAFolder {
 protected:
  void SetUp() override {
    InAFolder::SetUp();
    program_ = std::getenv("EQUIGRAD_BINARY");
    ASSERT_NE(program_, nullptr) << "run this test through ctest, which says where it is";
  }
  CommandResult equigrad(const std::string& words) const { return shell(program_ + (" " + words)); }
  CommandResult failing_run(const std::string& more = "") const {
    return equigrad("run " + kCase + " -q --seed 7 --fault averaged_twice --report " + folder_ +
                    more);
  }
  std::string of_case(const std::string& file = "") const {
    return folder_ + "/fail/" + kCase + "/" + file;
  }
  bool there(const std::string& path) const { return access(path.c_str(), R_OK) == 0; }

  const char* program_ = nullptr;
};

TEST_F(FailureFolder, HasEverythingAndTheReportLinksIt) {
  const auto result = failing_run();
  EXPECT_EQ(result.code, kFailed);
  EXPECT_THAT(result.out, HasSubstr("    folder  " + folder_ + "/fail/" + kCase + "\n"));
  const auto run = reports::from_json(text_of(folder_ + "/run.json"));
  const std::string in_report = "fail/" + kCase + "/", page = text_of(folder_ + "/index.html");
  for (const char* file :
       {"rank0.safetensors", "rank0.inputs.safetensors", "rank1.first.safetensors", "config.json",
        "message.txt", "repro.sh", "program.cpp", "CMakeLists.txt", "README.md"}) {
    EXPECT_TRUE(is_failure_file(file)) << file;
    EXPECT_TRUE(there(of_case(file))) << file;
    EXPECT_THAT(run.cases.at(0).files, Contains(in_report + file));
    EXPECT_THAT(page, HasSubstr("<a href=\"" + in_report + file + "\">"));
  }
  EXPECT_EQ(text_of(of_case("config.json")),
            config_text(parse_id(kCase), 0, *reference::make_model("irregular", 7)));
  EXPECT_THAT(text_of(of_case("message.txt")), HasSubstr("averaged twice"));
  const auto first = oracle::read_tensors(of_case("rank1.first.safetensors"));
  EXPECT_THAT(first.metadata.at("where"), HasSubstr("step 1 gradient "));
  EXPECT_EQ(first.tensors.at("got").sizes(), first.tensors.at("want").sizes());
}

TEST_F(FailureFolder, ItsScriptRepeatsTheFailureAndLeavesTheFolderAlone) {
  failing_run();
  const auto before = shell("ls " + of_case());
  const auto again = shell(of_case("repro.sh") + " -q");
  EXPECT_EQ(again.code, kFailed) << again.out;
  EXPECT_THAT(again.out, AllOf(HasSubstr("averaged twice"), HasSubstr(kCase)));
  EXPECT_EQ(shell("ls " + of_case()).out, before.out);
  const auto shrunk =
      equigrad("repro " + kCase + " --fault averaged_twice -q -o " + folder_ + "/s");
  EXPECT_EQ(shrunk.code, kFailed) << shrunk.out;
  const auto script = shell(folder_ + "/s/repro.sh -q");
  EXPECT_EQ(script.code, kFailed) << script.out;
  EXPECT_THAT(script.out, AllOf(HasSubstr("FAIL  Required.grad.zero"), HasSubstr(" --steps 1")));
}

// Compiles for some seconds.
TEST_F(FailureFolder, ItsProgramPrintsTheFirstWrongElementAndHoldsOnceNothingDiffers) {
  failing_run();
  const std::string build = folder_ + "/build";
  const auto built =
      shell("cmake -G Ninja -S " + of_case() + " -B " + build + " && cmake --build " + build);
  ASSERT_EQ(built.code, 0) << built.out;
  const auto wrong = shell(build + "/program");
  EXPECT_EQ(wrong.code, 1) << wrong.out;
  for (const char* rank : {"0", "1"}) {
    const std::string path = of_case(std::string("rank") + rank + ".first.safetensors");
    const auto first = oracle::read_tensors(path);
    EXPECT_THAT(wrong.out,
                HasSubstr("rank " + std::string(rank) + ": " + first.metadata.at("where") + ": "));
    // As if the engine were right.
    oracle::write_tensors(
        path, {{"got", first.tensors.at("got").clone()}, {"want", first.tensors.at("got").clone()}},
        first.metadata);
  }
  EXPECT_THAT(wrong.out, ContainsRegex("    first \\[[0-9]+\\]  got [-0-9.e]+  want "));
  const auto right = shell(build + "/program");
  EXPECT_EQ(right.code, 0) << right.out;
  EXPECT_THAT(right.out, AllOf(HasSubstr("elements)"), Not(HasSubstr("got"))));
}

TEST_F(FailureFolder, TensorsAreNotKeptUnlessTheyAreWanted) {
  failing_run(" --keep-tensors none");
  EXPECT_TRUE(there(of_case("config.json")));
  EXPECT_FALSE(there(of_case("rank0.first.safetensors")));
  EXPECT_FALSE(there(of_case("rank0.safetensors")));
}

TEST_F(FailureFolder, ACaseOfTheContractHasAMessageAndAScript) {
  const std::string id = kContract + ".zero2.fp32.w2.accumulation1",
                    at = folder_ + "/fail/" + id + "/";
  equigrad("run " + id + " -q --fault Contract --report " + folder_);
  EXPECT_TRUE(there(at + "message.txt"));
  EXPECT_FALSE(there(at + "program.cpp"));
  EXPECT_EQ(shell(at + "repro.sh -q").code, kFailed);
  EXPECT_EQ(equigrad("run " + id + " -q --report " + folder_).code, kHeld);
  EXPECT_FALSE(there(at));
}

TEST_F(FailureFolder, WhatHoldsLeavesNothing) {
  failing_run();
  EXPECT_TRUE(there(of_case()));
  EXPECT_EQ(equigrad("run " + kCase + " -q --report " + folder_).code, kHeld);
  EXPECT_FALSE(there(folder_ + "/fail"));
}

// Every style and precision has a program of its own.
TEST(FailureProgram, SaysWhatTheCaseDoes) {
  const auto text = [](const std::string& mode) {
    const std::string id = "Required.grad." + mode;
    return program_text({id, Candidate{parse_id(id), 2}, 5, {"a\"b", "", ""}, "", "", ""});
  };
  const auto engine = text("zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.engine_backward");
  EXPECT_THAT(engine, AllOf(HasSubstr("kSteps = 2, kWorld = 2, kMicroBatches = 3"),
                            HasSubstr("engine->backward(loss);"), HasSubstr("at::kFloat"),
                            HasSubstr("read_text({\"a\\\"b\"})"), Not(HasSubstr("Planted")),
                            Not(HasSubstr("set_loss_factor")), Not(ContainsRegex("@[A-Z_]+@"))));
  EXPECT_THAT(text("zero2.bf16.w2.accumulation3.clip-off.sgd.irregular.scale_backward"),
              AllOf(HasSubstr("engine->scale(loss).backward();"), HasSubstr("at::kBFloat16")));
  EXPECT_THAT(text("zero2.bf16.w2.accumulation3.clip-off.sgd.irregular.loss_backward"),
              HasSubstr("      loss.backward();"));
  EXPECT_THAT(engine, HasSubstr("kTensor = 1, "));
  EXPECT_THAT(text("zero2.bf16.w4.accumulation3.clip-off.sgd.gated2.loss_backward"),
              AllOf(HasSubstr("kTensor = 2, "), HasSubstr("split_model(\"gated2\", kSeed")));
  EXPECT_THAT(text("zero3.bf16.w4.accumulation3.clip-off.sgd.ulysses2.loss_backward"),
              AllOf(HasSubstr("kTensor = 1, kSequence = 2;"), HasSubstr("place = index * kZero")));
  EXPECT_THAT(text("zero2.fp16.w2.accumulation1.clip-off.sgd.irregular.loss_backward"),
              AllOf(HasSubstr("rank_backward(*engine, *model, batch, parse_id("),
                    HasSubstr("at::kHalf"), HasSubstr("model->set_loss_factor(overflows")));
}

}  // namespace
}  // namespace equigrad::conformance::cli
