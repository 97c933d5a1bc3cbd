// Every planted fault is seen, at every stage where it can act, and every way for a case to go
// wrong ends as a verdict.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <memory>

#include "conformance/campaigns/runner.hpp"
#include "conformance/cases/recipe.hpp"
#include "conformance/faults/planted_faults.hpp"
#include "conformance/verdict/judge.hpp"
#include "conformance/verdict/lane_tally.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using reports::Verdict;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

CaseSpec small_case(int stage, Style style = Style::LossBackward) {
  return {.stage = stage,
          .precision = Precision::Fp32,
          .style = style,
          .world = 2,
          .accumulation = 3,
          .clip = Clip::Off,
          .optimizer = Rule::Sgd,
          .model = "irregular"};
}

RunOptions options(std::vector<CaseSpec> cases, const std::string& fault = "") {
  RunOptions chosen;
  chosen.cases = std::move(cases);
  chosen.data = find_data("", false);
  chosen.quiet = true;
  chosen.slots = 2;
  chosen.fault = fault;
  chosen.replay_prefix = "equigrad run";
  return chosen;
}

const reports::Lane& lane(const reports::Case& record, const std::string& name) {
  static const reports::Lane none;
  for (const auto& one : record.lanes)
    if (one.name == name) return one;
  ADD_FAILURE() << record.id << " has no lane " << name << ": " << record.message;
  return none;
}

std::vector<CaseSpec> all_stages() {
  return {small_case(0), small_case(1), small_case(2), small_case(3)};
}

TEST(Detection, WithoutAFaultEveryStageIsEqualAndEveryPlantedFaultIsCaught) {
  const auto run = run_matrix(options(all_stages()));
  ASSERT_EQ(run.cases.size(), 4u);
  for (const auto& record : run.cases) {
    EXPECT_EQ(record.verdict, Verdict::Equal) << record.id << "\n" << record.message;
    EXPECT_GT(lane(record, "exact").compared, 0);
    EXPECT_GT(lane(record, "bounded").compared, 0);
    EXPECT_GT(lane(record, "cross").compared, 0);
  }
  EXPECT_EQ(run.self_checks.size(), faults::planted_faults().size());
  for (const auto& check : run.self_checks) EXPECT_TRUE(check.caught) << check.fault;
  EXPECT_EQ(reports::exit_code(run), 0);
}

// The fault's cases, all of which must fail, and whether the text names the cause.
void expect_seen(const std::string& fault, std::vector<CaseSpec> cases, const std::string& cause) {
  const auto run = run_matrix(options(std::move(cases), fault));
  for (const auto& record : run.cases) {
    EXPECT_EQ(record.verdict, Verdict::Failed) << fault << " in " << record.id;
    EXPECT_GT(lane(record, "exact").differing, 0) << fault << " in " << record.id;
    EXPECT_THAT(record.message, HasSubstr(cause)) << record.id;
    EXPECT_EQ(record.replay, "equigrad run " + record.id + " --seed 1");
  }
  EXPECT_EQ(reports::exit_code(run), 1);
}

TEST(Detection, ADroppedMicroBatchIsSeenAndNamed) {
  expect_seen("micro_batch_dropped", {small_case(2), small_case(3)},
              "micro-batch 2 of rank 1 is missing");
}

TEST(Detection, AveragingTwiceIsSeenAndNamed) {
  expect_seen("averaged_twice", all_stages(), "averaged twice");
}

TEST(Detection, AShardOffByOneIsSeen) {
  expect_seen("shard_off_by_one", all_stages(), "shifted by");
}

TEST(Detection, ALostWordIsSeen) { expect_seen("word_lost", all_stages(), "step 2"); }

TEST(Detection, AStaleGatherIsSeen) {
  expect_seen("gather_stale", {small_case(1), small_case(2)}, "parameter");
}

TEST(Detection, AFaultIsSeenInBf16WithClippingAndAdamWToo) {
  CaseSpec spec{.stage = 2,
                .precision = Precision::Bf16,
                .style = Style::TensorBackward,
                .world = 3,
                .accumulation = 4,
                .clip = Clip::Above,
                .optimizer = Rule::AdamW,
                .model = "gpt"};
  expect_seen("averaged_twice", {spec}, "step 1");
  expect_seen("word_lost", {spec}, "step 2");
}

