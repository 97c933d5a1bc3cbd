// `equigrad baseline`, and `--baseline` of `equigrad run` and `equigrad report merge`.
#include <gmock/gmock.h>
#include <unistd.h>

#include "conformance/cli/records.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "reports/json.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kCase =
    "Required.grad.zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward";
const std::string kOther =
    "Required.grad.zero1.fp32.w2.accumulation3.clip-off.sgd.irregular.loss_backward";

class Baselines : public InAFolder {
 protected:
  std::string place(const std::string& name) const { return folder_ + "/" + name; }
  // An engine that is wrong: a fault is planted; the record does not tell.
  CommandResult run(const std::string& fault, std::vector<std::string> words) const {
    words.insert(words.begin(), "run");
    words.insert(words.end(), {"-q", "--fault", fault, "--report", place("red")});
    const auto result = result_of_words(words);
    auto record = reports::from_json(text_of(place("red") + "/run.json"));
    record.command = "equigrad run";
    write_file(place("red") + "/run.json", reports::to_json(record));
    return result;
  }
  CommandResult update(const std::string& of, const std::string& reason) const {
    return result_of_words(
        {"baseline", "update", place(of), "--file", place("base.json"), "--reason", reason});
  }
};

TEST_F(Baselines, OnlyWhatIsNewlyWrongFailsARun) {
  EXPECT_EQ(run("averaged_twice", {kCase}).code, kFailed);
  const auto updated = update("red", "#7, by Ada");
  EXPECT_EQ(updated.code, kHeld) << updated.err;
  EXPECT_THAT(updated.out, AllOf(HasSubstr("1 case known to be wrong\n"), HasSubstr(kCase),
                                 HasSubstr("1 in, 0 out: #7, by Ada")));
  EXPECT_EQ(result_of_words({"baseline", "show", "--file", place("base.json")}).out, updated.out);

  const std::vector<std::string> against = {"--baseline", place("base.json")};
  const auto same = run("averaged_twice", {kCase, against[0], against[1]});
  EXPECT_EQ(same.code, kHeld) << same.out;
  EXPECT_THAT(same.out, AllOf(HasSubstr("FAILED  "), HasSubstr("\nNOTHING NEWLY WRONG  0 new, 1 as "
                                                               "accepted in " +
                                                               place("base.json") + "\n")));
  EXPECT_THAT(text_of(place("red") + "/junit.xml"),
              AllOf(HasSubstr("known to be wrong (#7, by Ada)"), Not(HasSubstr("<failure"))));
  EXPECT_THAT(text_of(place("red") + "/run.json"), HasSubstr("\"failed\": 1"));
  const auto copied =
      run("averaged_twice", {kCase, against[0], against[1], "--json", place("copy.json")});
  EXPECT_EQ(copied.code, kHeld);
  EXPECT_EQ(reports::from_json(text_of(place("copy.json"))).cases.at(0).verdict,
            reports::Verdict::Failed);
  EXPECT_THAT(update("red", "again").out, HasSubstr("stays: "));
  setenv("GITHUB_ACTIONS", "true", 1);
  setenv("GITHUB_STEP_SUMMARY", place("summary.md").c_str(), 1);
  const auto job = run("averaged_twice", {kCase, against[0], against[1]});
  unsetenv("GITHUB_ACTIONS");
  unsetenv("GITHUB_STEP_SUMMARY");
  EXPECT_THAT(job.err, Not(HasSubstr("::error"))) << "what is known is no annotation";
  EXPECT_THAT(text_of(place("summary.md")),
              AllOf(StartsWith("## Equigrad: nothing newly wrong\n"),
                    HasSubstr("\n## Equigrad: failed"), Not(HasSubstr("## Equigrad: held"))));

  const auto more =
      run("averaged_twice", {kCase, kOther, against[0], against[1], "--timeout-scale", "1.5"});
  EXPECT_THAT(more.out, HasSubstr("# again:  equigrad run --fault averaged_twice --timeout-scale "
                                  "1.5 --report "));
  EXPECT_EQ(more.code, kFailed);
  EXPECT_THAT(more.out, HasSubstr(" --failed --baseline " + place("base.json") + "\n"));
  EXPECT_THAT(more.out, HasSubstr("newly wrong: 1 case\n  failed  " + kOther + ": averaged twice"));
  const auto otherwise = run("micro_batch_dropped", {kCase, against[0], against[1]});
  EXPECT_EQ(otherwise.code, kFailed);
  EXPECT_THAT(otherwise.out, HasSubstr("\nNEWLY WRONG  1 new, 0 as accepted"));
}

TEST_F(Baselines, WhatHoldsAgainIsTakenOut) {
  EXPECT_EQ(run("averaged_twice", {kCase}).code, kFailed);
  EXPECT_EQ(update("red", "#7").code, kHeld);
  const auto green = result_of_words(
      {"run", kCase, "-q", "--report", place("green"), "--baseline", place("base.json")});
  EXPECT_EQ(green.code, kHeld) << green.err;
  EXPECT_THAT(green.out, AllOf(HasSubstr("\nHELD  "), HasSubstr("hold now: 1 case; equigrad "
                                                                "baseline update")));
  EXPECT_THAT(update("green", "mended").out,
              AllOf(HasSubstr("0 cases known to be wrong\n"), HasSubstr("0 in, 1 out: mended")));
}

