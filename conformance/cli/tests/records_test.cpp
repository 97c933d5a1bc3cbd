#include "conformance/cli/records.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>

#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "reports/json.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kCase =
    "Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward";
const std::string kOther =
    "Required.grad.zero1.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward";
const std::string kContract = "Contract.1.loss_backward.zero0.fp32.w2.accumulation1";

class Records : public InAFolder {
 protected:
  std::string place(const std::string& name) const { return folder_ + "/" + name; }
  reports::Run record(const std::string& name) const {
    return reports::from_json(text_of(place(name) + "/run.json"));
  }
  // A record of two cases, one of which went wrong.
  std::string write(const std::string& name, reports::Verdict of_case, reports::Verdict of_other) {
    return write(name, {{kCase, of_case}, {kOther, of_other}}, "equigrad run");
  }
  std::string write(const std::string& name,
                    const std::vector<std::pair<std::string, reports::Verdict>>& cases,
                    const std::string& command) {
    reports::Run run;
    run.seed = 7;
    run.environment.commit = "abc";
    run.command = command;
    for (const char* fault : {"a", "b", "c"}) run.self_checks.push_back({fault, "", true, ""});
    for (const auto& [id, verdict] : cases) {
      const auto spec = parse_id(id);
      run.cases.push_back({.id = id, .verdict = verdict, .message = "its message"});
      run.cases.back().dimensions = {{"stage", std::to_string(spec.stage)},
                                     {"precision", word(spec.precision)},
                                     {"ranks", std::to_string(spec.world)}};
      run.cases.back().lanes = {{"exact", verdict, 10, 0, 0, {}}};
    }
    make_directory(place(name));
    write_file(place(name) + "/run.json", reports::to_json(run));
    return place(name);
  }
  CommandResult run(std::vector<std::string> words, const std::string& report) const {
    words.insert(words.begin(), "run");
    words.insert(words.end(), {"-q", "--report", place(report)});
    return result_of_words(words);
  }
};

constexpr auto kEqual = reports::Verdict::Equal, kWrong = reports::Verdict::Failed,
               kUnreached = reports::Verdict::NotRun;

TEST_F(Records, WhatFailedOrWasNotReachedIsRepeatedWithItsSeed) {
  write("red", kWrong, kEqual);
  EXPECT_EQ(run({"--failed", "--list"}, "red").out, kCase + "\n");
  write("red", kEqual, kUnreached);
  EXPECT_EQ(run({"--failed", place("red"), "--list"}, "it").out, kOther + "\n");
  EXPECT_EQ(run({"zero1", "--failed", place("red") + "/run.json", "--list"}, "it").out,
            kOther + "\n");
  EXPECT_EQ(run({"zero2", "--failed", place("red"), "--list"}, "it").code, kUsage);
  write("red", kWrong, kEqual);
  const auto again = run({"--failed"}, "red");
  EXPECT_EQ(again.code, kHeld) << again.out << again.err;
  EXPECT_THAT(again.out, Not(HasSubstr("# again:")));
  ASSERT_EQ(record("red").cases.size(), 1u);
  EXPECT_EQ(record("red").cases[0].id, kCase);
  EXPECT_EQ(record("red").seed, 7u);
  const auto nothing = run({"--failed"}, "red");
  EXPECT_EQ(nothing.code, kHeld);
  EXPECT_THAT(nothing.out, AllOf(HasSubstr("# nothing to repeat"), HasSubstr("\nHELD\n")));
}

TEST_F(Records, ARunThatTakesTheFoldersPlaceOfOneThatFailedSaysSo) {
  const auto says = [&](const std::vector<std::string>& words) {
    const auto said = run(words, "red").err;
    return said.find("red had a run that failed; this one takes its place") != std::string::npos;
  };
  write("red", kWrong, kEqual);
  EXPECT_FALSE(says({"--failed"})) << "it repeats it";
  EXPECT_FALSE(says({kContract})) << "that one held";
  write("red", kWrong, kEqual);
  EXPECT_TRUE(says({kContract}));
  write("red", kWrong, kEqual);
  write("another", kWrong, kEqual);
  EXPECT_TRUE(says({"--failed", place("another")})) << "it repeats another one";
}