// Three micro-batches add up in fp32, so that the fault itself does not overflow.
CaseSpec scaled_case(int stage, int accumulation) {
  return {.stage = stage,
          .precision = Precision::Fp16,
          .style = Style::ScaleBackward,
          .world = 2,
          .accumulation = accumulation,
          .clip = Clip::Off,
          .optimizer = Rule::Sgd,
          .model = "irregular"};
}

TEST(Detection, AnAverageThatIsNotDividedByTheScaleIsSeen) {
  expect_seen("scale_not_divided", {scaled_case(0, 3), scaled_case(1, 3)}, "step 1");
}

TEST(Detection, DividingByTheScaleThatGrewAfterTheStepIsSeen) {
  expect_seen("updated_scale",
              {scaled_case(0, 3), scaled_case(1, 3), scaled_case(2, 3), scaled_case(3, 3)},
              "divided by the loss scale of the next step or averaged twice over 2 ranks, though");
}

// Every side is clipped by its own norm; no clipping factor is blamed for what clipping undoes.
TEST(Detection, AWrongGradientThatIsClippedIsNoWrongClipping) {
  CaseSpec spec = scaled_case(3, 3);
  spec.precision = Precision::Fp32;
  spec.world = 1;
  spec.clip = Clip::Above;
  expect_seen("updated_scale", {spec}, "-> halved");
}

TEST(Detection, AnOverflowThatNoRankSeesIsSeen) {
  ASSERT_EQ(overflowing_batch(scaled_case(0, 1)), (OverflowingBatch{2, 1, 0}));
  expect_seen("overflow_unseen", {scaled_case(0, 1)}, "step 3");
}

// A precision that initialize() takes where it is not defined, and a refusal of something else.
TEST(Detection, ARefusalThatDoesNotComeFails) {
  CaseSpec spec = small_case(0);
  spec.precision = Precision::Offload;
  auto right = options({spec}), wrong = options({spec});
  wrong.serve = [](const json& request, ranks::RankContext& context) {
    if (request.value("do", "") == "case" && !request.contains("fault") &&
        parse_id(request.at("id")).is_refused()) {
      LaneTally exact;
      exact.add_finding("initialize", "was taken");
      return json{{"exact", exact.to_json()}};
    }
    return serve(request, context);
  };
  const auto held = run_matrix(right), taken = run_matrix(wrong);
  EXPECT_EQ(held.cases[0].verdict, Verdict::Equal) << held.cases[0].message;
  EXPECT_EQ(taken.cases[0].verdict, Verdict::Failed);
  EXPECT_THAT(taken.cases[0].message, HasSubstr("was taken"));
}

TEST(Detection, ARunWhoseFaultsAreNotCaughtIsVoid) {
  auto blind = options({small_case(2)});
  blind.serve = [](const json& request, ranks::RankContext& context) {
    json without = request;
    without.erase("fault");
    return serve(without, context);
  };
  const auto run = run_matrix(blind);
  EXPECT_EQ(run.cases[0].verdict, Verdict::Equal);
  for (const auto& check : run.self_checks) EXPECT_FALSE(check.caught) << check.fault;
  EXPECT_EQ(reports::outcome(run), reports::Outcome::Void);
  EXPECT_EQ(reports::exit_code(run), 1);
}

// A fault in every case, planted or not: the engine is wrong, and no check of it is.
TEST(Detection, AnEngineThatIsWrongByItselfFailsTheRunAndItsCasesAreRun) {
  auto broken = options({small_case(2), small_case(3)});
  broken.serve = [](const json& request, ranks::RankContext& context) {
    json with = request;
    if (request.value("do", "") == "case" && !request.contains("fault"))
      with["fault"] = "averaged_twice";
    return serve(with, context);
  };
  const auto run = run_matrix(broken);
  EXPECT_THAT(run.engine_failure, AllOf(StartsWith(faults::planted_faults()[0].in + ": step 1, "),
                                        HasSubstr("gradient")));
  EXPECT_TRUE(run.self_checks.empty()) << "nothing is planted where the engine fails already";
  for (const auto& record : run.cases) EXPECT_EQ(record.verdict, Verdict::Failed);
  EXPECT_EQ(reports::outcome(run), reports::Outcome::Failed);
  EXPECT_EQ(reports::exit_code(run), 1);
}

