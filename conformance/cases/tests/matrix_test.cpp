#include "conformance/cases/matrix.hpp"

#include <gtest/gtest.h>

#include <set>

#include "conformance/cases/unsplit_model.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

std::set<std::string> ids(const std::vector<CaseSpec>& cases) {
  std::set<std::string> names;
  for (const auto& spec : cases) names.insert(spec.id());
  return names;
}

// "precision=bf16 & model=conv" for every two dimensions of every case.
std::set<std::string> pairs(const std::vector<CaseSpec>& cases) {
  std::set<std::string> found;
  for (const auto& spec : cases) {
    const auto dimensions = spec.dimensions();
    for (auto a = dimensions.begin(); a != dimensions.end(); ++a)
      for (auto b = std::next(a); b != dimensions.end(); ++b)
        found.insert(a->first + "=" + a->second + " & " + b->first + "=" + b->second);
  }
  return found;
}

TEST(Matrix, TheFullMatrixHasEveryCombinationOnce) {
  const auto cases = full_matrix();
  const auto of_split = 3u * 21 * 4 * 3 * 4 *
                        2;  // stages, of 2 parts on 2 and 4 ranks, of 4 on 4, twice, and dropouts
  EXPECT_EQ(cases.size(), 4u * 21 * 4 * 4 * 3 * 4 * 2 * 4 + 6 * of_split + 3 * of_split / 3 * 4);
  EXPECT_EQ(ids(cases).size(), cases.size());
}

TEST(Matrix, TheDefaultMatrixIsAPartOfTheFullOne) {
  const auto cases = default_matrix();
  EXPECT_EQ(cases.size(), 3772u);
  const auto all = ids(full_matrix());
  const auto names = ids(cases);
  EXPECT_EQ(names.size(), cases.size());
  for (const auto& name : names) EXPECT_EQ(all.count(name), 1u) << name;
}

TEST(Matrix, EveryPrecisionIsThereAtEveryStageInEveryStyleWithAllRanksAndMicroBatches) {
  std::set<std::string> ranks, micro_batches, both;
  for (const auto& spec : default_matrix()) {
    const auto mode = word(spec.precision) + std::to_string(spec.stage) + word(spec.style);
    const auto world = std::to_string(spec.world), batches = std::to_string(spec.accumulation);
    ranks.insert(mode + world);
    micro_batches.insert(mode + batches);
    if (spec.world < 4) both.insert(mode + world + batches);
  }
  EXPECT_EQ(ranks.size(), 21u * 4 * 4 * 4);
  EXPECT_EQ(micro_batches.size(), 21u * 4 * 4 * 3);
  EXPECT_EQ(both.size(), 21u * 4 * 4 * 3 * 3);
}

TEST(Matrix, SplitModelsAreThereInEveryPrecisionAndInEveryStyleAtTheirStages) {
  std::set<std::string> precisions, cells, data;
  for (const auto& spec : default_matrix()) {
    EXPECT_TRUE(is_possible(spec)) << spec.id();
    EXPECT_EQ(spec.data() * spec.sequence() * spec.tensor(), spec.world);
    if (spec.tensor() * spec.sequence() == 1) continue;
    precisions.insert(spec.model + word(spec.precision));
    cells.insert(spec.model + std::to_string(spec.stage) + word(spec.style));
    data.insert(spec.model + std::to_string(spec.data()));
    EXPECT_FALSE(spec.is_refused()) << spec.id();
  }
  EXPECT_EQ(precisions.size(), 6u * 21);
  EXPECT_EQ(cells.size(), 4u * 3 * 4 + 2u * 4 * 4);
  EXPECT_EQ(data,
            (std::set<std::string>{"dropout21", "dropout22", "gated21", "gated22", "gated2x21",
                                   "gated41", "ulysses21", "ulysses22", "ulysses41"}));
}