TEST_F(Records, WithNothingToRepeatTheVerdictIsThatOfTheRecord) {
  write("void", kEqual, kEqual);
  auto run_of = record("void");
  run_of.self_checks[0].caught = false;
  write_file(place("void") + "/run.json", reports::to_json(run_of));
  const auto said = run({"--failed"}, "void");
  EXPECT_EQ(said.code, kFailed);
  EXPECT_THAT(said.out, HasSubstr("\nVOID\n"));
}

// Drawn again from the numbers in their ids, in the same run as the others.
TEST_F(Records, GeneratedCasesAreRepeatedBesideTheOthers) {
  write("red", kWrong, kEqual);
  auto one = record("red");
  one.cases.push_back({.id = "Generated.5.1.2", .verdict = kWrong, .message = "it"});
  write_file(place("red") + "/run.json", reports::to_json(one));
  const auto ids = [&] {
    std::set<std::string> ids;
    for (const auto& one : record("again").cases) ids.insert(one.id);
    return ids;
  };
  const auto both = run({"--failed", place("red")}, "again");
  EXPECT_EQ(both.code, kHeld) << both.out << both.err;
  EXPECT_EQ(ids(), (std::set<std::string>{kCase, "Generated.5.1.2"}));
  const auto drawn = run({"Generated", "--failed", place("red")}, "again");
  EXPECT_EQ(drawn.code, kHeld) << drawn.out << drawn.err;
  EXPECT_EQ(ids(), (std::set<std::string>{"Generated.5.1.2"}));
}

TEST_F(Records, WhatTheRunHadIsAskedForAgain) {
  const auto red = run({kCase, kContract, "--fault", "averaged_twice"}, "red");
  EXPECT_EQ(red.code, kFailed);
  EXPECT_THAT(red.out, HasSubstr("# again:  equigrad run --fault averaged_twice --report " +
                                 place("red") + " --failed\n"));
  const auto without = run({"--failed"}, "red");
  EXPECT_EQ(without.code, kUsage);
  EXPECT_THAT(without.err, HasSubstr("expected --fault averaged_twice beside --failed"));
  const auto another = run({"--failed", "--fault", "clip.twice"}, "red");
  EXPECT_EQ(another.code, kUsage);
  EXPECT_THAT(another.err, HasSubstr("got --fault clip.twice: equigrad run --fault averaged_twice "
                                     "--report " +
                                     place("red") + " --failed repeats it"));
  EXPECT_THAT(run({"--failed", place("red")}, "it").err,
              HasSubstr("got nothing: equigrad run --fault averaged_twice --failed " +
                        place("red") + " repeats it"));
  const auto with = run({"--failed", "--fault", "averaged_twice"}, "red");
  EXPECT_EQ(with.code, kFailed) << with.err;
  for (const auto& words : std::vector<std::vector<std::string>>{{"--failed", place("none")},
                                                                 {"--failed", "zero3"},
                                                                 {"--failed", "--covering"},
                                                                 {"--failed", "--shard", "1/2"}})
    EXPECT_EQ(run(words, "red").code, kUsage) << words.back();
  EXPECT_THAT(run({"--failed", "zero3"}, "red").err, HasSubstr("A FILTER stands before --failed"));
}

TEST_F(Records, ARunThatFailedSaysWhatToTypeNext) {
  const auto red = run({kCase, "--fault", "averaged_twice", "--seed", "7"}, "red");
  EXPECT_THAT(red.out, HasSubstr("# explain: equigrad explain " + kCase + " --report " +
                                 place("red") + "\n# shrink:  equigrad repro " + kCase +
                                 " --seed 7 --fault averaged_twice\n"));
  EXPECT_THAT(result_of_words({"explain", kCase, "--report", place("red")}).out,
              HasSubstr("failed in "));
  const auto knobs =
      run({kCase, "--fault", "averaged_twice", "--knobs", R"({"steps_per_print": 5})"}, "red");
  EXPECT_THAT(knobs.out, AllOf(HasSubstr("\n# explain: "), Not(HasSubstr("# shrink: "))));
  const auto contract = run({kContract, "--fault", "Contract"}, "red");
  EXPECT_THAT(contract.out, AllOf(HasSubstr("\n# explain: equigrad explain " + kContract),
                                  Not(HasSubstr("# shrink: "))));
  EXPECT_THAT(run({kCase}, "green").out, Not(HasSubstr("# explain: ")));
  run({kCase, "--fault", "averaged_twice", "--seed", "7"}, "red");
  const auto merged = result_of_words({"report", "merge", place("red"), "--report", place("all")});
  EXPECT_THAT(merged.out, HasSubstr(" --seed 7 --fault averaged_twice\n")) << merged.err;
}

