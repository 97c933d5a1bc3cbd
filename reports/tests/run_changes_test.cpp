#include "reports/run_changes.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "reports/merge.hpp"
#include "reports/tests/example_run.hpp"

namespace equigrad::reports {
namespace {

using Record = Run;  // a test has a member of that name
using conformance::example_case;
using conformance::example_environment;
using conformance::example_self_checks;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

Record run_of(const std::vector<Verdict>& verdicts) {
  Record run;
  run.environment = example_environment();
  run.self_checks = example_self_checks();
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    run.cases.push_back(
        example_case(static_cast<int>(i), "fp32", 2, 1, "off", "sgd", "conv", "loss_backward"));
    run.cases.back().verdict = verdicts[i];
    if (went_wrong(verdicts[i])) run.cases.back().message = "looks like it\nand more";
  }
  return run;
}

constexpr auto kEqual = Verdict::Equal, kFailed = Verdict::Failed, kSkipped = Verdict::Skipped,
               kNotRun = Verdict::NotRun, kWithin = Verdict::Within, kCrashed = Verdict::Crashed;

TEST(RunChanges, ACaseIsInTheListOfWhatBecameOfIt) {
  const auto a = run_of({kEqual, kFailed, kEqual, kFailed, kSkipped, kEqual, kNotRun});
  const auto b = run_of({kFailed, kEqual, kSkipped, kCrashed, kNotRun, kWithin, kEqual});
  const auto found = changes(a, b);
  ASSERT_EQ(found.newly_failing.size(), 1u);
  EXPECT_EQ(found.newly_failing[0].after, &b.cases[0]);
  ASSERT_EQ(found.newly_passing.size(), 2u);
  EXPECT_EQ(found.newly_passing[0].after, &b.cases[1]);
  EXPECT_EQ(found.newly_passing[1].after, &b.cases[6]);
  ASSERT_EQ(found.lost.size(), 2u);
  EXPECT_EQ(found.lost[0].after, &b.cases[2]);
  EXPECT_EQ(found.lost[1].after, &b.cases[4]);
  ASSERT_EQ(found.other.size(), 2u);
  EXPECT_EQ(found.other[0].after, &b.cases[3]);
  EXPECT_EQ(found.other[1].after, &b.cases[5]);
  EXPECT_TRUE(found.is_worse());
}

TEST(RunChanges, OnlyAWorseVerdictIsWorse) {
  const auto worse = [](const Record& a, const Record& b) { return changes(a, b).is_worse(); };
  const auto held = run_of({kEqual, kEqual}), wrong = run_of({kEqual, kFailed});
  EXPECT_FALSE(worse(held, held));
  EXPECT_TRUE(changes(held, held).only_before.empty());
  EXPECT_TRUE(changes(held, held).only_after.empty());
  EXPECT_FALSE(worse(wrong, held));
  EXPECT_FALSE(worse(wrong, wrong));
  EXPECT_TRUE(worse(held, wrong));
  EXPECT_TRUE(worse(held, run_of({kEqual, kSkipped})));
  EXPECT_FALSE(worse(held, run_of({kEqual, kWithin}))) << "it passes";
  EXPECT_FALSE(worse(held, run_of({kEqual}))) << "the other may have been another selection";
  auto empty = held;
  empty.cases[1].lanes[0].compared = 0;
  EXPECT_TRUE(worse(held, empty)) << "it passes, but compares nothing";
  EXPECT_EQ(changes(held, empty).lost.size(), 1u);
  auto without = held;
  without.self_checks[0].caught = false;
  EXPECT_TRUE(worse(held, without)) << "no case is worse, but nothing counts";
}

TEST(RunChanges, CasesInOneAloneAreNamed) {
  auto a = run_of({kEqual, kEqual}), b = run_of({kEqual, kEqual, kEqual});
  a.cases.erase(a.cases.begin());
  b.cases.pop_back();
  b.cases.pop_back();
  const auto found = changes(a, b);
  ASSERT_EQ(found.only_before.size(), 1u);
  EXPECT_EQ(found.only_before[0], &a.cases[0]);
  ASSERT_EQ(found.only_after.size(), 1u);
  EXPECT_EQ(found.only_after[0], &b.cases[0]);
  EXPECT_THAT(to_text(found, "A", "B"), AllOf(HasSubstr("only in A: 1 case\n  " + a.cases[0].id),
                                              HasSubstr("only in B: 1 case\n  " + b.cases[0].id),
                                              HasSubstr("\nNOTHING COMPARED")));
}

// As the run itself says.
TEST(RunChanges, CasesThatWereLeftToOthersAreNotCounted) {
  auto run = run_of({kEqual, kFailed});
  run.not_run = {{kNotSelected, 5000}, {"no device", 3}};
  const auto found = changes(run, run);
  EXPECT_THAT(to_text(found, "a", "b"),
              AllOf(HasSubstr("  5 cases: 1 equal, 0 within bounds, 1 failed"),
                    HasSubstr(" 3 not run  a\n"), Not(HasSubstr("5,00"))));
}

TEST(RunChanges, WhatNotWorseSaysNothingAboutIsSaid) {
  const auto a = run_of({kFailed, kFailed, kEqual}), both = run_of({kFailed, kFailed, kEqual});
  auto b = a, fresh = a;
  b.cases.erase(b.cases.begin());
  EXPECT_THAT(to_text(changes(a, b), "A", "B"),
              EndsWith("\nNOT WORSE  of the 2 cases that both have; 1 of A are not in B, 1 of "
                       "which went wrong\n"));
  EXPECT_THAT(to_text(changes(b, a), "B", "A"),
              EndsWith("\nNOT WORSE  of the 2 cases that both have; 1 that only A has went "
                       "wrong\n"));
  EXPECT_THAT(to_text(changes(a, both), "A", "B"), EndsWith("\nNOT WORSE\n"));
  fresh.cases.resize(1);
  EXPECT_THAT(to_text(changes(fresh, b), "A", "B"),
              EndsWith("NOTHING COMPARED  no case is in both\n"));
}

TEST(RunChanges, BitsOfTheWorstElementAndCountsAreCompared) {
  auto a = run_of({kFailed}), b = a;
  for (auto* run : {&a, &b}) {
    run->cases[0].lanes[0].differing = 3;
    run->cases[0].lanes[0].worst = Worst{.tensor = "w", .index = 4, .got = 0.0, .want = 1.5};
  }
  EXPECT_TRUE(changes(a, b).numbers.empty());
  b.cases[0].lanes[0].worst->got = -0.0;
  EXPECT_EQ(changes(a, b).numbers.size(), 1u) << "bits, not values";
  EXPECT_THAT(to_text(changes(a, b), "A", "B"), HasSubstr("w[4] got 0 -> -0, want 1.5 -> 1.5"));
  b = a;
  b.cases[0].lanes[0].differing = 4;
  const auto text = to_text(changes(a, b), "A", "B");
  EXPECT_THAT(text, HasSubstr("exact: 3 of 59,177 differ -> 4 of 59,177"));
  EXPECT_THAT(text, Not(HasSubstr("cross:")));
  EXPECT_THAT(text, HasSubstr("NOT WORSE"));
}

TEST(RunChanges, TheTextSaysWhatDiffersAndWarnsOfTimes) {
  auto a = run_of({kEqual, kEqual}), b = run_of({kFailed, kEqual});
  b.environment.torch = "2.12.0";
  b.cases[1].seconds = 0.25;
  const auto text = to_text(changes(a, b), "old.json", "new.json");
  EXPECT_THAT(text, AllOf(HasSubstr("HELD  2 cases: 2 equal"), HasSubstr("  old.json\n"),
                          HasSubstr("FAILED  2 cases: "), HasSubstr("torch: 2.11.0 -> 2.12.0"),
                          Not(HasSubstr("commit:"))));
  EXPECT_THAT(text, HasSubstr("newly failing: 1 case\n  " + b.cases[0].id +
                              "  equal -> failed\n    looks like it\n"));
  EXPECT_THAT(text, HasSubstr("time of the 1 case that both passed: "));
  EXPECT_THAT(text, HasSubstr(", x 2.00\n"));
  EXPECT_THAT(text, HasSubstr("no measurement"));
  EXPECT_THAT(text, HasSubstr("\nWORSE  1 case newly failing, 0 that say less; the run held"));
}

TEST(RunChanges, TheJsonHasAllOfIt) {
  const auto a = run_of({kEqual, kFailed, kEqual}), b = run_of({kFailed, kEqual, kSkipped});
  const auto json = nlohmann::json::parse(to_json(changes(a, b), "A", "B"));
  EXPECT_TRUE(json.at("worse"));
  EXPECT_EQ(json.at("before").at("outcome"), "failed");
  EXPECT_EQ(json.at("newly_failing").at(0).at("id"), b.cases[0].id);
  EXPECT_EQ(json.at("newly_failing").at(0).at("before"), "equal");
  EXPECT_EQ(json.at("newly_passing").at(0).at("id"), b.cases[1].id);
  EXPECT_EQ(json.at("says_less").at(0).at("after"), "skipped");
  EXPECT_EQ(json.at("seconds").at("cases").size(), 0u);
}

TEST(RunChanges, LongListsAreCutInTheTextAlone) {
  const auto a = run_of(std::vector<Verdict>(30, kEqual)),
             b = run_of(std::vector<Verdict>(30, kFailed));
  EXPECT_THAT(to_text(changes(a, b), "A", "B"), HasSubstr("  and 10 more: --json - has all\n"));
  EXPECT_EQ(nlohmann::json::parse(to_json(changes(a, b), "A", "B")).at("newly_failing").size(),
            30u);
}

}  // namespace
}  // namespace equigrad::reports
