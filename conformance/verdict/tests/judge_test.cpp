// From answers to verdicts, with answers made by hand.
#include "conformance/verdict/judge.hpp"

#include <gmock/gmock.h>

#include "conformance/verdict/lane_tally.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::Outcome;
using reports::Verdict;
using ::testing::HasSubstr;
using ::testing::Not;

const CaseSpec kCase{.stage = 2,
                     .precision = Precision::Fp32,
                     .style = Style::LossBackward,
                     .world = 2,
                     .accumulation = 1,
                     .clip = Clip::Off,
                     .optimizer = Rule::Sgd,
                     .model = "gpt"};

Outcome error(const std::string& text) { return {Outcome::Kind::Error, nullptr, text, "step 1"}; }
Outcome lost(const std::string& text) {
  auto outcome = error(text);
  outcome.lost_peer = true;
  return outcome;
}
Outcome died() { return {Outcome::Kind::Died, nullptr, "signal 11", "step 1"}; }
Outcome stopped() { return {Outcome::Kind::Stopped, nullptr, "stopped", "step 1"}; }

const char* const kLostPeer =
    "[rank 0/2] [comm.all_gather] expected all 2 ranks to take part in time, got: Connection "
    "closed";

Verdict verdict_of(const std::vector<Outcome>& outcomes) {
  return judge(kCase, "", outcomes).record.verdict;
}

TEST(Judge, WhatTheEngineThrowsFailsAndWhatTheMachineDoesIsACrash) {
  EXPECT_EQ(verdict_of({error("[engine.step] expected a backward"), stopped()}), Verdict::Failed);
  EXPECT_EQ(verdict_of({lost(kLostPeer), stopped()}), Verdict::Crashed);
  EXPECT_EQ(verdict_of({lost("[ranks.group] expected to reach all 2 ranks"), stopped()}),
            Verdict::Crashed);
  EXPECT_EQ(verdict_of({error("std::bad_alloc"), stopped()}), Verdict::Crashed);
  EXPECT_EQ(verdict_of({lost(kLostPeer), died()}), Verdict::Crashed);
  EXPECT_EQ(verdict_of({lost(kLostPeer), error("[engine.step] expected a backward")}),
            Verdict::Failed)
      << "one rank's exception is why the other lost its peer";
  EXPECT_EQ(verdict_of({error("[comm.reduction] expected dtype Float"), stopped()}),
            Verdict::Failed);
}

// `gradients`: rows of step 1; a row that did not hold makes the exact lane differ.
Outcome answer(int rank, const json& gradients, const json& second_step) {
  bool held = true;
  for (const auto& row : gradients) held = held && row.at(1).get<bool>();
  const json lane = {{"compared", 10},
                     {"differing", held ? 0 : 2},
                     {"margin", exact_text(0)},
                     {"first", held ? "" : "step 1 gradient w"},
                     {"worst", nullptr}};
  json even = lane;
  even["differing"] = 0;
  even["first"] = "";
  json kinds;
  for (const char* kind : {"loss", "loss_scale", "norm", "gradient", "master", "parameter", "bound",
                           "update", "getter", "ledger", "caller"})
    kinds[kind] = 1;
  return {Outcome::Kind::Ok,
          {{"exact", lane},
           {"bounded", even},
           {"digest", 1},
           {"digested", 1},
           {"cover", {{"w", 2 * rank, 2 * rank + 2, 4}}},
           {"memory", json::array()},
           {"compared", kinds},
           {"gradients", {gradients, second_step}},
           {"files", {"rank" + std::to_string(rank) + ".safetensors"}}},
          "",
          ""};
}

TEST(Judge, TheMessageSaysWhatHeldAndHowNarrowly) {
  const json rank0 = {{"a", true, "0.125"}, {"b", true, "0.5"}, {"w", true, "0.25"}};
  const json rank1 = {{"a", true, "0.3125"}, {"b", true, "0.1"}, {"w", false, "7"}};
  const auto record = judge(kCase, "", {answer(0, rank0, rank0), answer(1, rank1, rank0)}).record;
  EXPECT_EQ(record.verdict, Verdict::Failed);
  EXPECT_THAT(
      record.message,
      HasSubstr("    rest    2 of 3 gradients of step 1 held, smallest headroom 2.0x (b)\n"));
  EXPECT_THAT(record.message, HasSubstr("    files   fail/" + kCase.id() +
                                        "/{rank0.safetensors,rank1.safetensors}\n"));
}

