// The first divergence is the earliest in the order of the run, over all ranks, whatever came in
// when.
#include "conformance/verdict/divergence.hpp"

#include <gmock/gmock.h>

namespace equigrad::conformance {
namespace {

Divergence gradient(int step, const std::string& name, int64_t position) {
  Divergence divergence{Phase::Gradient, step, -1, -1, "gradient", name};
  divergence.position = position;
  divergence.begin = 2;
  divergence.end = 5;
  return divergence;
}

Divergence of(Phase phase, int step, const std::string& what, const std::string& name = "") {
  Divergence divergence{phase, step, -1, -1, what, name};
  if (!name.empty()) divergence.end = 4;
  return divergence;
}

std::string line(const std::vector<Divergences>& of_ranks) {
  std::vector<nlohmann::json> answers;
  for (const auto& divergences : of_ranks) answers.push_back(divergences.to_json());
  const auto first = first_divergence(answers);
  return first ? line_of(*first) : "";
}

TEST(Divergences, KeepTheEarliestPhaseOnly) {
  Divergences divergences;
  divergences.add(of(Phase::Update, 0, "master", "a"));
  divergences.add(of(Phase::Parameter, 0, "parameter", "a"));
  EXPECT_EQ(divergences.all().size(), 1u);
  divergences.add(gradient(0, "a", 0));
  divergences.add(gradient(0, "b", -1));
  divergences.add(gradient(1, "c", -2));
  ASSERT_EQ(divergences.all().size(), 2u);
  EXPECT_EQ(divergences.first().parameter, "b") << "the later one in the table is reduced first";
  divergences.add(gradient(0, "d", -3));
  divergences.tell("a", 1, 0);
  EXPECT_EQ(divergences.first().parameter, "d");
  divergences.tell("b", 1, 0);
  EXPECT_EQ(divergences.first().parameter, "b") << "most micro-batches are known, this one's too";
}

TEST(Divergences, ThePhasesOfAStepFollowEachOther) {
  const std::vector<Phase> phases = {Phase::Start, Phase::Forward, Phase::Gradient,  Phase::Norm,
                                     Phase::Clip,  Phase::Update,  Phase::Parameter, Phase::Scale};
  const std::vector<std::string> words = {"scale", "forward", "gradient",  "norm",
                                          "clip",  "update",  "parameter", "scale"};
  for (std::size_t i = 0; i < phases.size(); ++i) {
    EXPECT_EQ(word(phases[i]), words[i]);
    Divergences early, late;
    early.add(of(phases[i], 1, "this"));
    late.add(of(i + 1 < phases.size() ? phases[i + 1] : phases[0], i + 1 < phases.size() ? 1 : 2,
                "that"));
    EXPECT_EQ(line({late, early}), "  first   step 2, this on rank 1\n");
  }
  Divergences skip;
  skip.add(of(Phase::Skip, 0, "boundary"));
  EXPECT_EQ(to_json(*first_divergence({skip.to_json()})).at("phase"), "scale");
}

TEST(Divergences, ThoseOfForwardsAreOrderedByMicroBatch) {
  Divergences first, second;
  first.add({Phase::Forward, 0, 2, -1, "loss", ""});
  second.add({Phase::Forward, 0, 1, -1, "loss", ""});
  EXPECT_EQ(line({first, second}), "  first   step 1, loss on rank 1, micro-batch 2\n");
}

TEST(Divergences, TheLineNamesTheFirstOfSeveralParametersOverAllRanks) {
  Divergences one, other;
  one.add(gradient(0, "a", 0));
  other.add(gradient(0, "b", -1));
  one.set_compared(2), other.set_compared(2);
  EXPECT_EQ(line({one}), "  first   step 1, gradient of a [2, 5) on rank 0\n");
  EXPECT_EQ(line({one, other}),
            "  first   step 1, all 2 gradients, the first b [2, 5) on rank 1\n");
  one.set_compared(7), other.set_compared(7);
  one.tell("a", 1, 0), other.tell("b", 1, 0);
  EXPECT_EQ(line({one, other}),
            "  first   step 1, 2 of 7 gradients, the first b [2, 5) on rank 1, micro-batch 2 of "
            "rank 0\n");
  EXPECT_EQ(line({Divergences(), Divergences()}), "");
}

TEST(Divergences, ProgramsReadTheSame) {
  Divergences divergences;
  auto divergence = gradient(1, "a", 0);
  divergence.bucket = 3;
  divergences.add(divergence);
  divergences.tell("a", 0, 1);
  const auto json = to_json(*first_divergence({Divergences().to_json(), divergences.to_json()}));
  EXPECT_EQ(json.at("phase"), "gradient");
  EXPECT_EQ(json.at("step"), 1);
  EXPECT_EQ(json.at("micro_batch"), 0);
  EXPECT_EQ(json.at("from_rank"), 1);
  EXPECT_EQ(json.at("rank"), 1);
  EXPECT_EQ(json.at("parameter"), "a");
  EXPECT_EQ(json.at("begin"), 2);
  EXPECT_EQ(json.at("end"), 5);
  EXPECT_EQ(json.at("bucket"), 3);
}

TEST(Divergences, OfARankThatDidNotAnswerIsThatOfItsNote) {
  const auto first = divergence_of_note(1, "step 2 micro-batch 3 engine_backward");
  ASSERT_TRUE(first);
  EXPECT_EQ(line_of(*first), "  first   step 2, no answer on rank 1, micro-batch 3\n");
  EXPECT_EQ(to_json(*first).at("phase"), "");
  EXPECT_FALSE(divergence_of_note(0, ""));
  const auto start = divergence_of_note(1, "initialize");
  ASSERT_TRUE(start);
  EXPECT_EQ(line_of(*start), "  first   no answer to initialize on rank 1\n");
  EXPECT_EQ(to_json(*start).at("phase"), "");
}

}  // namespace
}  // namespace equigrad::conformance
