// From the answers of ranks with a planted fault to what the kill matrix says of it.
#include "conformance/verdict/fault_judge.hpp"

#include <gmock/gmock.h>

#include "conformance/verdict/divergence.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::Outcome;
using ::testing::ElementsAre;

const CaseSpec kCase{.stage = 2,
                     .precision = Precision::Fp32,
                     .style = Style::LossBackward,
                     .world = 2,
                     .accumulation = 3,
                     .clip = Clip::Off,
                     .optimizer = Rule::Sgd,
                     .model = "irregular"};

json check(const char* kind, int step) {
  return {{"kind", kind}, {"step", step}, {"of", "w"}, {"differing", 1}};
}

json lane(const std::vector<json>& checks) {
  return {{"compared", 2},        {"differing", checks.size()}, {"margin", "0"},
          {"first", "step 1 it"}, {"worst", nullptr},           {"checks", checks}};
}

// Where the checks part, as a rank tells it.
json divergences_of(const std::vector<json>& checks) {
  Divergences divergences;
  for (const auto& one : checks) {
    const std::string kind = one.at("kind");
    const Phase phase = kind == "loss"       ? Phase::Forward
                        : kind == "gradient" ? Phase::Gradient
                        : kind == "norm"     ? Phase::Norm
                                             : Phase::Update;
    divergences.add({phase, one.at("step"), -1, -1, kind, "w", 0, 0, 2});
  }
  return divergences.to_json();
}

Outcome answer(int rank, const std::vector<json>& exact, const std::vector<json>& bounded,
               json acted) {
  json kinds;
  for (const char* kind : {"loss", "loss_scale", "norm", "gradient", "master", "parameter", "bound",
                           "update", "getter", "ledger", "caller"})
    kinds[kind] = 1;
  return {Outcome::Kind::Ok,
          {{"exact", lane(exact)},
           {"bounded", lane(bounded)},
           {"digest", 1},
           {"digested", 1},
           {"cover", {{"w", 2 * rank, 2 * rank + 2, 4}}},
           {"memory", json::array()},
           {"compared", kinds},
           {"gradients", json::array()},
           {"acted", std::move(acted)},
           {"divergences", divergences_of(exact)},
           {"rules", {rank == 1, false, false, false}}},
          "",
          ""};
}

json acted(int times, int step) {
  return {{"times", times}, {"step", step}, {"micro_batch", 2}, {"parameters", json::array()}};
}

const json kNever = {
    {"times", 0}, {"step", -1}, {"micro_batch", -1}, {"parameters", json::array()}};

TEST(FaultJudge, APassCaughtNothingButTheFaultActed) {
  const auto verdict = judge_fault("gradient", kCase, "again",
                                   {answer(0, {}, {}, kNever), answer(1, {}, {}, acted(3, 1))});
  EXPECT_FALSE(verdict.found);
  EXPECT_TRUE(verdict.answered);
  EXPECT_EQ(verdict.acted_times, 3);
  EXPECT_EQ(verdict.acted_step, 1);
  EXPECT_EQ(verdict.acted_micro_batch, 2);
}

TEST(FaultJudge, ChecksComeInTheOrderOfTheirSteps) {
  const auto verdict = judge_fault(
      "gradient", kCase, "again",
      {answer(0, {check("loss", 2)}, {}, acted(1, 1)),
       answer(1, {check("norm", 1), check("gradient", 1)}, {check("gradient", 1)}, acted(1, 2))});
  ASSERT_TRUE(verdict.found);
  EXPECT_THAT(verdict.found->checks,
              ElementsAre("exact/norm", "exact/gradient", "bounded/gradient", "exact/loss"));
  EXPECT_EQ(verdict.acted_step, 1);
  EXPECT_EQ(verdict.found->after_steps, 0);
  EXPECT_TRUE(verdict.found->located) << "a norm that is wrong because a gradient is";
  EXPECT_EQ(verdict.found->replay, "again");
  EXPECT_THAT(verdict.elsewhere, ElementsAre(true, false, false, false));
}