bool is_case_of_stage(const json& request, int stage) {
  return request.value("do", "") == "case" && !request.contains("fault") &&
         request.at("id") == small_case(stage).id();
}

TEST(Detection, ARankThatDiesIsAResultAndTheOtherCasesGoOn) {
  auto deadly = options(all_stages());
  deadly.serve = [](const json& request, ranks::RankContext& context) {
    // SIGABRT, because the address sanitizer makes an exit code of SIGSEGV.
    if (is_case_of_stage(request, 1) && context.rank() == 1) raise(SIGABRT);
    return serve(request, context);
  };
  const auto run = run_matrix(deadly);
  EXPECT_EQ(run.cases[1].verdict, Verdict::Crashed);
  EXPECT_THAT(run.cases[1].message, HasSubstr("rank 1/2 died: signal 6"));
  for (const int stage : {0, 2, 3})
    EXPECT_EQ(run.cases[static_cast<std::size_t>(stage)].verdict, Verdict::Equal);
  EXPECT_EQ(reports::exit_code(run), 3);
}

TEST(Detection, ARankThatHangsIsAResultWithWhatItWasDoing) {
  auto stuck = options({small_case(0), small_case(3)});
  stuck.timeout_scale = 0.15;
  stuck.serve = [](const json& request, ranks::RankContext& context) {
    if (is_case_of_stage(request, 3) && context.rank() == 0) {
      context.note("step 1 micro-batch 2 backward");
      for (;;) pause();
    }
    return serve(request, context);
  };
  const auto run = run_matrix(stuck);
  EXPECT_EQ(run.cases[0].verdict, Verdict::Equal) << run.cases[0].message;
  EXPECT_EQ(run.cases[1].verdict, Verdict::TimedOut);
  EXPECT_THAT(run.cases[1].message, HasSubstr("step 1 micro-batch 2 backward"));
  EXPECT_EQ(reports::exit_code(run), 3);
}