TEST(Matrix, EverySplitModelButDropoutsIsComparedWithTheUnsplitOne) {
  std::map<std::string, std::string> names;
  for (const auto& spec : default_matrix()) names[spec.model] = unsplit_name(spec);
  EXPECT_EQ(names, (std::map<std::string, std::string>{{"conv", ""},
                                                       {"dropout2", ""},
                                                       {"gated2", "gated"},
                                                       {"gated2x2", "gated"},
                                                       {"gated4", "gated"},
                                                       {"gpt", ""},
                                                       {"irregular", ""},
                                                       {"ulysses2", "ulysses"},
                                                       {"ulysses4", "ulysses"},
                                                       {"vision", ""}}));
}

TEST(Matrix, AnIdOfASplitModelThatIsNotPossibleIsAnError) {
  const std::string id = "Required.grad.zero2.fp32.w2.accumulation1.clip-off.sgd.";
  EXPECT_EQ(parse_id(id + "gated2.loss_backward").data(), 1);
  EXPECT_EQ(parse_id(id + "gated.loss_backward").data(), 2);
  EXPECT_THROW(parse_id(id + "gated4.loss_backward"), Error);
  EXPECT_THROW(parse_id(id + "gated2x2.loss_backward"), Error);
  EXPECT_EQ(parse_id(id + "ulysses2.loss_backward").data(), 1);
  EXPECT_THROW(parse_id(id + "ulysses4.loss_backward"), Error);
  EXPECT_EQ(parse_id("Required.grad.zero3" + id.substr(19) + "ulysses2.loss_backward").zero(), 2);
  EXPECT_THROW(parse_id("Required.grad.zero3" + id.substr(19) + "gated2.loss_backward"), Error);
}

TEST(Matrix, OnlyStage0RefusesAndOnlyWhatIsNotDefinedThere) {
  std::set<std::string> refused;
  for (const auto& spec : default_matrix()) {
    EXPECT_TRUE(spec.stage == 0 || !spec.is_refused()) << spec.id();
    if (spec.is_refused()) refused.insert(word(spec.precision));
  }
  EXPECT_EQ(refused, (std::set<std::string>{"autocast-bf16-masters-states", "bf16-masters",
                                            "bf16-masters-states", "offload"}));
}

TEST(Matrix, TheWordsOfPrecisionsAreDistinct) {
  std::set<std::string> words;
  for (const auto precision : precisions()) words.insert(word(precision));
  EXPECT_EQ(words.size(), precisions().size());
}

// What runs have been compared by since before there were other precisions.
TEST(Matrix, TheOldestIdsAreStillThere) {
  const auto names = ids(default_matrix());
  for (const char* id :
       {"Required.grad.zero3.bf16.w4.accumulation3.clip-below.adamw.gpt.tensor_backward",
        "Required.grad.zero0.fp32.w1.accumulation1.clip-off.sgd.gpt.engine_backward",
        "Required.grad.zero2.fp32.w1.accumulation1.clip-off.adamw.conv.loss_backward"})
    EXPECT_EQ(names.count(id), 1u) << id;
}

TEST(Matrix, TheDefaultMatrixHasEveryPairOfValues) {
  EXPECT_EQ(pairs(default_matrix()), pairs(full_matrix()));
}

TEST(Matrix, TheDefaultMatrixHasEveryTripleOfAccumulationClipAndOptimizer) {
  std::set<std::string> triples;
  for (const auto& spec : default_matrix())
    triples.insert(std::to_string(spec.accumulation) + word(spec.clip) + word(spec.optimizer));
  EXPECT_EQ(triples.size(), 24u);
}

TEST(Matrix, AnIdIsReadBackAsItsCase) {
  for (const auto& spec : full_matrix()) ASSERT_EQ(parse_id(spec.id()), spec) << spec.id();
}

TEST(Matrix, TheIdOfACaseIsStable) {
  const CaseSpec spec{.stage = 3,
                      .precision = Precision::Bf16,
                      .style = Style::TensorBackward,
                      .world = 4,
                      .accumulation = 3,
                      .clip = Clip::Above,
                      .optimizer = Rule::AdamW,
                      .model = "gpt"};
  EXPECT_EQ(spec.id(),
            "Required.grad.zero3.bf16.w4.accumulation3.clip-above.adamw.gpt.tensor_backward");
}

