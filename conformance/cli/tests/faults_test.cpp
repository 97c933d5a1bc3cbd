// `equigrad faults`: a few faults through the panel, what it says of them, and how it ends.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/campaigns/fault_panel.hpp"
#include "conformance/campaigns/fault_run.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "conformance/generated/program.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

CommandResult say(std::vector<std::string> words) {
  words.insert(words.begin(), "faults");
  return result_of_words(std::move(words));
}

using FaultsCommandTest = InAFolder;

TEST_F(FaultsCommandTest, ItPrintsTheMatrixAndWritesThreeReports) {
  const auto result =
      say({"averaged_twice", "word_lost", "--clean", "4", "--report", folder_, "-q"});
  EXPECT_EQ(result.code, kHeld) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("averaged_twice"), HasSubstr("exact/gradient"),
                                HasSubstr("0 false alarms in 4 of 4"), HasSubstr("HELD  ")));
  EXPECT_TRUE(
      result.out.ends_with("\n# replay: equigrad faults averaged_twice word_lost --clean 4 "
                           "--report " +
                           folder_ + " -q\n# report: " + folder_ + "/faults.html\n"))
      << result.out;
  const auto json = nlohmann::json::parse(text_of(folder_ + "/faults.json"));
  EXPECT_EQ(json.at("panel").size(), fault_panel().size() + contract_panel().covering);
  ASSERT_EQ(json.at("faults").size(), 2u);
  for (const auto& fault : json.at("faults")) {
    EXPECT_EQ(fault.at("fate"), "caught");
    EXPECT_EQ(fault.at("cases"), 1) << "the first of the panel catches it";
    EXPECT_EQ(fault.at("found")[0].at("after_steps"), 0);
    EXPECT_TRUE(fault.at("found")[0].at("located"));
    EXPECT_TRUE(fault.at("covering"));
    EXPECT_THAT(std::string(fault.at("found")[0].at("replay")),
                HasSubstr(" --fault " + std::string(fault.at("fault"))));
  }
  EXPECT_THAT(text_of(folder_ + "/faults.html"), StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(text_of(folder_ + "/faults.md"), HasSubstr("| averaged\\_twice |"));
  EXPECT_THAT(text_of(folder_ + "/index.html"), HasSubstr("<a href=\"faults.html\">"));
}

// And with `--json -` the record alone goes to stdout.
TEST_F(FaultsCommandTest, WithThinItGoesOnUntilThreeCasesHaveCaughtAFault) {
  const auto result = say({"averaged_twice", "--thin", "--json", "-", "--report", folder_, "-q"});
  EXPECT_EQ(result.code, kHeld) << result.out << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json, nlohmann::json::parse(text_of(folder_ + "/faults.json")));
  EXPECT_EQ(json.at("counted"), true);
  ASSERT_EQ(json.at("faults").size(), 1u);
  EXPECT_EQ(json.at("faults")[0].at("found").size(), 3u);
  EXPECT_THAT(result.err, AllOf(HasSubstr("caught by fewer than 3 cases: 0 faults; counting took "),
                                HasSubstr("HELD  ")));
}

TEST_F(FaultsCommandTest, HelpSaysWhatItTakes) {
  const auto help = say({"--help"});
  EXPECT_EQ(help.code, kHeld);
  for (const char* flag :
       {"FILTER", "--full", "--covering", "--thin", "--minutes", "--clean", "--seed", "--json",
        "--report", "--data-dir", "--timeout-scale", "--slots", "--quiet"})
    EXPECT_THAT(help.out, HasSubstr(flag));
}

TEST_F(FaultsCommandTest, AWrongNameIsAUsageErrorThatSaysWhatIsNear) {
  const auto result = say({"avraged_twice", "--report", folder_});
  EXPECT_EQ(result.code, kUsage);
  EXPECT_THAT(result.err, HasSubstr("  averaged_twice\n"));
  EXPECT_EQ(say({"--minutes", "-1"}).code, kUsage);
  EXPECT_EQ(say({"--clean", "-1"}).code, kUsage);
}

TEST_F(FaultsCommandTest, WhatHasNoTimeIsNotAPass) {
  const auto result = say({"averaged_twice", "--minutes", "0.0001", "--report", folder_, "-q"});
  EXPECT_EQ(result.code, kInconclusive);
  EXPECT_THAT(result.out, AllOf(HasSubstr("not_run"), HasSubstr("INCONCLUSIVE")));
}