TEST(FaultJudge, AnotherPhaseOrAnotherStepIsNotLocated) {
  const auto found = [](const char* phase, int acted_step) {
    return *judge_fault(phase, kCase, "",
                        {answer(0, {check("master", 2)}, {}, acted(1, acted_step)),
                         answer(1, {}, {}, kNever)})
                .found;
  };
  EXPECT_TRUE(found("update", 2).located);
  EXPECT_FALSE(found("gradient", 2).located);
  EXPECT_FALSE(found("update", 1).located);
  EXPECT_EQ(found("update", 1).after_steps, 1);
}

TEST(FaultJudge, AnotherParameterThanTheFaultsIsNotLocated) {
  const auto found = [](const char* parameter) {
    auto act = acted(1, 1);
    act["parameters"] = {parameter};
    return *judge_fault("gradient", kCase, "",
                        {answer(0, {check("gradient", 1)}, {}, act), answer(1, {}, {}, kNever)})
                .found;
  };
  EXPECT_TRUE(found("w").located);
  EXPECT_FALSE(found("b").located);
}

TEST(FaultJudge, ShardsThatDoNotCoverAreCaughtByThat) {
  auto gap = answer(1, {}, {}, acted(1, -1));
  gap.answer["cover"] = {{"w", 3, 4, 4}};
  const auto verdict = judge_fault("update", kCase, "", {answer(0, {}, {}, kNever), gap});
  ASSERT_TRUE(verdict.found);
  EXPECT_THAT(verdict.found->checks, ElementsAre("cover"));
  EXPECT_EQ(verdict.found->after_steps, -1) << "no step says when";
}

Outcome ended(Outcome::Kind kind, const std::string& doing) {
  return {kind, nullptr, "text", doing};
}

TEST(FaultJudge, WhatEndsACaseIsCaughtWhereItEnded) {
  const auto by = [](Outcome one, Outcome other) {
    return judge_fault("gradient", kCase, "", {std::move(one), std::move(other)});
  };
  using Kind = Outcome::Kind;
  const auto died = by(ended(Kind::Died, "step 2 micro-batch 1 loss_backward"),
                       ended(Kind::Stopped, "step 2 step() after micro-batch 1"));
  EXPECT_THAT(died.found->checks, ElementsAre("crash"));
  EXPECT_EQ(died.acted_step, 1) << "it acted where it ended, if it had not acted before";
  EXPECT_EQ(died.found->after_steps, 0);
  EXPECT_FALSE(died.answered);
  const auto thrown = by(
      ended(Kind::Error, "step 3 step() after micro-batch 1, the planted fault acted in step 1 "),
      ended(Kind::Stopped, "step 3 micro-batch 1 loss_backward"));
  EXPECT_THAT(thrown.found->checks, ElementsAre("exception"));
  EXPECT_EQ(thrown.acted_step, 0);
  EXPECT_EQ(thrown.found->after_steps, 2);
  const auto hung = by(ended(Kind::TimedOut, "initialize"), ended(Kind::TimedOut, "initialize"));
  EXPECT_THAT(hung.found->checks, ElementsAre("time-out"));
  EXPECT_EQ(hung.found->after_steps, 0);
}

TEST(FaultJudge, AContractCaseIsJudgedByItsOneLane) {
  const auto contract = [](const std::vector<json>& checks) {
    auto lane_of = lane(checks);
    if (checks.empty()) lane_of["first"] = "";
    return Outcome{.kind = Outcome::Kind::Ok,
                   .answer = {{"exact", lane_of}, {"acted", acted(2, 0)}},
                   .text = "",
                   .doing = ""};
  };
  EXPECT_FALSE(judge_contract_fault("gradient", "Contract.1", "", {contract({})}).found);
  const auto verdict =
      judge_contract_fault("gradient", "Contract.1", "", {contract({check("gradient", 1)})});
  ASSERT_TRUE(verdict.found);
  EXPECT_EQ(verdict.found->in, "Contract.1");
  EXPECT_EQ(verdict.found->after_steps, 1);
}

}  // namespace
}  // namespace equigrad::conformance