TEST(Detection, APeerThatCannotBeReachedIsTheMachinesFault) {
  auto apart = options({small_case(0), small_case(1)});
  std::shared_ptr<comm::Communicator> group;  // a rank's own; open until the pool ends
  apart.serve = [&group](const json& request, ranks::RankContext& context) {
    if (is_case_of_stage(request, 1)) {  // rank 0 alone, in a collective that rank 1 never joins
      group = comm::connect_gloo(context.rank(), 2, context.directory() + "/apart",
                                 std::chrono::milliseconds(6'000));
      if (context.rank() == 0) group->all_reduce_sum(at::ones({1}))->wait();
    }
    return serve(request, context);
  };
  const auto run = run_matrix(apart);
  EXPECT_EQ(run.cases[0].verdict, Verdict::Equal) << run.cases[0].message;
  EXPECT_EQ(run.cases[1].verdict, Verdict::Crashed) << run.cases[1].message;
  EXPECT_THAT(run.cases[1].message, HasSubstr("[comm.all_reduce_sum]"));
  EXPECT_EQ(reports::exit_code(run), 3);
}

TEST(Detection, ARankThatDiesBeforeTheFaultsAreJudgedIsNoVoidRun) {
  for (const std::string when : {"twin", "case", "fault"}) {
    auto deadly = options({small_case(2)});
    deadly.serve = [when](const json& request, ranks::RankContext& context) {
      const bool now = when == "fault" ? request.contains("fault") : request.at("do") == when;
      if (now && context.rank() + 1 == context.world_size()) raise(SIGKILL);
      return serve(request, context);
    };
    const auto run = run_matrix(deadly);
    EXPECT_THAT(run.failure, AllOf(HasSubstr("died: signal 9"), HasSubstr("Nothing was compared")));
    EXPECT_EQ(reports::outcome(run), reports::Outcome::Broken) << when;
    EXPECT_EQ(reports::exit_code(run), 3);
    ASSERT_EQ(run.cases.size(), 1u);
    EXPECT_EQ(run.cases[0].verdict, Verdict::NotRun);
  }
}

TEST(Detection, AnExceptionInTheEngineFailsTheCaseWithItsText) {
  auto throwing = options({small_case(2)});
  throwing.serve = [](const json& request, ranks::RankContext& context) -> json {
    if (is_case_of_stage(request, 2)) throw std::runtime_error("[engine.step] expected calm");
    return serve(request, context);
  };
  const auto run = run_matrix(throwing);
  EXPECT_EQ(run.cases[0].verdict, Verdict::Failed);
  EXPECT_THAT(run.cases[0].message, HasSubstr("[engine.step] expected calm"));
}

TEST(Detection, AStyleThatDisagreesWithTheOthersFailsTheCrossLane) {
  auto odd = options({small_case(2, Style::EngineBackward), small_case(2, Style::ScaleBackward),
                      small_case(2, Style::LossBackward), small_case(3), small_case(0)});
  odd.serve = [](const json& request, ranks::RankContext& context) {
    auto answer = serve(request, context);
    if (request.value("do", "") == "case" && !request.contains("fault") &&
        parse_id(request.at("id")).style == Style::ScaleBackward)
      answer["digest"] = answer["digest"].get<uint64_t>() + 1;
    return answer;
  };
  const auto run = run_matrix(odd);
  EXPECT_EQ(run.cases[1].verdict, Verdict::Failed);
  EXPECT_THAT(run.cases[1].message, HasSubstr(run.cases[0].id));
  for (const std::size_t fine : {0u, 2u, 3u, 4u})
    EXPECT_EQ(run.cases[fine].verdict, Verdict::Equal);
  EXPECT_EQ(run.cases[4].lanes.size(), 2u) << "stage 0 has no partner here, so no cross lane";
}

TEST(Detection, AComparisonWithNothingInItFails) {
  for (const std::string kind : {"bound", "parameter"}) {
    auto empty = options({small_case(2)});
    empty.serve = [kind](const json& request, ranks::RankContext& context) {
      auto answer = serve(request, context);
      if (is_case_of_stage(request, 2)) answer["compared"].erase(kind);
      return answer;
    };
    const auto run = run_matrix(empty);
    EXPECT_EQ(run.cases[0].verdict, Verdict::Failed) << kind;
    EXPECT_THAT(run.cases[0].message, HasSubstr("nothing was compared of the kind " + kind));
  }
}

json cover(const std::vector<std::pair<int, int>>& ranges, int numel) {
  json answers = json::array();
  for (const auto& [begin, end] : ranges) answers.push_back({{"w", begin, end, numel}});
  return answers;
}

TEST(Detection, ShardsMustCoverEveryElementOnce) {
  EXPECT_EQ(cover_problem(2, cover({{0, 3}, {3, 5}}, 5)), "");
  EXPECT_EQ(cover_problem(2, cover({{0, 1}, {1, 1}, {1, 1}}, 1)), "");
  EXPECT_EQ(cover_problem(0, cover({{0, 5}, {0, 5}}, 5)), "");
  EXPECT_NE(cover_problem(2, cover({{0, 3}, {2, 5}}, 5)), "");
  EXPECT_NE(cover_problem(2, cover({{0, 2}, {3, 5}}, 5)), "");
  EXPECT_NE(cover_problem(2, cover({{0, 3}, {3, 4}}, 5)), "");
  EXPECT_NE(cover_problem(0, cover({{0, 5}, {0, 4}}, 5)), "");
  EXPECT_NE(cover_problem(2, {{{"w", 0, 5, 5}}, json::array()}), "");
  EXPECT_NE(cover_problem(2, {}), "");
}

}  // namespace
}  // namespace equigrad::conformance