// Sums over micro-batches and ranks without a loss scale; paging; a scale that grows and overflows.
constexpr const char* kCases[] = {
    "Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.engine_backward",
    "Required.grad.zero3.fp32.w2.accumulation3.clip-above.adamw.irregular.loss_backward",
    "Required.grad.zero1.fp16.w2.accumulation4.clip-above.adamw.irregular.scale_backward"};

FaultOptions options(std::vector<std::string> faults, std::size_t cases) {
  FaultOptions chosen;
  chosen.faults = std::move(faults);
  for (std::size_t i = 0; i < cases; ++i) chosen.panel.push_back(parse_id(kCases[i]));
  chosen.minutes = 10;
  chosen.data = find_data("", false);
  chosen.quiet = true;
  chosen.slots = 2;
  return chosen;
}

// No case of the contract sees anything.
nlohmann::json without_contract(const nlohmann::json& request, ranks::RankContext& context) {
  if (request.at("do") == "contract")
    return {{"exact", {{"differing", 0}, {"first", ""}, {"checks", nlohmann::json::array()}}},
            {"acted", {{"times", 0}, {"step", -1}, {"micro_batch", -1}}}};
  return serve(request, context);
}

// In the panel's first case nothing overflows.
TEST(FaultRun, AFaultThatDoesNotActIsNotAPass) {
  auto few = options({"overflow_unseen"}, 1);
  few.serve = without_contract;
  const auto matrix = run_faults(few);
  ASSERT_EQ(matrix.faults.size(), 1u);
  EXPECT_EQ(matrix.faults[0].fate, reports::Fate::DidNotAct);
  EXPECT_EQ(reports::exit_code(matrix), 1);
}

