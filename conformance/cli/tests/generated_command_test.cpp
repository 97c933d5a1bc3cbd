// `equigrad run` of generated cases: what a failure leaves, how it is repeated, and files of cases.
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/cli/tests/command_result.hpp"
#include "conformance/generator/draw.hpp"
#include "reports/json.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class GeneratedCommand : public InAFolder {
 protected:
  CommandResult run(std::vector<std::string> words, const std::string& report) const {
    words.insert(words.begin(), "run");
    words.insert(words.end(), {"-q", "--slots", "1", "--report", folder_ + "/" + report});
    return result_of_words(words);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  bool has(const std::string& name) const {
    return access((folder_ + "/" + name).c_str(), F_OK) == 0;
  }
  reports::Run record(const std::string& report) const {
    return reports::from_json(text_of(folder_ + "/" + report + "/run.json"));
  }
};

const std::string kId = "Generated.1.0.0";

TEST_F(GeneratedCommand, AFailureIsMadeSmallerAndTheSmallerOneFailsByTheLineThatIsToldWithIt) {
  const auto failed = run({kId, "--fault", "averaged_twice"}, "two words");
  EXPECT_EQ(failed.code, kFailed) << failed.err;
  const std::string file = folder_ + "/two words/fail/" + kId + "/smaller.json";
  EXPECT_THAT(failed.out, HasSubstr("tensors fail alike: equigrad run --case '" + folder_ +
                                    "/two words/fail'/" + kId +
                                    "/smaller.json --fault averaged_twice --report '" + folder_ +
                                    "/two words-replay'\n"));
  EXPECT_THAT(failed.out,
              HasSubstr("# replay: equigrad run " + kId + " --fault averaged_twice --report '" +
                        folder_ + "/two words-replay'\n"));
  const auto again = run({"--case", file, "--fault", "averaged_twice", "--no-shrink"}, "again");
  EXPECT_EQ(again.code, kFailed) << again.err;
  EXPECT_THAT(again.out,
              HasSubstr("# replay: equigrad run --case '" + file +
                        "' --fault averaged_twice --report " + folder_ + "/again-replay\n"));
  const auto held = run({"--case", file}, "held");
  EXPECT_EQ(held.code, kHeld) << held.out << held.err;
  EXPECT_EQ(record("held").cases.size(), 1u);
}

TEST_F(GeneratedCommand, AFailureIsLeftAsItIsIfThatIsAsked) {
  const auto failed = run({kId, "--fault", "averaged_twice", "--no-shrink"}, "it");
  EXPECT_EQ(failed.code, kFailed) << failed.err;
  EXPECT_TRUE(has("it/fail/" + kId + "/case.json"));
  EXPECT_FALSE(has("it/fail/" + kId + "/smaller.json"));
  EXPECT_THAT(failed.out, Not(HasSubstr("fail alike")));
}

// A failure is a case of the run, which counts what it compared.
TEST_F(GeneratedCommand, WhatAFailureComparedIsCountedOnce) {
  run({"Generated", "--generate", "1", "--generate-seed", "1", "--fault", "averaged_twice",
       "--no-shrink"},
      "it");
  const auto failed = record("it");
  ASSERT_EQ(failed.cases.size(), 1u);
  int64_t compared = 0;
  for (const auto& lane : failed.cases[0].lanes) compared += lane.compared;
  EXPECT_GT(compared, 0);
  EXPECT_EQ(reports::counts(failed).compared, compared);
}

TEST_F(GeneratedCommand, AWrongFileIsAUsageErrorThatSaysWhatIsWrong) {
  const auto good = to_json(case_of_id(kId));
  const auto with = [&](const char* path, const nlohmann::json& value) {
    auto file = good;
    file[nlohmann::json::json_pointer(path)] = value;
    return file.dump();
  };
  auto less = good;
  less["workload"].erase("tensors");
  const std::vector<std::pair<std::string, std::string>> files = {
      {"{\"workload\": ", "expected JSON in " + folder_ + "/case.json, got none"},
      {"[1]", "expected the file of a generated case"},
      {less.dump(), "key 'tensors' not found"},
      {with("/workload/steps", "three"), "type must be number"},
      {with("/workload/steps", 0), "expected steps from 1"},
      {with("/workload/accumulation", 0), "expected micro-batches from 1"},
      {with("/workload/world", 0), "expected ranks from 1 to 8, got 0"},
      {with("/workload/world", 9), "expected ranks from 1 to 8, got 9"},
      {with("/workload/tensors", nlohmann::json::array()), "expected tensors from 1"},
      {with("/execution/stage", 4), "expected a stage from 0 to 3, got 4"},
      {with("/workload/tensors/0/group", 9), "expected a group from 0 to"},
      {with("/workload/tensors/0/role", "liner"), "expected a tensor role of linear, bias, "},
      {with("/workload/tensors/0/hook", "keep"), "observes, halves, keeps, keeps_alias, replaces"},
      {with("/execution/way_in", "door"), "expected a way in of module, groups, got \"door\""},
      {with("/execution/events", {{{"what", "sung"}, {"step", 0}, {"micro_batch", 0}}}),
       "expected a harmless event of cancelled, "}};
  for (const auto& [text, why] : files) {
    const auto refused = run({"--case", write("case.json", text)}, "it");
    EXPECT_EQ(refused.code, kUsage) << text;
    EXPECT_EQ(refused.out, "") << text;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("[generated case]"), HasSubstr(why)));
    EXPECT_FALSE(has("it")) << "no report is begun: " << text;
  }
  EXPECT_EQ(run({"--case", folder_ + "/none.json"}, "it").code, kUsage);
  EXPECT_EQ(run({"--case", folder_}, "it").code, kUsage);
}

TEST_F(GeneratedCommand, TheirIdsAreGivenAlone) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {kId, "zero2"}, {kId, "Generated"}, {"Generated", "zero2"}, {"Generated.meshes", kId}}) {
    const auto refused = run(words, "it");
    EXPECT_EQ(refused.code, kUsage) << words[1];
    EXPECT_THAT(refused.err, HasSubstr("expected ids of generated cases alone"));
  }
  const auto none = run({"Generated.1.2.8"}, "it");
  EXPECT_EQ(none.code, kUsage);
  EXPECT_THAT(none.err, HasSubstr("an execution below 8, got \"Generated.1.2.8\""));
}

}  // namespace
}  // namespace equigrad::conformance::cli