// Which the one that it stands in does not outlive, where that one is a replay itself.
TEST_F(Records, AReplayOfAReplayIsInItsFolder) {
  const auto says = [&](const std::string& folder) {
    return run({kCase, "--fault", "averaged_twice"}, folder).out;
  };
  const auto ends = " --report " + place("red-replay") + "\n";
  EXPECT_THAT(says("red"), HasSubstr(ends));
  EXPECT_THAT(says("red-replay"), HasSubstr(ends));
}

// What was made with a fault holds without it.
TEST_F(Records, AMergedRecordIsRepeatedAsItsPartsWereMade) {
  for (const char* shard : {"1/2", "2/2"})
    run({kCase, kContract, "--fault", "averaged_twice", "--shard", shard},
        std::string("shard") + shard[0]);
  const auto merge = [&](const std::string& second) {
    return result_of_words({"report", "merge", place("shard1"), place(second), "--report",
                            place("all"), "--color", "never"});
  };
  const auto merged = merge("shard2");
  EXPECT_EQ(merged.code, kFailed) << merged.err;
  EXPECT_THAT(merged.out, HasSubstr("# again:  equigrad run --fault averaged_twice --report " +
                                    place("all") + " --failed\n"));
  EXPECT_THAT(run({"--failed"}, "all").err, HasSubstr("expected --fault averaged_twice beside"));
  run({kCase, kContract, "--shard", "2/2"}, "plain");
  const auto refused = merge("plain");
  EXPECT_EQ(refused.code, kUsage);
  EXPECT_THAT(refused.err, HasSubstr("made with the same --fault, --knobs, --model and --device"));
}

TEST_F(Records, APartOfWhatFailedLeavesTheRecordAsItIs) {
  write("red", kWrong, kWrong);
  const auto before = text_of(place("red") + "/run.json");
  const auto one = run({"zero1", "--failed"}, "red");
  EXPECT_EQ(one.code, kHeld) << one.err;
  EXPECT_EQ(text_of(place("red") + "/run.json"), before);
  EXPECT_EQ(record("red-replay").cases.size(), 1u);
  EXPECT_THAT(one.out, HasSubstr("red-replay/index.html"));
  EXPECT_EQ(run({"zero1", "--failed", place("red") + "/run.json"}, "red").code, kHeld);
  EXPECT_EQ(text_of(place("red") + "/run.json"), before) << "whichever way it is named";
  EXPECT_EQ(run({"--stages", "1,2", "--world", "2", "--dtypes", "fp32", "--failed"}, "red").code,
            kHeld);
  EXPECT_NE(text_of(place("red") + "/run.json"), before) << "which leaves nothing out";
  EXPECT_EQ(record("red").cases.size(), 2u);
}

TEST_F(Records, AnyOptionMayLeaveOutAPart) {
  const std::string other =
      "Required.grad.zero1.bf16.w3.accumulation3.clip-off.sgd.irregular.loss_backward";
  const std::vector<std::vector<std::string>> parts = {
      {"--stages", "2"}, {"--dtypes", "fp32"}, {"--world", "2"}, {"zero2"}};
  for (auto words : parts) {
    write("red", {{kCase, kWrong}, {other, kWrong}}, "equigrad run");
    const auto before = text_of(place("red") + "/run.json");
    words.push_back("--failed");
    EXPECT_EQ(run(words, "red").code, kHeld) << words[0];
    EXPECT_EQ(text_of(place("red") + "/run.json"), before) << words[0];
  }
}

