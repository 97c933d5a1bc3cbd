// Verdicts of contract cases whose ranks did not all answer, and of those whose answers differ.
#include "conformance/verdict/contract_judge.hpp"

#include <gmock/gmock.h>

#include "conformance/verdict/lane_tally.hpp"

namespace equigrad::conformance {
namespace {

using ranks::Outcome;
using reports::Verdict;
using ::testing::HasSubstr;

Outcome error(const std::string& text, bool lost_peer = false) {
  Outcome outcome{.kind = Outcome::Kind::Error, .answer = nullptr, .text = text, .doing = "step 1"};
  outcome.lost_peer = lost_peer;
  return outcome;
}
const Outcome kStopped{
    .kind = Outcome::Kind::Stopped, .answer = nullptr, .text = "stopped", .doing = "step 1"};
const Outcome kDied{
    .kind = Outcome::Kind::Died, .answer = nullptr, .text = "signal 11", .doing = "step 1"};
const Outcome kLost = error(
    "[rank 0/2] [comm.all_gather] expected all 2 ranks to take part in time, got: Connection "
    "closed",
    true);
const Outcome kThrown = error("[engine.step] expected a backward");

Verdict verdict_of(const std::vector<Outcome>& outcomes) {
  reports::Case record;
  judge_contract(record, outcomes);
  EXPECT_NE(record.message, "");
  return record.verdict;
}

TEST(ContractJudge, ALostConnectionIsACrashAndWhatTheEngineThrowsAFailure) {
  EXPECT_EQ(verdict_of({kThrown, kStopped}), Verdict::Failed);
  EXPECT_EQ(verdict_of({kLost, kThrown}), Verdict::Failed);
  EXPECT_EQ(verdict_of({kLost, kStopped}), Verdict::Crashed);
  EXPECT_EQ(verdict_of({error("std::bad_alloc"), kStopped}), Verdict::Crashed);
  EXPECT_EQ(verdict_of({kLost, kDied}), Verdict::Crashed);
  EXPECT_EQ(verdict_of({kStopped, {Outcome::Kind::TimedOut, nullptr, "late", "step 1"}}),
            Verdict::TimedOut);
}

TEST(ContractJudge, OneElementOfOneRankThatDiffersFailsTheCase) {
  const auto answer = [](int64_t differing) {
    return Outcome{.kind = Outcome::Kind::Ok,
                   .answer = {{"exact",
                               {{"compared", 10},
                                {"differing", differing},
                                {"first", differing > 0 ? "step 1 gradient w" : ""},
                                {"worst", nullptr}}}},
                   .text = "",
                   .doing = ""};
  };
  reports::Case record;
  judge_contract(record, {answer(0), answer(0)});
  EXPECT_EQ(record.verdict, Verdict::Equal);
  EXPECT_EQ(record.lanes.at(0).compared, 20);
  judge_contract(record, {answer(0), answer(1)});
  EXPECT_EQ(record.verdict, Verdict::Failed);
  EXPECT_THAT(record.message, HasSubstr("exact, rank 1 first: step 1 gradient w"));
}

Outcome differing(int64_t order, const nlohmann::json& more) {
  Outcome outcome{.kind = Outcome::Kind::Ok,
                  .answer = {{"exact",
                              {{"compared", 10},
                               {"differing", 1},
                               {"first", "step 2 something"},
                               {"worst", nullptr}}},
                             {"difference", {{"order", order}, {"step", 1}}}},
                  .text = "",
                  .doing = ""};
  outcome.answer["difference"].update(more);
  return outcome;
}

// The earliest of all ranks: call, parameter, first element, and what explains it.
TEST(ContractJudge, TheFirstLineNamesTheCallAndTheParameter) {
  const auto elements = differing(7, {{"call", "on_step()"},
                                      {"parameter", "head.bias"},
                                      {"what", "gradient"},
                                      {"index", 3},
                                      {"got", "0.5"},
                                      {"want", "1"},
                                      {"ulp", "8388608"},
                                      {"text", "    looks like  averaged twice\n"}});
  const auto refused = differing(4, {{"call", "access().set_full_master(\"scalar\", value)"},
                                     {"parameter", "scalar"},
                                     {"what", "master"},
                                     {"finding", "does not hold: expected an error, got none"}});
  reports::Case record;
  judge_contract(record, {differing(9, {{"call", "step()"}}), elements});
  EXPECT_TRUE(record.message.starts_with(
      "  first   step 2, gradient of head.bias, element 3 on rank 1, by on_step(): got 0.5 want 1 "
      "(8388608 ulp)\n    looks like  averaged twice\n  exact, rank 0 first: "))
      << record.message;
  judge_contract(record, {refused, elements});
  EXPECT_TRUE(record.message.starts_with(
      "  first   step 2, scalar, after access().set_full_master(\"scalar\", value) on rank 0: does "
      "not hold: expected an error, got none\n  exact, rank 0 first: "))
      << record.message;
}

}  // namespace
}  // namespace equigrad::conformance
