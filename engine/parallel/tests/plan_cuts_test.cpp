// How packed weights are cut, shapes of the caller's, and the heads that no cut goes through.
#include "engine/parallel/plan_cuts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/parallel/tests/plan_models.hpp"

namespace equigrad::parallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kPacked = "transformer.h.0.attn.c_attn";

// A column of `out` x `in` by a spec with a shape, and a row that follows it.
Model shaped(std::int64_t out, std::int64_t in) {
  Model model;
  return model.linear("packed", out, in, true).linear("after", 8, 16);
}

TensorParallelConfig with_shape(const std::vector<ShapeEntry>& shape,
                                std::optional<std::int64_t> dimension = {}, std::int64_t size = 2,
                                LayerSpec::Type type = LayerSpec::Type::Column) {
  LayerSpec one = spec("packed", type);
  one.shape = shape;
  one.partition_dim = dimension;
  return by_specs({one, row("after")}, size);
}

Split cut(TensorParallelConfig config, const Model& model) {
  if (config.partition_config->layer_specs[0].type == LayerSpec::Type::Row)
    config.partition_config->layer_specs[1] = column("after");
  return *plan(config, model).modules.at("packed").weight;
}

TEST(Shapes, OfTheDocumentationAreCutSegmentBySegment) {
  EXPECT_EQ(cut(with_shape({{2, {}}, {-1, {}}}, 0), shaped(32, 8)),
            (Split{.dimension = 0, .segments = {16, 16}, .shape = {32, 8}}));
  EXPECT_EQ(cut(with_shape({{-1, {16, 4, 4}}, {-1, {}}}, 0, 4), shaped(24, 8)),
            (Split{.dimension = 0, .segments = {16, 4, 4}, .shape = {24, 8}}));
  EXPECT_EQ(cut(with_shape({{3, {}}, {-1, {}}}), shaped(24, 8)).segments, (Sizes{8, 8, 8}));
  EXPECT_EQ(cut(with_shape({{1, {}}, {-1, {}}}), shaped(24, 8)).segments, (Sizes{24}));
  EXPECT_EQ(cut(with_shape({{-1, {}}, {-1, {}}}), shaped(24, 8)).segments, (Sizes{24}));
}

TEST(Shapes, OfMoreDimensionsAreCutWithinEach) {
  // Three experts of 8 outputs: each is cut.
  EXPECT_EQ(cut(with_shape({{3, {}}, {-1, {}}, {6, {}}}, 1), shaped(24, 6)).segments,
            (Sizes{8, 8, 8}));
  // Gate and up of each of three experts.
  EXPECT_EQ(cut(with_shape({{3, {}}, {2, {}}, {6, {}}}, 1), shaped(24, 6)).segments,
            (Sizes{4, 4, 4, 4, 4, 4}));
  // Heads of 3 rows: a part has whole heads, of queries and of keys.
  EXPECT_EQ(cut(with_shape({{-1, {4, 2}}, {3, {}}, {6, {}}}, 0), shaped(18, 6)).segments,
            (Sizes{12, 6}));
  EXPECT_THAT(error_of(with_shape({{-1, {3, 3}}, {4, {}}, {6, {}}}, 0), shaped(24, 6)),
              HasSubstr("packed: expected segments that the tensor size 2 divides, got [3, 3]"))
      << "a head would be cut, though 2 divides 12 rows";
}

TEST(Shapes, OfARowDivideItsInputs) {
  const auto config = with_shape({{-1, {}}, {-1, {8, 4}}}, 1, 2, LayerSpec::Type::Row);
  EXPECT_EQ(cut(config, shaped(5, 12)),
            (Split{.dimension = 1, .segments = {8, 4}, .shape = {5, 12}}));
}

TEST(Shapes, ThatDoNotFitAreRefused) {
  const auto of = [](const std::vector<ShapeEntry>& shape, std::optional<std::int64_t> dimension,
                     std::int64_t out = 24, std::int64_t in = 8) {
    return error_of(with_shape(shape, dimension), shaped(out, in));
  };
  const ShapeEntry rest{-1, {}};
  EXPECT_THAT(of({{-1, {16, 4}}, rest}, 0),
              HasSubstr("packed: expected a shape that the weight [24, 8] can be seen as"));
  EXPECT_THAT(of({{-1, {16, 4, 4}}, {7, {}}}, 0), HasSubstr("can be seen as"));
  EXPECT_THAT(of({rest, rest, rest}, 0), HasSubstr("can be seen as"));
  EXPECT_THAT(of({{-1, {4611686018427387904, 4611686018427387904}}, rest}, 0),
              HasSubstr("can be seen as"));
  EXPECT_THAT(of({{5, {}}, rest}, 0), HasSubstr("expected 24 to be 5 equal segments, got a rest"));
  EXPECT_THAT(of({{-1, {16, 32}}, {4, {}}}, 0),
              HasSubstr("expected a shape that keeps the dimensions of the weight [24, 8] apart"));
  EXPECT_THAT(
      of({{24, {}}, {2, {}}}, 1),
      HasSubstr("expected a partition_dim within dimension 0 of the weight [24, 8], got 1"));
  EXPECT_THAT(of({{2, {}}, rest}, 2), HasSubstr("expected a partition_dim of the shape's 2"));
  EXPECT_THAT(of({{-1, {22, 1, 1}}, rest}, 0), HasSubstr("divides, got [22, 1, 1]"));
}