TEST_F(Records, PartsThatWereMadeInOtherWaysAreNotMerged) {
  write("plain", {{kCase, kEqual}}, "equigrad run");
  write("fault", {{kOther, kEqual}}, "equigrad run --fault twice");
  write("knobs", {{kOther, kEqual}}, "equigrad run --knobs k.json");
  write("model", {{kOther, kEqual}}, "equigrad run --model mine.so");
  write("device", {{kOther, kEqual}}, "equigrad run --device cuda");
  write("alike", {{kOther, kEqual}}, "python3 train.py --model gpt2");
  const auto merge = [&](const std::vector<std::string>& parts) {
    std::vector<std::string> words = {"report", "merge", "--report", place("all")};
    for (const auto& part : parts) words.push_back(place(part));
    return result_of_words(words);
  };
  for (const char* other : {"fault", "knobs", "model", "device"})
    EXPECT_EQ(merge({"plain", other}).code, kUsage) << other;
  EXPECT_EQ(merge({"plain", "alike"}).code, kHeld) << "the option is another program's";
}

// The line that a run prints has its keys in another order, and no blanks.
TEST_F(Records, KnobsAreTheSameHoweverTheyAreWritten) {
  const std::string knobs =
      R"({"zero_optimization": {"reduce_bucket_size": 7}, "steps_per_print": 1})";
  write("red", {{kCase, kWrong}}, "equigrad run --knobs '" + knobs + "'");
  const auto again = [&](const std::string& given) {
    return run({"--knobs", given, "--failed", "--list"}, "red");
  };
  EXPECT_EQ(again(R"({"steps_per_print":1,"zero_optimization":{"reduce_bucket_size":7}})").code,
            kHeld);
  EXPECT_EQ(again(R"({"steps_per_print":1,"zero_optimization":{"reduce_bucket_size":8}})").code,
            kUsage);
}

TEST_F(Records, WhatWentWrongOnADeviceIsNotRepeatedOnAnother) {
  write("red", {{kCase, kWrong}}, "equigrad run --device cuda");
  const auto refused = run({"--failed"}, "red");
  EXPECT_EQ(refused.code, kUsage);
  EXPECT_THAT(refused.err, HasSubstr("expected --device cuda beside --failed"));
  EXPECT_EQ(run({"--device", "cuda", "--failed", "--list"}, "red").code, kHeld);
  write("cpu", {{kCase, kWrong}}, "equigrad run --device cpu");
  EXPECT_EQ(run({"--failed", "--list"}, "cpu").code, kHeld);
}

TEST_F(Records, APartThatIsMergedItselfKeepsHowItsPartsWereMade) {
  const std::string third =
      "Required.grad.zero3.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward";
  const std::string line = "equigrad run --fault twice";
  write("a", {{kCase, kWrong}}, line);
  write("b", {{kOther, kWrong}}, line);
  write("c", {{third, kWrong}}, line);
  const auto merge = [&](const std::string& one, const std::string& other, const std::string& to) {
    return result_of_words({"report", "merge", place(one), place(other), "--report", place(to)});
  };
  EXPECT_EQ(merge("a", "b", "ab").code, kFailed);
  const auto all = merge("ab", "c", "abc");
  EXPECT_EQ(all.code, kFailed) << all.err;
  EXPECT_THAT(all.out, HasSubstr("# again:  equigrad run --fault twice --report "));
}

TEST_F(Records, ShardsAreMergedIntoOneReportWithItsVerdict) {
  const std::vector<std::string> cases = {kCase, kOther, kContract, "--seed", "5"};
  for (const char* shard : {"1/2", "2/2"}) {
    auto words = cases;
    words.insert(words.end(), {"--shard", shard});
    EXPECT_EQ(run(words, std::string("shard") + shard[0]).code, kHeld);
  }
  EXPECT_EQ(record("shard1").shard, "1/2");
  const auto merged = result_of_words({"report", "merge", place("shard1"),
                                       place("shard2") + "/run.json", "--report", place("all")});
  EXPECT_EQ(merged.code, kHeld) << merged.err;
  EXPECT_THAT(merged.out, AllOf(HasSubstr("cases: 3 equal"), HasSubstr("\nHELD  ")));
  const auto whole = run(cases, "whole");
  EXPECT_EQ(record("all").cases.size(), 3u);
  EXPECT_EQ(record("all").not_run, record("whole").not_run);
  EXPECT_EQ(record("all").seed, 5u);
  EXPECT_THAT(text_of(place("all") + "/junit.xml"), HasSubstr(kContract));
  EXPECT_NE(text_of(place("all") + "/index.html").find("3 equal"), std::string::npos);
  const auto same = result_of_words({"diff", place("whole"), place("all")});
  EXPECT_EQ(same.code, kHeld) << same.out;
  EXPECT_THAT(same.out, AllOf(HasSubstr("NOT WORSE"), Not(HasSubstr("only in"))));
  const auto half =
      result_of_words({"report", "merge", place("shard1"), "--report", place("half")});
  EXPECT_EQ(half.code, kInfrastructure);
  EXPECT_THAT(half.err, HasSubstr("got none for 2/2"));
}

