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

}  // namespace
}  // namespace equigrad::conformance
