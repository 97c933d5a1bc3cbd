#include "reports/merge.hpp"

#include <gmock/gmock.h>

#include "reports/json.hpp"
#include "reports/tests/example_run.hpp"

namespace equigrad::reports {
namespace {

using Record = Run;  // a test has a member of that name
using conformance::example_case;
using conformance::example_environment;
using conformance::example_self_checks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Case one_case(int stage) {
  return example_case(stage, "fp32", 2, 1, "off", "sgd", "conv", "loss_backward");
}

// A shard with one case, of a selection of `count` cases, of a catalogue of ten.
NamedRun shard(int index, int count) {
  Record run;
  run.environment = example_environment();
  run.seed = 7;
  run.command = "equigrad run --shard " + std::to_string(index);
  run.shard = std::to_string(index) + "/" + std::to_string(count);
  run.self_checks = example_self_checks();
  run.cases = {one_case(index)};
  run.not_run = {{kInOtherShards, count - 1}, {kOnlyWithFull, 10 - count}};
  run.wall_s = 2;
  run.memory = {{index, "fp32", 2, "buckets", 10, 20, "conv"},
                {0, "fp32", 2, "master", index, 30, "gpt"},
                {0, "fp32", 2, "buckets", 10 - index, 40 + index, "gpt"},
                {0, "fp32", 2, "total", 10 + index, 90, "gpt"}};
  return {"shard-" + std::to_string(index), run};
}

std::string refusal(const std::vector<NamedRun>& records) {
  try {
    merged(records);
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

TEST(Merge, ShardsAreOneRun) {
  const auto run = merged({shard(2, 3), shard(1, 3), shard(3, 3)});
  ASSERT_EQ(run.cases.size(), 3u);
  EXPECT_EQ(run.cases[0].id, one_case(2).id);
  EXPECT_EQ(outcome(run), Outcome::Held);
  EXPECT_EQ(run.shard, "") << "it is a whole run";
  EXPECT_THAT(run.not_run, ElementsAre(Pair(kOnlyWithFull, 7)));
  EXPECT_EQ(run.wall_s, 6);
  EXPECT_THAT(run.merged_commands, ElementsAre("equigrad run --shard 2", "equigrad run --shard 1",
                                               "equigrad run --shard 3"));
  EXPECT_EQ(run.self_checks.size(), 3u);
  ASSERT_EQ(run.memory.size(), 6u);
  int64_t kinds = 0;
  for (const auto& row : run.memory)
    if (row.model == "gpt" && row.category != "total") kinds += row.bytes;
  EXPECT_EQ(kinds, 10) << "of one case: those that are largest by kind make 12";
  EXPECT_EQ(run.memory[3].bytes, 3) << "of shard 3, whose total is the largest";
  EXPECT_EQ(run.memory[4].bytes, 7);
  EXPECT_EQ(to_json(from_json(to_json(run))), to_json(run));
  EXPECT_EQ(from_json(to_json(shard(2, 3).run)).shard, "2/3");
}

TEST(Merge, OfCasesThatHoldAsMuchOneIsShown) {
  auto one = shard(1, 2), other = shard(2, 2);
  other.run.memory = one.run.memory;
  EXPECT_EQ(merged({one, other}).memory.size(), one.run.memory.size());
}

TEST(Merge, AShardThatIsMissingIsNotGreen) {
  const auto run = merged({shard(1, 3), shard(3, 3)});
  EXPECT_EQ(outcome(run), Outcome::Broken);
  EXPECT_THAT(run.failure, HasSubstr("expected every shard of 3, got none for 2/3"));
  EXPECT_THAT(run.not_run, ElementsAre(Pair(kOnlyWithFull, 8)));
}

TEST(Merge, FaultsThatWerePlantedAreNamed) {
  auto one = shard(1, 2), other = shard(2, 2);
  one.run.planted = "word_lost";
  EXPECT_EQ(merged({one, other}).planted, "word_lost");
  other.run.planted = "averaged_twice";
  EXPECT_EQ(merged({one, other}).planted, "word_lost, averaged_twice");
}

TEST(Merge, WhatWasNotGreenStaysSo) {
  auto failed = shard(1, 2), caught = shard(2, 2);
  failed.run.cases[0].verdict = Verdict::Failed;
  EXPECT_EQ(exit_code(merged({failed, caught})), 1);
  auto fault = shard(1, 2);
  fault.run.self_checks[1].caught = false;
  EXPECT_EQ(outcome(merged({fault, caught})), Outcome::Void);
  EXPECT_EQ(outcome(merged({caught, fault})), Outcome::Void);
  EXPECT_FALSE(merged({caught, fault}).self_checks.at(1).caught) << "the fault itself says so";
  auto without = shard(1, 2);
  without.run.self_checks.clear();
  EXPECT_EQ(outcome(merged({without, caught})), Outcome::Void) << "the other's are not its own";
  auto interrupted = shard(1, 2);
  interrupted.run.interrupted = true;
  interrupted.run.signal = 15;
  EXPECT_EQ(exit_code(merged({interrupted, caught})), 143);
  auto broken = shard(1, 2);
  broken.run.failure = "no answer";
  EXPECT_EQ(merged({broken, caught}).failure, "shard-1: no answer");
  EXPECT_EQ(exit_code(merged({broken, caught})), 3);
  auto engine = shard(1, 2);
  engine.run.engine_failure = "it differs";
  EXPECT_EQ(exit_code(merged({engine, caught})), 1);
}

TEST(Merge, ACaseInTwoRecordsHasOneVerdict) {
  auto a = shard(1, 1), b = shard(1, 1);
  a.run.shard = b.run.shard = "";
  a.name = "a", b.name = "b";
  EXPECT_EQ(merged({a, b}).cases.size(), 1u);
  EXPECT_EQ(counts(merged({a, b})).total(), 10);
  b.run.cases[0].verdict = Verdict::NotRun;
  EXPECT_EQ(merged({a, b}).cases[0].verdict, Verdict::Equal);
  EXPECT_EQ(merged({b, a}).cases[0].verdict, Verdict::Equal) << "it was reached in one of them";
  b.run.cases[0].verdict = Verdict::Failed;
  EXPECT_THAT(refusal({a, b}), HasSubstr("expected one verdict of " + a.run.cases[0].id +
                                         ", got equal in a and failed in b"));
  b.run.cases[0].verdict = Verdict::Equal;
  b.run.cases[0].lanes[0].compared += 1;
  EXPECT_THAT(refusal({a, b}), HasSubstr("with other numbers"));
}

TEST(Merge, RecordsOfDifferentRunsAreRefusedByName) {
  const auto with = [](const auto& change) {
    auto b = shard(2, 2);
    change(b.run);
    return refusal({shard(1, 2), b});
  };
  EXPECT_THAT(with([](Record& run) { run.environment.commit = "other"; }),
              HasSubstr("of one commit, got 1a2b3c4 in shard-1 and other in shard-2"));
  EXPECT_THAT(with([](Record& run) { run.seed = 8; }),
              HasSubstr("of one seed, got 7 in shard-1 and 8 in shard-2"));
  EXPECT_THAT(with([](Record& run) { run.environment.torch = "2.12.0"; }),
              HasSubstr("of one torch"));
  EXPECT_THAT(with([](Record& run) { run.shard = "1/2"; }),
              HasSubstr("every shard once, got 1/2 in shard-1 and in shard-2"));
  EXPECT_THAT(with([](Record& run) { run.shard = "2/4"; }), HasSubstr("shards of one number"));
  EXPECT_THAT(with([](Record& run) { run.shard = "5/2"; }),
              HasSubstr("expected a shard such as 2/5"));
  EXPECT_THAT(with([](Record& run) { run.not_run[kInOtherShards] = 4; }),
              HasSubstr("shards of one selection"));
  const auto drawn = [](Record& run) { run.generated = GeneratedCases{.cases = 5}; };
  auto a = shard(1, 2), b = shard(2, 2);
  drawn(a.run);
  EXPECT_EQ(refusal({a, b}), "");
  drawn(b.run);
  EXPECT_THAT(refusal({a, b}), HasSubstr("generated cases in one record"));
  EXPECT_THAT(refusal({}), HasSubstr("expected a record or more"));
}

// Two shards that have one case in common have not the cases of the selection together.
TEST(Merge, ShardsOfOneSelectionAreDisjoint) {
  auto b = shard(2, 2);
  b.run.cases = {one_case(1)};
  EXPECT_THAT(refusal({shard(1, 2), b}), HasSubstr("in two shards"));
}

TEST(Merge, PartsFollowOneAnotherWhateverTheRecordIs) {
  auto a = shard(1, 2), b = shard(2, 2);
  for (auto* run : {&a.run, &b.run}) {
    run->cases.push_back(one_case(run == &a.run ? 3 : 0));
    run->parts = {{"covering", 1, 1}, {"rest", 1, 2}};
    run->not_run = {{kInOtherShards, 2}};
  }
  const auto run = merged({a, b});
  ASSERT_EQ(run.parts.size(), 2u);
  EXPECT_EQ(run.parts[0].cases, 2);
  EXPECT_EQ(run.parts[1].wall_s, 4);
  EXPECT_EQ(run.cases[1].id, one_case(2).id);
  EXPECT_EQ(run.cases[2].id, one_case(3).id);
}

}  // namespace
}  // namespace equigrad::reports
