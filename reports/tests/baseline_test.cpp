#include "reports/baseline.hpp"

#include <gmock/gmock.h>

#include "reports/tests/example_run.hpp"

namespace equigrad::reports {
namespace {

using conformance::example_case;
using conformance::example_environment;
using conformance::example_self_checks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointee;
using ::testing::SizeIs;
using ::testing::StartsWith;

using Record = Run;  // a test has a member of that name

// Cases "0", "1", ..; one that is wrong says how.
Record run_of(const std::vector<std::pair<Verdict, std::string>>& cases) {
  Record run;
  run.environment = example_environment();
  run.self_checks = example_self_checks();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    run.cases.push_back(
        example_case(static_cast<int>(i) % 4, "fp32", 2, 1, "off", "sgd", "conv", "loss_backward"));
    auto& one = run.cases.back();
    one.id = std::to_string(i);
    one.verdict = cases[i].first;
    one.message = cases[i].second;
  }
  return run;
}

constexpr auto kEqual = Verdict::Equal, kFailed = Verdict::Failed, kSkipped = Verdict::Skipped,
               kNotRun = Verdict::NotRun, kCrashed = Verdict::Crashed,
               kTimedOut = Verdict::TimedOut;
const std::string kTwice =
    "it\n    looks like  got = 0.5 x want on 12/12 -> averaged twice over 2 ranks";
const std::string kDropped = "it\n    looks like  got = a - b -> micro-batch 1 of rank 0 missing";

const auto kId = [](const char* id) { return Pointee(Field(&Case::id, id)); };
const auto kKnown = [](const char* id) { return Field("id", &KnownCase::id, id); };

TEST(Baseline, WhatIsWrongInTheSameWayIsKnown) {
  const auto baseline =
      updated({}, run_of({{kFailed, kTwice}, {kFailed, kDropped}, {kEqual, ""}}), "#7");
  EXPECT_THAT(baseline.cases, ElementsAre(kKnown("0"), kKnown("1")));
  auto other_rank = kDropped;
  other_rank.replace(other_rank.find("rank 0"), 6, "rank 3");
  const auto same = run_of({{kFailed, kTwice}, {kFailed, other_rank}, {kEqual, ""}});
  EXPECT_THAT(beside(baseline, same).known, ElementsAre(kId("0"), kId("1")));
  EXPECT_THAT(beside(baseline, same).fresh, SizeIs(0));
  EXPECT_EQ(outcome(with_known(same, baseline)), Outcome::Held);
  EXPECT_EQ(exit_code(with_known(same, baseline)), 0);
}

TEST(Baseline, AnotherCauseAnotherVerdictAndAnotherCaseAreNew) {
  const auto baseline =
      updated({}, run_of({{kFailed, kTwice}, {kFailed, kTwice}, {kEqual, ""}}), "#7");
  const auto worse = run_of({{kFailed, kDropped}, {kCrashed, "rank 1 ended"}, {kFailed, kTwice}});
  EXPECT_THAT(beside(baseline, worse).fresh, ElementsAre(kId("0"), kId("1"), kId("2")));
  EXPECT_EQ(exit_code(with_known(worse, baseline)), 1);
  EXPECT_EQ(exit_code(with_known(worse, updated(baseline, worse, "#8"))), 0);
  const auto died = run_of({{kFailed, kTwice}, {kCrashed, "rank 1 ended"}, {kEqual, ""}});
  EXPECT_EQ(exit_code(with_known(died, baseline)), 3);
}

TEST(Baseline, WithoutAKnownCauseAnotherPlaceIsNew) {
  const auto at = [](const std::string& place) {
    return "  first   " + place + "\n    looks like  no known fault explains this\n";
  };
  const auto place = at("step 2, loss on rank 0");
  const auto baseline = updated({}, run_of({{kFailed, place}, {kFailed, place}}), "#7");
  const auto other = run_of({{kFailed, place}, {kFailed, at("step 1, loss on rank 0")}});
  EXPECT_THAT(beside(baseline, other).known, ElementsAre(kId("0")));
  EXPECT_THAT(beside(baseline, other).fresh, ElementsAre(kId("1")));
}

TEST(Baseline, ARunChangesWhatItRan) {
  auto baseline =
      updated({}, run_of({{kFailed, kTwice}, {kTimedOut, "no answer"}, {kFailed, kTwice}}), "#7");
  baseline = updated(
      baseline, run_of({{kEqual, ""}, {kNotRun, ""}, {kSkipped, "none"}, {kFailed, kTwice}}), "#8");
  EXPECT_THAT(baseline.cases, ElementsAre(kKnown("1"), kKnown("2"), kKnown("3")));
  ASSERT_THAT(baseline.accepted, SizeIs(2));
  EXPECT_EQ(baseline.accepted[0].taken_in, 3);
  EXPECT_EQ(baseline.accepted[1].taken_in, 1);
  EXPECT_EQ(baseline.accepted[1].taken_out, 1);
  EXPECT_EQ(baseline.accepted[1].reason, "#8");
  EXPECT_EQ(baseline.accepted[1].commit, example_environment().commit);
  EXPECT_THAT(
      with_known(run_of({{kEqual, ""}, {kTimedOut, "no answer"}}), baseline).cases[1].message,
      StartsWith("known to be wrong (#8): "));
  const auto again = updated(baseline, run_of({{kEqual, ""}, {kTimedOut, "no answer"}}), "#9");
  EXPECT_EQ(again.accepted.back().taken_in + again.accepted.back().taken_out, 0);
}

TEST(Baseline, WhatHoldsNowIsNamedAndFailsNothing) {
  const auto baseline = updated({}, run_of({{kFailed, kTwice}, {kFailed, kTwice}}), "#7");
  const auto run = run_of({{kEqual, ""}, {kFailed, kTwice}});
  const auto found = beside(baseline, run);
  EXPECT_THAT(found.mended, ElementsAre(Pointee(kKnown("0"))));
  EXPECT_THAT(to_text(found, "base.json"),
              AllOf(HasSubstr("hold now: 1 case; equigrad baseline update REPORT --file base.json "
                              "--reason \"...\" takes them out\n"),
                    HasSubstr("NOTHING NEWLY WRONG  0 new, 1 as accepted in base.json")));
  EXPECT_EQ(exit_code(with_known(run, baseline)), 0);
  auto empty = run_of({{kEqual, ""}});
  for (auto& lane : empty.cases[0].lanes) lane.compared = 0;
  EXPECT_THAT(beside(baseline, empty).mended, SizeIs(0));  // it shows nothing
  EXPECT_THAT(updated(baseline, empty, "#8").cases, SizeIs(2));
}

TEST(Baseline, ItExcusesCasesAlone) {
  const auto wrong = run_of({{kFailed, kTwice}, {kEqual, ""}});
  const auto baseline = updated({}, wrong, "#7");
  const auto code = [&](auto change) {
    auto run = wrong;
    change(run);
    return exit_code(with_known(run, baseline));
  };
  EXPECT_EQ(code([](Record&) {}), 0);
  EXPECT_EQ(code([](Record& run) { run.self_checks[0].caught = false; }), 1);
  EXPECT_EQ(code([](Record& run) { run.failure = "no rank"; }), 3);
  EXPECT_EQ(code([](Record& run) { run.engine_failure = "step 1"; }), 1);
  EXPECT_EQ(code([](Record& run) { run.interrupted = true; }), 130);
}

TEST(Baseline, ACiSeesWhatIsKnownAsSkippedWithTheReason) {
  const auto wrong = run_of({{kFailed, kTwice}, {kFailed, kDropped}});
  const auto baseline = updated({}, run_of({{kFailed, kTwice}}), "mended in #7");
  const auto seen = with_known(wrong, baseline);
  EXPECT_EQ(seen.cases[0].verdict, kSkipped);
  EXPECT_THAT(seen.cases[0].message, StartsWith("known to be wrong (mended in #7): it\n"));
  EXPECT_EQ(seen.cases[1].verdict, kFailed);
  EXPECT_THAT(to_text(beside(baseline, wrong), "base.json"),
              AllOf(HasSubstr("newly wrong: 1 case\n  failed  1: "), HasSubstr("missing"),
                    HasSubstr("\nNEWLY WRONG  1 new, 1 as accepted in base.json\n")));
}

TEST(Baseline, ItsFileIsReadAsItWasWrittenAndNothingElseIs) {
  const auto baseline = updated({}, run_of({{kFailed, kTwice}, {kCrashed, "rank 1 ended"}}), "#7");
  const auto text = to_json(baseline);
  EXPECT_EQ(to_json(baseline_from_json(text)), text);
  EXPECT_THAT(text, HasSubstr("averaged twice over # ranks")) << "as in files of earlier days";
  EXPECT_THAT(
      to_text(baseline_from_json(text)),
      AllOf(HasSubstr("2 cases known to be wrong\n"), HasSubstr("averaged twice over N ranks"),
            HasSubstr("2 in, 0 out: #7"), Not(HasSubstr("it\n"))));
  const auto refused = [](const std::string& text) {
    try {
      baseline_from_json(text);
      return std::string("nothing");
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
  };
  const auto with = [&](const std::string& old, const std::string& by) {
    auto changed = text;
    changed.replace(changed.find(old), old.size(), by);
    return refused(changed);
  };
  EXPECT_THAT(refused("{}"), HasSubstr("expected a baseline, got"));
  EXPECT_THAT(refused(""), HasSubstr("equigrad baseline update"));
  EXPECT_THAT(with("\"schema_version\": 1", "\"schema_version\": 2"),
              HasSubstr("schema_version 2"));
  EXPECT_THAT(with("\"failed\"", "\"equal\""), HasSubstr("expected failed, crashed or timed_out"));
  EXPECT_THAT(with("\"id\": \"0\"", "\"id\": \"1\""),
              HasSubstr("each once, got \"1\" behind \"1\""));
}

}  // namespace
}  // namespace equigrad::reports