TEST(Matrix, AnIdThatIsNoneIsAnErrorThatNamesThePart) {
  EXPECT_THROW(parse_id("zero3"), Error);
  try {
    parse_id("Required.grad.zero3.fp61.w4.accumulation3.clip-above.adamw.gpt.tensor_backward");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("fp32, bf16"), std::string::npos) << error.what();
  }
}

TEST(Matrix, FiltersAreSubstringsOrGlobsAndSeveralMeanOneOf) {
  const auto cases = default_matrix();
  EXPECT_EQ(select(cases, {}).size(), 3772u);
  EXPECT_EQ(select(cases, {{"zero3"}, {}, {}, {}}).size(), 901u);
  EXPECT_EQ(select(cases, {{"zero3", "zero0"}, {}, {}, {}}).size(), 1843u);
  EXPECT_EQ(select(cases, {{"zero3.fp32.*.conv.t"}, {}, {}, {}}).size(), 4u);
  EXPECT_EQ(select(cases, {{"zero?.fp16."}, {}, {}, {}}).size(), 172u);
  EXPECT_EQ(select(cases, {{cases[7].id()}, {}, {}, {}}).size(), 1u);
  EXPECT_TRUE(select(cases, {{"zero4"}, {}, {}, {}}).empty());
}

TEST(Matrix, OptionsNarrowWhatFiltersSelect) {
  const auto cases = default_matrix();
  EXPECT_EQ(select(cases, {{}, {2, 3}, {}, {}}).size(), 1867u);
  EXPECT_EQ(select(cases, {{}, {2, 3}, {"fp16"}, {}}).size(), 84u);
  EXPECT_EQ(select(cases, {{}, {2, 3}, {"fp16", "amp-o1"}, {}}).size(), 170u);
  EXPECT_EQ(select(cases, {{}, {2, 3}, {"fp16"}, {4}}).size(), 12u);
  EXPECT_EQ(select(cases, {{"accumulation3"}, {2, 3}, {"fp16"}, {4}}).size(), 9u);
}

TEST(Matrix, AFilterIsAGlobOfAPart) {
  const auto matches = [](const std::string& filter, const std::string& id) {
    return selects({{filter}, {}, {}, {}}, 0, "", 0, id);
  };
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a*c", "0abbc1"));
  EXPECT_TRUE(matches("a*b*c", "a-b-b-c"));
  EXPECT_TRUE(matches("zero[13].", "zero3."));
  EXPECT_FALSE(matches("zero[13].", "zero2."));
  EXPECT_FALSE(matches("a*c", "abb"));
  EXPECT_FALSE(matches("?", ""));
  EXPECT_FALSE(matches("a\\*", "a*")) << "a backslash is itself";
}

TEST(Matrix, AFilterThatSelectsNothingGetsNearMatches) {
  const auto near = near_matches(default_matrix(), "zero3.bf61", 3);
  ASSERT_EQ(near.size(), 3u);
  for (const auto& id : near) EXPECT_NE(id.find("zero3.bf16"), std::string::npos) << id;
}

// Rows for a beginning that two ids share are made once: the order of the ids changes nothing.
TEST(Matrix, NearMatchesAreThoseOfTheFewestEditsWhateverIsBesideThem) {
  const std::vector<std::string> ids = {"abcd", "abxd",   "b", "abcdefgh",
                                        "abxy", "zzabcz", "",  "abcc"};
  EXPECT_EQ(
      near_matches(ids, "abcdef", 8),
      (std::vector<std::string>{"abcdefgh", "abcd", "abcc", "abxd", "zzabcz", "abxy", "b", ""}));
  for (const auto& id : ids)
    EXPECT_EQ(near_matches({id, "zzzz"}, "abcdef", 1), std::vector<std::string>{id}) << id;
}

}  // namespace
}  // namespace equigrad::conformance