// There is time for the panel, not for all of the contract.
TEST(FaultRun, AFaultWithoutTimeForTheContractIsNotRun) {
  auto late = options({"overflow_unseen"}, 1);
  late.minutes = 0.1;
  late.not_run = {{"no images", 3}};
  late.serve = [](const nlohmann::json& request, ranks::RankContext& context) {
    if (request.at("do") == "contract") usleep(50'000);
    return without_contract(request, context);
  };
  const auto matrix = run_faults(late);
  EXPECT_EQ(matrix.faults[0].fate, reports::Fate::NotRun);
  EXPECT_EQ(reports::outcome(matrix), reports::Outcome::Inconclusive);
  EXPECT_EQ(matrix.not_run, late.not_run) << "what the panel lacks is told";
}

TEST(FaultRun, WithTheWholePanelEveryCaseIsTried) {
  auto whole = options({"averaged_twice"}, 3);
  whole.full = true;
  const auto matrix = run_faults(whole);
  EXPECT_EQ(matrix.faults[0].cases, 3);
  EXPECT_EQ(matrix.faults[0].found.size(), 3u);
}

// The third case makes it enough; what no other case catches is thin, and says of how many.
TEST(FaultRun, CatchesAreCountedUpToThree) {
  auto some = options({"averaged_twice", "overflow_unseen"}, 3);
  some.thin = true;
  some.minutes = 0;
  some.serve = without_contract;
  const auto matrix = run_faults(some);
  EXPECT_EQ(matrix.faults[0].found.size(), 3u);
  EXPECT_EQ(matrix.faults[0].cases, 3);
  EXPECT_FALSE(reports::is_thin(matrix.faults[0]));
  EXPECT_EQ(matrix.faults[1].found.size(), 1u);
  EXPECT_TRUE(matrix.faults[1].all_tried);
  EXPECT_TRUE(reports::is_thin(matrix.faults[1]));
  EXPECT_TRUE(matrix.is_counted);
  EXPECT_GT(matrix.counting_s, 0);
  some.thin = false;
  const auto first = run_faults(some);
  EXPECT_EQ(first.faults[0].found.size(), 1u);
  EXPECT_EQ(first.faults[0].cases, 1);
  EXPECT_FALSE(first.is_counted);
}

// In the first case nothing overflows, and no other is to be tried.
TEST(FaultRun, OfTheCoveringSelectionAloneAShareIsAskedFor) {
  auto few = options({"averaged_twice", "overflow_unseen"}, 1);
  few.covering_only = true;
  few.serve = without_contract;
  auto matrix = run_faults(few);
  EXPECT_TRUE(reports::is_covered(matrix.faults[0]));
  EXPECT_EQ(reports::outcome(matrix), reports::Outcome::Failed);
  EXPECT_EQ(static_cast<std::size_t>(matrix.faults[1].cases), 1 + contract_panel().covering);
  few.faults = {"averaged_twice"};
  EXPECT_EQ(reports::outcome(run_faults(few)), reports::Outcome::Held);
}

// Without a fault nothing may raise an alarm; where one is planted all the same, alarms say how to
// repeat them.
TEST(FaultRun, GeneratedCasesWithoutAFaultRaiseNoAlarm) {
  auto clean = options({}, 0);
  clean.clean = 30;
  clean.serve = serve_with_generated;
  clean.replay_prefix = "equigrad run";
  const auto held = run_faults(clean).clean;
  EXPECT_EQ(held.asked, 30);
  EXPECT_GE(held.run, 30);
  EXPECT_GT(held.compared, 0);
  for (const auto& alarm : held.alarms) ADD_FAILURE() << alarm.replay << "\n" << alarm.message;
  clean.serve = [](const nlohmann::json& request, ranks::RankContext& context) {
    auto with_fault = request;
    if (request.at("do") == "generated") with_fault["fault"] = "averaged_twice";
    return serve_with_generated(with_fault, context);
  };
  const auto matrix = run_faults(clean);
  EXPECT_EQ(reports::outcome(matrix), reports::Outcome::Failed);
  ASSERT_FALSE(matrix.clean.alarms.empty());
  const auto& alarm = matrix.clean.alarms.front();
  EXPECT_EQ(alarm.replay, "equigrad run " + alarm.id);
  EXPECT_THAT(alarm.message, HasSubstr("step 1"));
}

TEST(FaultRun, WithoutTimeForThemGeneratedCasesAreNotAllRun) {
  auto late = options({}, 0);
  late.clean = 1000;
  late.serve = serve_with_generated;
  late.minutes = 0.02;
  const auto matrix = run_faults(late);
  EXPECT_LT(matrix.clean.run, 1000);
  EXPECT_EQ(matrix.clean.asked, 1000);
  EXPECT_EQ(reports::outcome(matrix), reports::Outcome::Inconclusive);
}

// Without a fault: a byte of `file` for each case.
FaultOptions held_cases(const std::string& file) {
  auto counted = options({"averaged_twice"}, 3);
  for (int again = 0; again < 5; ++again)
    for (const char* id : kCases) counted.panel.push_back(parse_id(id));
  counted.serve = [file](const nlohmann::json& request, ranks::RankContext& context) {
    if (request.at("do") == "case" && !request.contains("fault") && context.rank() == 0)
      std::ofstream(file, std::ios::app) << '.';
    return serve(request, context);
  };
  return counted;
}

// Of 18 the first 16, where the first one catches the only fault.
TEST_F(FaultsCommandTest, CasesThatNoFaultComesToAreNotRunWithoutOne) {
  auto some = held_cases(folder_ + "/some");
  EXPECT_EQ(run_faults(some).faults[0].cases, 1);
  EXPECT_EQ(text_of(folder_ + "/some").size(), 16u);
  auto all = held_cases(folder_ + "/all");
  all.full = true;
  EXPECT_EQ(run_faults(all).faults[0].cases, 18);
  EXPECT_EQ(text_of(folder_ + "/all").size(), 18u);
}

// What is wrong without a fault proves nothing about faults.
TEST(FaultRun, APanelThatFailsByItselfIsVoid) {
  auto spoiled = options({"averaged_twice"}, 2);
  spoiled.serve = [](const nlohmann::json& request, ranks::RankContext& context) {
    auto with_fault = request;
    if (request.at("do") == "case") with_fault["fault"] = "word_lost";
    return serve(with_fault, context);
  };
  const auto matrix = run_faults(spoiled);
  EXPECT_EQ(reports::outcome(matrix), reports::Outcome::Void);
  EXPECT_THAT(matrix.failure, HasSubstr("fails without a fault"));
  EXPECT_EQ(matrix.faults[0].fate, reports::Fate::NotRun);
}

enum class Ending { WrongNumber, Crash, NoTwin };

// A panel of two cases, which run side by side; the first's ends while the second's is under way.
FaultOptions ending_in_turn(const std::string& folder, Ending first, Ending second) {
  auto panel = options({"averaged_twice"}, 2);
  panel.serve = [=, ids = std::vector{panel.panel[0].id(), panel.panel[1].id()}](
                    const nlohmann::json& request, ranks::RankContext& context) {
    const bool is_first = request.value("id", "") == ids[0];
    const auto ending = is_first ? first : second;
    auto asked = request;
    if (request.at("do") != (ending == Ending::NoTwin ? "twin" : "case"))
      return serve(request, context);
    std::ofstream(folder + (is_first ? "/first" : "/second")).flush();
    const std::string other = folder + (is_first ? "/second" : "/first");
    while (access(other.c_str(), F_OK) != 0) usleep(5'000);
    if (!is_first) usleep(1'500'000);
    if (ending == Ending::Crash) raise(SIGKILL);
    if (ending == Ending::NoTwin) throw std::runtime_error("no twin is made");
    asked["fault"] = "word_lost";
    return serve(asked, context);
  };
  return panel;
}

class SpoiledPanel : public InAFolder {
 protected:
  reports::KillMatrix run(Ending first, Ending second) const {
    const std::string folder = folder_ + "/" + std::to_string(static_cast<int>(first)) +
                               std::to_string(static_cast<int>(second));
    EXPECT_EQ(mkdir(folder.c_str(), 0700), 0);
    return run_faults(ending_in_turn(folder, first, second));
  }
};

// Whichever of the two ends first.
TEST_F(SpoiledPanel, AWrongNumberIsTheReasonWhateverElseFailsBesideIt) {
  for (const auto& [first, second] : {std::pair{Ending::WrongNumber, Ending::Crash},
                                      {Ending::Crash, Ending::WrongNumber},
                                      {Ending::WrongNumber, Ending::NoTwin}}) {
    const auto matrix = run(first, second);
    const auto* wrong = kCases[first == Ending::WrongNumber ? 0 : 1];
    EXPECT_THAT(matrix.failure, StartsWith(std::string(wrong) + " fails without a fault: "));
    EXPECT_EQ(reports::outcome(matrix), reports::Outcome::Void);
  }
}

TEST_F(SpoiledPanel, OfTwoThatAreAlikeTheFirstIsTheReason) {
  const auto matrix = run(Ending::Crash, Ending::Crash);
  EXPECT_THAT(matrix.failure, StartsWith(std::string(kCases[0]) + " fails without a fault: "));
  EXPECT_EQ(reports::outcome(matrix), reports::Outcome::Broken);
}

// Not a number in the masters shows at once, and the engine throws in the next step.
TEST(FaultRun, WhatDifferedBeforeAnExceptionIsTold) {
  const auto matrix = run_faults(options({"mutant.master.not_a_number"}, 1));
  ASSERT_EQ(matrix.faults[0].fate, reports::Fate::Caught);
  const auto& found = matrix.faults[0].found[0];
  ASSERT_FALSE(found.checks.empty());
  EXPECT_THAT(found.checks[0], AllOf(StartsWith("exact/"), Not("exact/exception")));
  EXPECT_THAT(found.checks, ::testing::Contains("exact/exception"));
  EXPECT_EQ(found.after_steps, 0);
}

// Hanging, dying and throwing ranks are replaced, and the next fault finds them whole.
TEST(FaultRun, WhatEndsTheRanksIsCaughtByThat) {
  auto rough =
      options({"averaged_twice", "word_lost", "shard_off_by_one", "micro_batch_dropped"}, 1);
  rough.timeout_scale = 0.3;
  rough.serve = [](const nlohmann::json& request, ranks::RankContext& context) {
    const std::string fault = request.value("fault", "");
    context.note("step 1 micro-batch 1 engine_backward");
    if (fault == "averaged_twice" && context.rank() == 1) raise(SIGKILL);
    if (fault == "word_lost")
      for (;;) pause();
    if (fault == "shard_off_by_one") throw std::runtime_error("the engine says no");
    return serve(request, context);
  };
  const auto matrix = run_faults(rough);
  std::vector<std::string> by;
  for (const auto& row : matrix.faults) {
    ASSERT_EQ(row.fate, reports::Fate::Caught) << row.name;
    by.push_back(row.found[0].checks[0]);
    EXPECT_EQ(row.found[0].after_steps, 0);
  }
  EXPECT_THAT(by, ::testing::ElementsAre("crash", "time-out", "exception", "exact/norm"));
  EXPECT_FALSE(matrix.faults[0].has_data);
}

}  // namespace
}  // namespace equigrad::conformance::cli