TEST(Shapes, ADimensionAloneMustBeThatOfTheType) {
  LayerSpec one = column("packed");
  one.partition_dim = 1;
  EXPECT_THAT(error_of(by_specs({one, row("after")}), shaped(24, 8)),
              HasSubstr("packed: expected partition_dim 0 for the outputs of the weight [24, 8], "
                        "got 1. Drop partition_dim, or change partition_type."));
  one.partition_dim = 0;
  EXPECT_EQ(error_of(by_specs({one, row("after")}), shaped(24, 8)), "");
}

TEST(Shapes, AreAskedForWhereAWeightIsKnownToBePacked) {
  Model phi{{"phi3", 8, 2}, {}};
  phi.linear("layers.0.self_attn.qkv_proj", 48, 32).linear("layers.0.self_attn.o_proj", 32, 32);
  phi.linear("layers.0.mlp.gate_up_proj", 96, 32).linear("layers.0.mlp.down_proj", 32, 48);
  EXPECT_THAT(error_of(by_specs({column(".*qkv_proj"), row(".*o_proj")}), phi),
              HasSubstr("qkv_proj: expected \"shape\" in layer_specs[0], as the weight is packed, "
                        "got none. Write [[q, k, v], -1] with their sizes"));
  EXPECT_THAT(error_of(by_specs({column(".*gate_up_proj"), row(".*down_proj")}), phi),
              HasSubstr("Write [2, -1]"));
  LayerSpec whole = column(".*gate_up_proj");
  whole.shape = {{1, {}}, {-1, {}}};
  EXPECT_EQ(error_of(by_specs({whole, row(".*down_proj")}), phi), "");
  phi.facts.type = "bloom";
  EXPECT_EQ(error_of(by_specs({column(".*qkv_proj"), row(".*o_proj")}), phi), "");
}

TEST(Packing, OfTransposedWeightsIsAlongTheOtherDimension) {
  Model gpt2{{"gpt2", 4, 0}, {}};
  gpt2.conv1d("transformer.h.0.attn.c_attn", 32, 96).conv1d("transformer.h.0.attn.c_proj", 32, 32);
  gpt2.conv1d("transformer.h.0.mlp.c_fc", 32, 128).conv1d("transformer.h.0.mlp.c_proj", 128, 32);
  const TensorPlan made = plan(by_names(), gpt2);
  const auto weight = [&](const std::string& name) {
    return *made.modules.at("transformer.h.0." + name).weight;
  };
  EXPECT_EQ(weight("attn.c_attn"),
            (Split{.dimension = 1, .segments = {32, 32, 32}, .shape = {32, 96}}));
  EXPECT_EQ(bias_split(weight("attn.c_attn")),
            (Split{.dimension = 0, .segments = {32, 32, 32}, .shape = {96}}));
  EXPECT_EQ(weight("mlp.c_fc"), (Split{.dimension = 1, .segments = {128}, .shape = {32, 128}}));
  EXPECT_EQ(weight("mlp.c_proj"), (Split{.dimension = 0, .segments = {128}, .shape = {128, 32}}));
}

TEST(Packing, OfQueriesKeysAndValuesFollowsFromTheModelType) {
  const auto of = [](const std::string& type, std::int64_t outputs, std::int64_t keys) {
    return segments(plan(by_names(), packed(type, "attn", "c_attn", "c_proj", outputs, 8, keys)),
                    kPacked);
  };
  for (const char* type : {"mpt", "qwen", "baichuan", "chatglm", "gpt2", "phi3"})
    EXPECT_EQ(of(type, 96, 0), (Sizes{32, 32, 32})) << type;
  EXPECT_EQ(of("mpt", 48, 2), (Sizes{32, 8, 8}));
  for (const char* type : {"bloom", "falcon", "gpt_neox", "persimmon", "internlm2"})
    EXPECT_EQ(of(type, 96, 0), (Sizes{96})) << type;
  EXPECT_EQ(of("falcon", 48, 2), (Sizes{48}));
  for (const char* type : {"", "llama", "new_model"})
    EXPECT_THAT(
        error_of(by_names(), packed(type, "attn", "c_attn", "c_proj", 96, 8, 0)),
        AllOf(HasSubstr("c_attn: expected a model type whose packing of queries, keys and values "
                        "is known, got \"" +
                        std::string(type) + "\""),
              HasSubstr("\"shape\": [[q, k, v], -1]")));
}

TEST(Packing, OfCodeGenIsFourBlocksOnBothSides) {
  Model codegen = packed("codegen", "attn", "qkv_proj", "out_proj", 96, 8, 0);
  const TensorPlan made = plan(by_names(), codegen);
  EXPECT_EQ(segments(made, "transformer.h.0.attn.qkv_proj"), Sizes(12, 8));
  EXPECT_EQ(segments(made, "transformer.h.0.attn.out_proj"), Sizes(4, 8));
  codegen.facts.heads = 4;
  EXPECT_THAT(error_of(by_names(), codegen), HasSubstr("heads in each of four blocks"));
}

