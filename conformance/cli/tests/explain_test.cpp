#include "conformance/cli/explain.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include "conformance/cases/matrix.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "conformance/contract/contract_case.hpp"
#include "reports/json.hpp"
#include "reports/text.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Explain = InAFolder;

const std::string kCase =
    "Required.grad.zero3.bf16.w4.accumulation3.clip-above.adamw.gpt.tensor_backward";

// Sentences as they are, in lines of any width.
std::string whole(const std::string& id) { return explanation(id, "equigrad", "", 10'000); }

TEST_F(Explain, ACaseOfTheMatrixIsSaidInWords) {
  const auto text = whole(kCase);
  EXPECT_THAT(text, HasSubstr(kCase + "\n"));
  EXPECT_THAT(text, ContainsRegex("model +gpt: a byte-level GPT"));
  EXPECT_THAT(text,
              ContainsRegex("stage +3: optimizer state, gradients and parameters are sharded"));
  EXPECT_THAT(text, ContainsRegex("precision +bf16: parameters bf16, masters fp32"));
  EXPECT_THAT(text, HasSubstr("gradients are added in fp32"));
  EXPECT_THAT(text, ContainsRegex("ranks +4\n"));
  EXPECT_THAT(text, ContainsRegex("micro-batches +3 a step"));
  EXPECT_THAT(text, ContainsRegex("clipping +on, with a norm above"));
  EXPECT_THAT(text, ContainsRegex("call style +output.backward\\(gradient\\)"));
  EXPECT_THAT(text, ContainsRegex("exact +losses, [^\n]*0 differing bits"));
  EXPECT_THAT(text, ContainsRegex("bounded +the first gradient that is applied is off by at most "
                                  "[0-9.e-]+ x the"));
  EXPECT_THAT(text, HasSubstr("the roundings of 12 contributions"));
  EXPECT_THAT(text, ContainsRegex("runs alone +equigrad run " + kCase));
}

TEST_F(Explain, PrecisionsSayWhatTheyAre) {
  const auto of = [](const std::string& precision) {
    return whole("Required.grad.zero1." + precision +
                 ".w2.accumulation1.clip-off.sgd.conv.engine_backward");
  };
  EXPECT_THAT(of("fp16"), HasSubstr("a dynamic loss scale by DeepSpeed's rule"));
  EXPECT_THAT(of("fp16-static"), HasSubstr("a static loss scale of 2^7"));
  EXPECT_THAT(of("autocast-fp16"), AllOf(HasSubstr("autocast in fp16"), HasSubstr("GradScaler")));
  EXPECT_THAT(of("fp32-comm-bf16"), HasSubstr("sent in bf16"));
  EXPECT_THAT(of("fp32-exact"), HasSubstr("added exactly, in no order"));
  EXPECT_THAT(of("fp32"), Not(HasSubstr("; a ")));
}

TEST_F(Explain, EveryModelHasWordsAndEveryCaseIsExplained) {
  std::set<std::string> models;
  for (const auto& spec : full_matrix()) models.insert(spec.model);
  for (const auto& model : models) EXPECT_NE(model_words(model), "") << model;
  EXPECT_EQ(model_words("gptx"), "");
  for (const auto& spec : default_matrix()) {
    const auto text = whole(spec.id());
    if (spec.is_refused())
      EXPECT_THAT(text, HasSubstr("passes if initialize() refuses it")) << spec.id();
    else
      EXPECT_THAT(text, HasSubstr("\n  bounded ")) << spec.id();
  }
  for (const auto& spec : contract::default_specs())
    EXPECT_THAT(whole(spec.id()), HasSubstr(spec.of->sentence)) << spec.id();
}

TEST_F(Explain, CasesOfTheContractAndGeneratedOnesAreToo) {
  const auto text = whole("Contract.1.loss_backward.zero0.fp32.w2.accumulation1");
  EXPECT_THAT(text, AllOf(HasSubstr("a case of the contract, line 1"), HasSubstr("it says"),
                          HasSubstr("--fault Contract.1.loss_backward")));
  EXPECT_THAT(whole("Generated.1.2.3"),
              AllOf(HasSubstr("drawn at random"), HasSubstr("configuration")));
}

TEST_F(Explain, TheLastReportSaysWhatBecameOfIt) {
  const auto none = result_of_words({"explain", kCase, "--report", folder_ + "/none"});
  EXPECT_EQ(none.code, kHeld);
  EXPECT_THAT(none.out, ContainsRegex("last report +none in "));
  reports::Run run;
  run.environment.commit = "abc";
  run.cases = {{.id = kCase,
                .verdict = reports::Verdict::Failed,
                .message = "looks like a thing\nmore of it",
                .replay = "equigrad run " + kCase + " --fault twice --seed 3"}};
  std::ofstream(folder_ + "/run.json") << reports::to_json(run);
  const auto failed = result_of_words({"explain", kCase, "--report", folder_});
  EXPECT_THAT(failed.out, ContainsRegex("last report +failed in .*, of commit abc"));
  EXPECT_THAT(failed.out, ContainsRegex("runs alone +equigrad run .* --fault twice --seed 3\n"));
  EXPECT_THAT(failed.out, ContainsRegex("\n +looks like a thing\n +more of it\n"));
  const auto by_words = result_of_words(
      {"explain", kCase.substr(std::string("Required.grad.").size()), "--report", folder_});
  EXPECT_EQ(by_words.out, failed.out);
  const auto other = result_of_words(
      {"explain", "Contract.1.loss_backward.zero0.fp32.w2.accumulation1", "--report", folder_});
  EXPECT_THAT(other.out, HasSubstr("does not have it"));
}

TEST_F(Explain, ACaseOfAModelOfOnesOwnSaysSo) {
  const auto text = explanation(
      "Required.grad.zero2.bf16.w2.accumulation1.clip-off.sgd.mine.engine_backward", "equigrad");
  EXPECT_THAT(text, ContainsRegex("model +mine: one of your own, of --model\n"));
}

// All but those to paste, which have the id.
TEST_F(Explain, ItsLinesFitTheTerminal) {
  for (const std::string& id :
       {kCase, std::string("Contract.1.loss_backward.zero0.fp32.w2.accumulation1"),
        std::string("Generated.1.2.3")})
    for (const std::size_t columns : {60U, 80U, 100U}) {
      std::istringstream lines(explanation(id, "equigrad", "", columns));
      for (std::string line; std::getline(lines, line);)
        if (line.find(id) == std::string::npos)
          EXPECT_LE(reports::width_of(line), columns) << line;
        else
          EXPECT_THAT(whole(id), HasSubstr(line + "\n"));
    }
  setenv("COLUMNS", "60", 1);
  const auto said = result_of_words({"explain", kCase, "--report", folder_});
  unsetenv("COLUMNS");
  EXPECT_THAT(said.out, StartsWith(explanation(kCase, "equigrad", "", 60)));
}

// Of a case that is not of the default selection.
TEST_F(Explain, WordsThatOneCaseAloneHasAreItsId) {
  const std::string words = "zero2.bf16.w2.accumulation3.clip-below.adamw.irregular.engine",
                    id = "Required.grad." + words + "_backward";
  for (const auto& spec : default_matrix()) EXPECT_NE(spec.id(), id);
  const auto said = result_of_words({"explain", words});
  EXPECT_EQ(said.code, kHeld) << said.err;
  EXPECT_THAT(said.out, StartsWith(id + "\n"));
  EXPECT_THAT(said.out, ContainsRegex("runs alone +equigrad run " + id));
  EXPECT_EQ(result_of_words({"list", words}).out, id + "\n") << "as run selects it";
  // Of the default selection one case has these words, of all there are many.
  const std::string of_one = "clip-above-inf and zero1.fp32.w and engine_backward";
  const auto first = result_of_words({"explain", of_one});
  EXPECT_EQ(first.code, kHeld) << first.err;
  EXPECT_THAT(first.out, StartsWith(result_of_words({"list", of_one}).out));
  const auto several = result_of_words({"explain", "zero2 and bf16"});
  EXPECT_EQ(several.code, kUsage);
  EXPECT_EQ(several.out, "");
  EXPECT_THAT(several.err, ContainsRegex("got \"zero2 and bf16\", which [0-9]+ cases have"));
  const auto none = result_of_words({"explain", "(zero2"});
  EXPECT_EQ(none.code, kUsage);
  EXPECT_THAT(none.err, HasSubstr("expected a ) for every ("));
}

TEST_F(Explain, AnIdThatNoCaseHasGetsWhatIsNear) {
  const auto said = result_of_words({"explain", "Required.grad.zero3.bf61"});
  EXPECT_EQ(said.code, kUsage);
  EXPECT_EQ(said.out, "");
  EXPECT_THAT(said.err, HasSubstr("near it are\n  Required.grad.zero3.bf16"));
  const std::string rest = ".w2.accumulation3.clip-below.adamw.irregular.engine_backward";
  EXPECT_THAT(result_of_words({"explain", "Required.grad.zero2.bf61" + rest}).err,
              HasSubstr("near it are\n  Required.grad.zero2.bf16" + rest + "\n"))
      << "which is not of the default selection";
}

}  // namespace
}  // namespace equigrad::conformance::cli
