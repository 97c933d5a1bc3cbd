// The way in which a case failed: the same word for a large case and a small one.
#include "conformance/verdict/failure_kind.hpp"

#include <gtest/gtest.h>

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::Outcome;

Outcome answered(const json& exact, const json& bounded = json::array()) {
  Outcome outcome;
  outcome.answer = {{"exact", {{"checks", exact}}}, {"bounded", {{"checks", bounded}}}};
  return outcome;
}

json check(const char* kind, int step) { return {{"kind", kind}, {"step", step}}; }

Outcome ended(Outcome::Kind kind, const std::string& text, bool lost_peer = false) {
  Outcome outcome;
  outcome.kind = kind;
  outcome.text = text;
  outcome.lost_peer = lost_peer;
  return outcome;
}

std::string kind_of(const std::vector<Outcome>& outcomes) {
  Judged judged;
  judged.record.verdict = reports::Verdict::Failed;
  return failure_kind(judged, outcomes);
}

TEST(FailureKind, IsTheKindComputedFirstInTheFirstStepOfAnyRank) {
  const auto empty = json::array();
  EXPECT_EQ(
      kind_of({answered(json::array({check("norm", 0), check("gradient", 0), check("loss", 1)}))}),
      "gradient");
  EXPECT_EQ(kind_of({answered(json::array({check("loss", 1)})),
                     answered(json::array({check("parameter", 0)}))}),
            "parameter");
  EXPECT_EQ(kind_of({answered(json::array({check("parameter", 0), check("exp_avg", 0)}))}),
            "exp_avg");
  EXPECT_EQ(kind_of({answered(empty, json::array({check("update", 0)}))}), "bounded update");
  EXPECT_EQ(kind_of({answered(empty)}), "checks");
}

TEST(FailureKind, IsThePlaceOfAnErrorAndTheWayOfADeath) {
  EXPECT_EQ(kind_of({ended(Outcome::Kind::Stopped, "stopped"),
                     ended(Outcome::Kind::Error, "[rank 1/2] [engine.step] expected calm.")}),
            "error [engine.step]");
  EXPECT_EQ(kind_of({ended(Outcome::Kind::Error, "[comm.all_gather] lost", true),
                     ended(Outcome::Kind::Error, "[window] expected a pass")}),
            "error [window]");
  EXPECT_EQ(kind_of({ended(Outcome::Kind::Error, "[window] expected a pass"),
                     ended(Outcome::Kind::Died, "signal 9 (Killed)\nlast words")}),
            "died: signal 9 (Killed)");
  EXPECT_EQ(kind_of({ended(Outcome::Kind::TimedOut, "no answer in time")}), "timed out");
}

TEST(FailureKind, IsEmptyOnlyForWhatPassed) {
  Judged judged;
  judged.record.verdict = reports::Verdict::Within;
  EXPECT_EQ(failure_kind(judged, {}), "");
}

TEST(FailureKind, ACauseIsReadFromTheMessage) {
  EXPECT_EQ(cause_in("    looks like  got = 0.50 x want on 12/12 -> averaged twice over world 2   "
                     "(residual 0.0 ulp)\n"),
            "averaged twice over world 2");
  EXPECT_EQ(without_numbers("micro-batch 12 of rank 1"), "micro-batch # of rank #");
  EXPECT_EQ(cause_in("    looks like  got -> one common factor (a scale?)   (residual"), "");
  EXPECT_EQ(cause_in("    looks like  nothing known\n  a -> b\n"), "");
  EXPECT_EQ(cause_in("a -> b"), "");
}

}  // namespace
}  // namespace equigrad::conformance