TEST(Judge, AGradientThatHeldIsToldWhenSomethingElseDidNot) {
  const json held = {{"a", true, "0"}, {"w", true, "0"}};
  auto wrong = answer(0, held, held);
  wrong.answer["exact"]["differing"] = 1;
  const auto record = judge(kCase, "", {wrong, answer(1, held, held)}).record;
  EXPECT_THAT(record.message, HasSubstr("2 of 2 gradients of step 2 held\n"));
  EXPECT_THAT(record.message, Not(HasSubstr("headroom")));
}

TEST(Judge, APassHasNoMessage) {
  const json held = {{"w", true, "0.5"}};
  const auto record = judge(kCase, "", {answer(0, held, held), answer(1, held, held)}).record;
  EXPECT_EQ(record.verdict, Verdict::Equal);
  EXPECT_EQ(record.message, "");
}

TEST(Judge, AFaultActedIfItDidOnOneRank) {
  const auto ranks = [](std::vector<int> times) {
    std::vector<Outcome> outcomes(times.size());
    for (std::size_t i = 0; i < times.size(); ++i)
      outcomes[i].answer = {{"acted", {{"times", times[i]}}}};
    return outcomes;
  };
  EXPECT_EQ(acted(ranks({0, 3})), true);
  EXPECT_EQ(acted(ranks({2, 0})), true);
  EXPECT_EQ(acted(ranks({0, 0})), false);
  EXPECT_EQ(acted({Outcome{}, Outcome{}}), std::nullopt) << "none was planted";
  auto ended = ranks({3});
  ended.push_back(died());
  EXPECT_EQ(acted(ended), std::nullopt) << "not all answered";
}

CaseSpec refused_case() {
  auto spec = kCase;
  for (spec.stage = 0; spec.stage < 4; ++spec.stage)
    for (const auto precision : precisions()) {
      spec.precision = precision;
      if (spec.is_refused()) return spec;
    }
  return spec;
}

TEST(Judge, ACaseThatIsToBeRefusedSaysWhetherItsFaultActed) {
  const auto spec = refused_case();
  ASSERT_TRUE(spec.is_refused());
  const json held = {{"w", true, "0"}};
  auto first = answer(0, held, held), second = answer(1, held, held);
  first.answer["acted"] = second.answer["acted"] = {{"times", 0}};
  EXPECT_EQ(judge(spec, "", {first, second}).record.acted, false);
  second.answer["acted"] = {{"times", 1}};
  EXPECT_EQ(judge(spec, "", {first, second}).record.acted, true);
}

TEST(Judge, MemoryIsThatOfTheRankThatHoldsMost) {
  const json held = {{"w", true, "0.5"}};
  auto first = answer(0, held, held), second = answer(1, held, held);
  first.answer["memory"] = {{"master", 5, 6}, {"buckets", 3, 9}, {"total", 8, 12}};
  second.answer["memory"] = {{"master", 2, 3}, {"buckets", 7, 7}, {"total", 9, 10}};
  const HeldMemory want = {{"master", {2, 3}}, {"buckets", {7, 7}}, {"total", {9, 10}}};
  EXPECT_EQ(judge(kCase, "", {first, second}).memory, want);
  EXPECT_EQ(judge(kCase, "", {second, first}).memory, want);
}

TEST(Judge, WithoutATotalKindsAreAddedUp) {
  EXPECT_EQ(total_bytes({{"master", {2, 3}}, {"buckets", {7, 7}}}), 9);
  EXPECT_EQ(total_bytes({{"master", {2, 3}}, {"total", {20, 30}}}), 20);
  EXPECT_EQ(total_bytes({}), 0);
}