TEST_F(Baselines, OnlyWhatIsNewlyWrongFailsAMergedRecord) {
  EXPECT_EQ(run("averaged_twice", {kCase}).code, kFailed);
  EXPECT_EQ(update("red", "#7").code, kHeld);
  EXPECT_EQ(result_of_words({"run", kOther, "-q", "--report", place("green")}).code, kHeld);
  const auto merge = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"report", "merge", place("red"), place("green"), "--report",
                               place("all"), "--color", "never"});
    return result_of_words(more);
  };
  const auto refused = merge({"--baseline", place("nothing.json")});
  EXPECT_EQ(refused.code, kUsage);
  EXPECT_THAT(refused.err, HasSubstr(place("nothing.json")));
  EXPECT_NE(access(place("all").c_str(), F_OK), 0) << "before anything is written";
  const auto alone = merge({});
  EXPECT_EQ(alone.code, kFailed) << alone.err;
  EXPECT_THAT(alone.out, Not(HasSubstr("NEWLY WRONG")));
  const auto known = merge({"--baseline", place("base.json")});
  EXPECT_EQ(known.code, kHeld) << known.out << known.err;
  EXPECT_THAT(known.out,
              AllOf(HasSubstr("FAILED  "), HasSubstr("\nNOTHING NEWLY WRONG  0 new, 1 as accepted "
                                                     "in " +
                                                     place("base.json") + "\n")));
  EXPECT_THAT(text_of(place("all") + "/junit.xml"),
              AllOf(HasSubstr("known to be wrong (#7)"), Not(HasSubstr("<failure"))));
  EXPECT_THAT(text_of(place("all") + "/run.json"), HasSubstr("\"failed\": 1"));
  EXPECT_EQ(result_of_words({"baseline", "update", place("green"), "--file", place("other.json"),
                             "--reason", "none"})
                .code,
            kHeld);
  const auto fresh = merge({"--baseline", place("other.json")});
  EXPECT_EQ(fresh.code, kFailed);
  EXPECT_THAT(fresh.out, AllOf(HasSubstr("\nNEWLY WRONG  1 new, 0 as accepted"),
                               HasSubstr(" --failed --baseline " + place("other.json") + "\n")));
}

TEST_F(Baselines, WhatShowsNothingIsNotAccepted) {
  const auto planted = result_of_words(
      {"run", kCase, "-q", "--fault", "averaged_twice", "--report", place("planted")});
  EXPECT_EQ(planted.code, kFailed);
  const auto refused = update("planted", "#7");
  EXPECT_EQ(refused.code, kUsage);
  EXPECT_THAT(refused.err, HasSubstr("a run with --fault averaged_twice"));
  auto record = reports::from_json(text_of(place("planted") + "/run.json"));
  record.command = "equigrad run";
  const auto update_of = [&](const auto& change) {
    auto changed = record;
    change(changed);
    write_file(place("planted") + "/run.json", reports::to_json(changed));
    return update("planted", "#7");
  };
  const auto is_refused = [&](const auto& change, const std::string& words) {
    const auto result = update_of(change);
    EXPECT_EQ(result.code, kUsage) << words;
    EXPECT_THAT(result.err, HasSubstr(words));
  };
  is_refused([](reports::Run& run) { run.self_checks[0].caught = false; }, "did not catch them");
  is_refused([](reports::Run& run) { run.self_checks.clear(); }, "did not catch them");
  is_refused([](reports::Run& run) { run.failure = "no rank"; }, "ended before its cases: no rank");
  is_refused([](reports::Run& run) { run.engine_failure = "step 1"; }, "Mend that first: step 1");
  EXPECT_EQ(update("planted", " ").code, kUsage);
  EXPECT_EQ(update("nothing", "#7").code, kUsage);
  EXPECT_NE(access(place("base.json").c_str(), F_OK), 0);
  EXPECT_EQ(update_of([](reports::Run&) {}).code, kHeld);
}

TEST_F(Baselines, AFileThatIsNoneIsRefusedBeforeAnythingIsRun) {
  write_file(place("base.json"), "{}");
  for (const auto& file : {place("base.json"), place("nothing.json")}) {
    const auto run =
        result_of_words({"run", kCase, "-q", "--report", place("report"), "--baseline", file});
    EXPECT_EQ(run.code, kUsage);
    EXPECT_THAT(run.err, AllOf(HasSubstr(file), HasSubstr("equigrad baseline update")));
    EXPECT_EQ(result_of_words({"baseline", "show", "--file", file}).code, kUsage);
    EXPECT_NE(access((place("report") + "/run.json").c_str(), F_OK), 0);
  }
}

}  // namespace
}  // namespace equigrad::conformance::cli
