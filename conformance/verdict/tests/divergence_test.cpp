// The first place is the earliest in the order of the run, over all ranks, whatever came in when.
#include "conformance/verdict/divergence.hpp"

#include <gmock/gmock.h>

namespace equigrad::conformance {
namespace {

Place gradient(int step, const std::string& name, int64_t position) {
  Place place{Phase::Gradient, step, -1, -1, "gradient", name};
  place.position = position;
  place.begin = 2;
  place.end = 5;
  return place;
}

Place of(Phase phase, int step, const std::string& what, const std::string& name = "") {
  Place place{phase, step, -1, -1, what, name};
  if (!name.empty()) place.end = 4;
  return place;
}

std::string line(const std::vector<Trail>& trails) {
  std::vector<nlohmann::json> answers;
  for (const auto& trail : trails) answers.push_back(trail.to_json());
  const auto first = first_place(answers);
  return first ? line_of(*first) : "";
}

TEST(Place, ATrailKeepsTheEarliestPhaseOnly) {
  Trail trail;
  trail.add(of(Phase::Update, 0, "master", "a"));
  trail.add(of(Phase::Parameter, 0, "parameter", "a"));
  EXPECT_EQ(trail.places().size(), 1u);
  trail.add(gradient(0, "a", 0));
  trail.add(gradient(0, "b", -1));
  trail.add(gradient(1, "c", -2));
  ASSERT_EQ(trail.places().size(), 2u);
  EXPECT_EQ(trail.first().parameter, "b") << "the later one in the table is reduced first";
  trail.add(gradient(0, "d", -3));
  trail.tell("a", 1, 0);
  EXPECT_EQ(trail.first().parameter, "d");
  trail.tell("b", 1, 0);
  EXPECT_EQ(trail.first().parameter, "b") << "most micro-batches are known, this one's too";
}

TEST(Place, ThePhasesOfAStepFollowEachOther) {
  const std::vector<Phase> phases = {Phase::Start, Phase::Forward, Phase::Gradient,  Phase::Norm,
                                     Phase::Clip,  Phase::Update,  Phase::Parameter, Phase::Scale};
  const std::vector<std::string> words = {"scale", "forward", "gradient",  "norm",
                                          "clip",  "update",  "parameter", "scale"};
  for (std::size_t i = 0; i < phases.size(); ++i) {
    EXPECT_EQ(word(phases[i]), words[i]);
    Trail early, late;
    early.add(of(phases[i], 1, "this"));
    late.add(of(i + 1 < phases.size() ? phases[i + 1] : phases[0], i + 1 < phases.size() ? 1 : 2,
                "that"));
    EXPECT_EQ(line({late, early}), "  first   step 2, this on rank 1\n");
  }
  Trail skip;
  skip.add(of(Phase::Skip, 0, "boundary"));
  EXPECT_EQ(to_json(*first_place({skip.to_json()})).at("phase"), "scale");
}

TEST(Place, AForwardIsPlacedByItsMicroBatch) {
  Trail first, second;
  first.add({Phase::Forward, 0, 2, -1, "loss", ""});
  second.add({Phase::Forward, 0, 1, -1, "loss", ""});
  EXPECT_EQ(line({first, second}), "  first   step 1, loss on rank 1, micro-batch 2\n");
}

TEST(Place, TheLineNamesTheFirstOfSeveralParametersOverAllRanks) {
  Trail one, other;
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
  EXPECT_EQ(line({Trail(), Trail()}), "");
}

TEST(Place, ProgramsReadTheSame) {
  Trail trail;
  auto place = gradient(1, "a", 0);
  place.bucket = 3;
  trail.add(place);
  trail.tell("a", 0, 1);
  const auto json = to_json(*first_place({Trail().to_json(), trail.to_json()}));
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

TEST(Place, ARankThatDidNotAnswerIsPlacedByItsNote) {
  const auto first = place_of_note(1, "step 2 micro-batch 3 engine_backward");
  ASSERT_TRUE(first);
  EXPECT_EQ(line_of(*first), "  first   step 2, no answer on rank 1, micro-batch 3\n");
  EXPECT_EQ(to_json(*first).at("phase"), "");
  EXPECT_FALSE(place_of_note(0, ""));
  const auto start = place_of_note(1, "initialize");
  ASSERT_TRUE(start);
  EXPECT_EQ(line_of(*start), "  first   no answer to initialize on rank 1\n");
  EXPECT_EQ(to_json(*start).at("phase"), "");
}

}  // namespace
}  // namespace equigrad::conformance