TEST_F(Records, AFailuresFilesComeWithTheMergedReport) {
  EXPECT_EQ(run({kCase, "--fault", "averaged_twice"}, "red").code, kFailed);
  const std::string alone =
      "Required.grad.zero2.fp32.w1.accumulation3.clip-off.sgd.irregular.loss_backward";
  EXPECT_EQ(run({alone, "--fault", "averaged_twice"}, "green").code, kHeld);
  const auto merged = result_of_words(
      {"report", "merge", place("green"), place("red"), "--report", place("all"), "--junit", "-"});
  EXPECT_EQ(merged.code, kFailed) << merged.err;
  EXPECT_THAT(merged.out, AllOf(HasSubstr("<testsuites"), HasSubstr("averaged twice")));
  EXPECT_THAT(merged.err, HasSubstr("\nFAILED  "));
  const auto cases = record("all").cases;
  ASSERT_EQ(cases.size(), 2u);
  ASSERT_EQ(cases[1].id, kCase);
  EXPECT_FALSE(cases[1].files.empty());
  EXPECT_THAT(cases[1].message, HasSubstr("    folder  " + place("all") + "/fail/" + kCase + "\n"));
  EXPECT_EQ(cases[1].files, record("red").cases.at(0).files);
  for (const auto& file : cases[1].files)
    EXPECT_EQ(text_of(place("all") + "/" + file), text_of(place("red") + "/" + file)) << file;
}

// A record from elsewhere writes nowhere but into the merged report's own folder.
TEST_F(Records, AFileThatIsNoFailuresIsNotCopied) {
  const auto a = write("a", kEqual, kEqual);
  auto one = record("a");
  write_file(place("secret"), "it");
  one.cases[0].files = {"../secret", "fail/../../secret", "fail/x/none", "run.json"};
  write_file(a + "/run.json", reports::to_json(one));
  EXPECT_EQ(result_of_words({"report", "merge", a, "--report", place("deep/out")}).code, kHeld);
  EXPECT_TRUE(record("deep/out").cases[0].files.empty());
  EXPECT_NE(access(place("deep/secret").c_str(), R_OK), 0);
}

TEST_F(Records, WhatDoesNotGoTogetherIsAUsageErrorByName) {
  const auto a = write("a", kEqual, kEqual), b = write("b", kWrong, kEqual);
  const auto two = result_of_words({"report", "merge", a, b, "--report", place("out")});
  EXPECT_EQ(two.code, kUsage);
  EXPECT_THAT(two.err, AllOf(HasSubstr(kCase), HasSubstr("equal in " + a + " and failed in " + b)));
  EXPECT_NE(access((place("out") + "/run.json").c_str(), R_OK), 0);
  EXPECT_EQ(result_of_words({"report", "merge", a, "--report", a}).code, kUsage);
  EXPECT_EQ(result_of_words({"report", "merge", place("none"), "--report", place("out")}).code,
            kUsage);
  write_file(place("text"), "{}");
  EXPECT_EQ(result_of_words({"diff", a, place("text")}).code, kUsage);
}

TEST_F(Records, ADifferenceThatIsWorseIsExitCodeOne) {
  const auto a = write("a", kEqual, kWrong), b = write("b", kWrong, kEqual);
  EXPECT_EQ(result_of_words({"diff", a, a}).code, kHeld);
  const auto said = result_of_words({"diff", a, b, "--json", "-"});
  EXPECT_EQ(said.code, kFailed);
  const auto json = nlohmann::json::parse(said.out);
  EXPECT_EQ(json.at("newly_failing").at(0).at("id"), kCase);
  EXPECT_EQ(json.at("newly_passing").at(0).at("id"), kOther);
  EXPECT_THAT(said.err, HasSubstr("newly failing: 1 case\n  " + kCase));
}

}  // namespace
}  // namespace equigrad::conformance::cli