TEST(Packing, OfKeysThatDoNotFitIsRefused) {
  const auto of = [](std::int64_t outputs, std::int64_t heads, std::int64_t keys,
                     std::int64_t size = 2) {
    return error_of(by_names(size),
                    packed("mpt", "attn", "Wqkv", "out_proj", outputs, heads, keys));
  };
  EXPECT_EQ(of(96, 0, 0), "");
  EXPECT_THAT(of(33, 8, 0), HasSubstr("Wqkv: expected queries, keys and values in its 33 outputs, "
                                      "got 32 queries by the module that follows"));
  EXPECT_THAT(of(52, 0, 0), HasSubstr("in its 52 outputs")) << "10 keys for 32 queries";
  EXPECT_THAT(of(32, 8, 0), HasSubstr("in its 32 outputs"));
  EXPECT_THAT(of(96, 5, 0, 1), "") << "at size 1 nothing is cut";
}

TEST(Heads, AreNotCut) {
  const auto of = [](std::int64_t size, std::int64_t heads, std::int64_t keys) {
    Model model = llama();
    model.facts.heads = heads;
    model.facts.key_value_heads = keys;
    return error_of(by_names(size), model);
  };
  EXPECT_EQ(of(4, 8, 4), "");
  EXPECT_THAT(
      of(4, 8, 2),
      HasSubstr("model.layers.0.self_attn.q_proj: expected a number of key/value heads that "
                "the tensor size 4 divides, got 2. Lower autotp_size, or"))
      << "though 4 divides 16";
  EXPECT_THAT(of(4, 6, 0), HasSubstr("expected a number of heads that the tensor size 4 divides"));
  EXPECT_EQ(of(4, 0, 0), "") << "not known";
}

TEST(Heads, OfPackedWeightsFollowFromTheirSizes) {
  // One key/value head, whatever the configuration says: 32 queries and 2 x 4.
  EXPECT_THAT(error_of(by_names(), packed("falcon", "attn", "c_attn", "c_proj", 40, 8, 8)),
              HasSubstr("expected a number of key/value heads that the tensor size 2 divides, got "
                        "1."));
  EXPECT_THAT(error_of(by_names(4), packed("mpt", "attn", "c_attn", "c_proj", 48, 8, 0)),
              HasSubstr("got 2."));
  EXPECT_THAT(error_of(by_names(), packed("mpt", "attn", "c_attn", "c_proj", 96, 6, 0)),
              HasSubstr("expected heads of one size"));
  EXPECT_THAT(error_of(by_names(), packed("mpt", "attn", "c_attn", "c_proj", 36, 8, 0)),
              HasSubstr("got 32 queries and 2 keys of 8 heads"))
      << "heads of 4";
  EXPECT_THAT(error_of(by_names(), packed("falcon", "attn", "c_attn", "c_proj", 48, 0, 0)),
              HasSubstr("expected the number of heads, got none"));
  EXPECT_EQ(error_of(by_names(), packed("bloom", "attn", "c_attn", "c_proj", 96, 0, 0)), "");
  Model alone{{"mpt", 8, 4}, {}};  // no row beside it
  alone.linear("h.0.attn.Wqkv", 64, 32).linear("h.0.out_proj", 32, 32);
  EXPECT_EQ(segments(plan(by_names(), alone), "h.0.attn.Wqkv"), (Sizes{32, 16, 16}));
  alone.facts.heads = 0;
  EXPECT_THAT(error_of(by_names(), alone), HasSubstr("got no row-parallel module beside it"));
}

TEST(Cuts, AreEvenOrRefusedByNameSizeAndRemedy) {
  Model odd = llama();
  for (const char* name : {"gate_proj", "up_proj"})
    odd.at("model.layers.1.mlp." + std::string(name)).shape = {50, 32};
  odd.at("model.layers.1.mlp.down_proj").shape = {32, 50};
  EXPECT_THAT(error_of(by_names(4), odd),
              HasSubstr("model.layers.1.mlp.gate_proj.weight: expected a size that the tensor size "
                        "4 divides, got 50 along dimension 0 of [50, 32]. Change the tensor size, "
                        "or leave it whole"));
  EXPECT_EQ(error_of(by_names(2), odd), "");
  Model gate{{"x", 0, 0}, {}};
  gate.linear("layers.0.mlp.gate_up_proj", 99, 8).linear("layers.0.mlp.down_proj", 8, 48);
  EXPECT_THAT(error_of(by_names(), gate),
              HasSubstr("expected a size that 2 equal segments make up, got 99"));
  gate.at("layers.0.mlp.gate_up_proj").shape = {100, 8};
  EXPECT_THAT(error_of(by_names(4), gate), HasSubstr("divides, got 50 of [50, 50]"));
}

}  // namespace
}  // namespace equigrad::parallel