// Of a tensor group each rank has its own parts, whole.
TEST(Judge, TheShardsOfEveryPlaceAlongTensorCoverItsParts) {
  const json held = {{"w", true, "0.5"}};
  auto first = answer(0, held, held), second = answer(1, held, held);
  for (auto* one : {&first, &second}) one->answer["cover"] = {{"w", 0, 4, 4}};
  EXPECT_EQ(judge(kCase, "", {first, second}).record.verdict, Verdict::Failed);
  second.answer["tensor_rank"] = 1;
  EXPECT_EQ(judge(kCase, "", {first, second}).record.verdict, Verdict::Equal);
  second.answer["cover"] = {{"w", 0, 3, 4}};
  EXPECT_THAT(judge(kCase, "", {first, second}).record.message,
              HasSubstr("w is covered up to element 3 of 4"));
}

// However many are wrong in the same way.
TEST(Judge, ACaseThatPassedByItselfIsNotAccusedByOthersThatDidNot) {
  const auto judged = [](int stage, uint64_t digest, Verdict verdict) {
    Judged one;
    one.record.id = "stage" + std::to_string(stage);
    one.record.verdict = verdict;
    one.answered = true;
    one.digest = digest;
    return one;
  };
  const auto specs = [] {
    std::vector<CaseSpec> all(3, kCase);
    for (int stage = 0; stage < 3; ++stage) all[static_cast<std::size_t>(stage)].stage = stage;
    return all;
  }();
  auto right = judged(0, 1, Verdict::Equal);
  auto wrong = judged(1, 2, Verdict::Failed), alike = judged(2, 2, Verdict::Failed);
  cross_check(specs, {&right, &wrong, &alike});
  EXPECT_EQ(right.record.verdict, Verdict::Equal);
  EXPECT_THAT(wrong.record.message, HasSubstr("differ from those of 1 cases, such as stage0"));
  auto lucky = judged(2, 2, Verdict::Equal), second = judged(0, 1, Verdict::Equal);
  right.record.verdict = Verdict::Equal;
  wrong.record.verdict = alike.record.verdict = Verdict::Failed;
  const std::vector<CaseSpec> five(5, kCase);
  cross_check(five, {&right, &second, &wrong, &alike, &lucky});
  EXPECT_EQ(right.record.verdict, Verdict::Equal) << "two that passed beside one";
  EXPECT_EQ(lucky.record.verdict, Verdict::Failed);
  auto first = judged(0, 1, Verdict::Equal);
  auto other = judged(1, 2, Verdict::Equal), third = judged(2, 2, Verdict::Equal);
  cross_check(specs, {&first, &other, &third});
  EXPECT_EQ(first.record.verdict, Verdict::Failed) << "of those that passed most are right";
  EXPECT_EQ(other.record.verdict, Verdict::Equal);
}

// Of a refused case there is the exact lane alone, and nothing that stages share.
TEST(Judge, ARefusedCaseHasOneLaneAndNoPartners) {
  CaseSpec spec = kCase;
  spec.stage = 0;
  spec.precision = Precision::Bf16MastersStates;
  ASSERT_TRUE(spec.is_refused());
  const auto refusal = [](bool is_right) {
    LaneTally exact;
    if (is_right)
      exact.add_held(1);
    else
      exact.add_finding("initialize", "was taken");
    return Outcome{
        .kind = Outcome::Kind::Ok, .answer = {{"exact", exact.to_json()}}, .text = "", .doing = ""};
  };
  auto held = judge(spec, "", {refusal(true), refusal(true)});
  EXPECT_EQ(held.record.verdict, Verdict::Equal);
  ASSERT_EQ(held.record.lanes.size(), 1u);
  EXPECT_EQ(held.record.lanes[0].compared, 2);
  EXPECT_FALSE(held.answered);
  CaseSpec taken = spec;
  taken.stage = 1;
  Judged other;
  other.answered = true, other.digest = 7;
  cross_check({spec, taken}, {&held, &other});
  EXPECT_EQ(held.record.lanes.size(), 1u);
  EXPECT_TRUE(other.record.lanes.empty());
  const auto wrong = judge(spec, "", {refusal(true), refusal(false)});
  EXPECT_EQ(wrong.record.verdict, Verdict::Failed);
  EXPECT_THAT(wrong.record.message, HasSubstr("rank 1 first: initialize: was taken"));
}

}  // namespace
}  // namespace equigrad::conformance
