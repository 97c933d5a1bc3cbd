// The caller's specs: what a pattern names, which spec counts, and what is refused.
#include "engine/parallel/plan_decisions.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/parallel/tests/plan_models.hpp"

namespace equigrad::parallel {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// What is needed beside a spec that a test is about.
std::vector<LayerSpec> with(const std::vector<LayerSpec>& first) {
  std::vector<LayerSpec> specs = first;
  specs.push_back(column(R"(.*\.(gate|up)_proj\.weight$)"));
  specs.push_back(row(R"(.*\.down_proj\.weight$)"));
  return specs;
}

LayerSpec for_types(LayerSpec spec, const std::vector<std::string>& types) {
  spec.model_types = types;
  return spec;
}

TEST(Specs, NameModulesByTheirWeightAndLeaveTheRestWhole) {
  const TensorPlan made = plan(by_specs(with({})), llama());
  EXPECT_THAT(made.split_modules(),
              ElementsAre("model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate_proj",
                          "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj",
                          "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_EQ(made.modules.at("model.layers.0.mlp.up_proj").reason, "layer_specs[0]");
  EXPECT_EQ(made.modules.at("model.layers.0.self_attn.q_proj").reason, "");
}

TEST(Specs, APatternThatNamesNothingIsRefusedWithANameThatItCouldNameOne) {
  EXPECT_THAT(error_of(by_specs(with({row(R"(.*\.fc9\.weight$)")})), llama()),
              AllOf(HasSubstr("layer_specs[0]: expected a pattern that matches a parameter, got "
                              "\".*\\.fc9\\.weight$\""),
                    HasSubstr("\"model.embed_tokens.weight\"")));
  EXPECT_THAT(error_of(by_specs(with({row(R"(.*\.o_proj$)")})), llama()),
              HasSubstr("got \".*\\.o_proj$\""))
      << "names end in .weight";
  EXPECT_THAT(error_of(by_specs(with({row("o_proj")})), llama()), HasSubstr("got \"o_proj\""))
      << "from the beginning";
  LayerSpec two = column(".*q_proj");
  two.patterns.push_back(".*x_proj");
  EXPECT_THAT(error_of(by_specs(with({two})), llama()), HasSubstr("got \".*x_proj\""));
  EXPECT_THAT(error_of(by_specs(with({column(".*norm")})), llama()), HasSubstr("got \".*norm\""))
      << "a vector is no matrix";
  EXPECT_EQ(error_of(by_specs(with({skip(".*norm")})), llama()), "");
  EXPECT_THAT(error_of(by_specs({column("(")}), llama()), HasSubstr("got \"(\""));
}

TEST(Specs, TwoThatDisagreeAreRefusedAndTwoThatAgreeAreOne) {
  EXPECT_THAT(error_of(by_specs(with({skip(".*mlp.up_proj")})), llama()),
              HasSubstr("model.layers.0.mlp.up_proj: expected one spec, got two that disagree, "
                        "layer_specs[0] and layer_specs[1]. Narrow the pattern"));
  EXPECT_EQ(error_of(by_specs(with({column(".*mlp.up_proj")})), llama()), "");
  LayerSpec gathering = column(".*mlp.up_proj"), shaped = gathering, turned = gathering;
  gathering.gather_output = true;
  shaped.shape = {{2, {}}, {-1, {}}};
  turned.partition_dim = 0;
  for (const LayerSpec& other : {gathering, shaped, turned})
    EXPECT_THAT(error_of(by_specs(with({other})), llama()), HasSubstr("two that disagree"));
}

TEST(Specs, OfOtherModelTypesDoNotCount) {
  const auto of = [](const std::string& type) {
    return plan(by_specs(with({for_types(skip(".*up_proj"), {"qwen2", "Bloom"})})), llama(type));
  };
  for (const char* type : {"llama", ""}) EXPECT_EQ(of(type).split_modules().size(), 6U) << type;
  for (const char* type : {"qwen2", "QWEN2", "bloom"}) EXPECT_THROW(of(type), Error) << type;
  EXPECT_EQ(error_of(by_specs(with({for_types(skip(".*fc9"), {"bloom"})})), llama()), "")
      << "it need not match";
  EXPECT_NE(error_of(by_specs(with({for_types(skip(".*fc9"), {"llama"})})), llama()), "");
  // One file for two families.
  const auto shared =
      by_specs({for_types(column(".*up_proj"), {"llama"}), for_types(skip(".*up_proj"), {"qwen2"}),
                column(".*gate_proj"), row(".*down_proj")});
  EXPECT_TRUE(plan(shared, llama("llama")).modules.at("model.layers.0.mlp.up_proj").is_split());
  EXPECT_FALSE(plan(shared, llama("qwen2")).modules.at("model.layers.0.mlp.up_proj").is_split());
}

TEST(Specs, ComeBeforeThoseOfThePresetIfItIsUsed) {
  auto config = by_specs({skip(R"(.*\.1\.mlp\.)"), column("lm_head")});
  config.partition_config->layer_specs[1].gather_output = true;
  config.preset_model = "llama";
  const TensorPlan merged = plan(config, llama());
  EXPECT_TRUE(merged.modules.at("model.layers.0.mlp.up_proj").is_split());
  EXPECT_FALSE(merged.modules.at("model.layers.1.mlp.up_proj").is_split());
  EXPECT_EQ(merged.modules.at("model.layers.1.mlp.up_proj").reason, "layer_specs[0]");
  EXPECT_EQ(merged.modules.at("model.layers.1.self_attn.q_proj").reason, "preset llama");
  EXPECT_TRUE(merged.modules.at("lm_head").gathers_output);
  config.partition_config->use_default_specs = false;
  EXPECT_THAT(plan(config, llama()).split_modules(), ElementsAre("lm_head"));
}

TEST(Specs, WithoutAPresetLeaveWhatTheyDoNotNameWhole) {
  auto config = by_specs(with({}));
  EXPECT_EQ(placed(plan(config, llama()), "model.layers.0.self_attn.q_proj"),
            Placement::Replicated);
  config.partition_config->strict_mode = true;
  EXPECT_THAT(
      error_of(config, llama("llama", 1)),
      AllOf(HasSubstr("as strict_mode says, got none for model.layers.0.self_attn.q_proj, "),
            HasSubstr(" and 2 more")));
  config.partition_config->layer_specs.push_back(skip(".*(self_attn|lm_head)"));
  EXPECT_EQ(error_of(config, llama()), "");
}

TEST(Specs, OfAnEmbeddingCutItsEntriesOrItsOutputs) {
  const auto of = [](const LayerSpec& one) {
    return plan(by_specs(with({one})), llama()).modules.at("model.embed_tokens");
  };
  const ModulePlan by_row = of(row(".*embed"));
  EXPECT_EQ(by_row.placement, Placement::Vocabulary);
  EXPECT_EQ(by_row.weight, (Split{.dimension = 0, .segments = {64}, .shape = {64, 32}}));
  const ModulePlan by_column = of(column(".*embed"));
  EXPECT_EQ(by_column.placement, Placement::Column);
  EXPECT_EQ(by_column.weight, (Split{.dimension = 1, .segments = {32}, .shape = {64, 32}}));
}

TEST(Specs, OfAnOutputHeadTakeTheWholeInput) {
  const TensorPlan made = plan(by_specs(with({row("lm_head")})), llama());
  EXPECT_TRUE(made.modules.at("lm_head").takes_whole_input);
  EXPECT_FALSE(made.modules.at("model.layers.0.mlp.down_proj").takes_whole_input);
}

TEST(Specs, ThatSkipMayAskForGradientsToBeAdded) {
  LayerSpec norms = skip(".*input_layernorm");
  norms.grad_allreduce = true;
  const TensorPlan made = plan(by_specs(with({norms})), llama());
  EXPECT_TRUE(made.modules.at("model.layers.0.input_layernorm").sums_gradient);
  EXPECT_FALSE(made.modules.at("model.norm").sums_gradient);
}

TEST(Specs, OfWhatIsNoLinearAreRefused) {
  Model model = llama();
  model.other("model.layers.0.mlp.expert_bank", {16, 16});
  EXPECT_THAT(error_of(by_specs(with({row(".*expert_bank")})), model),
              HasSubstr("model.layers.0.mlp.expert_bank: expected a linear or an embedding, got a "
                        "module of another kind, which layer_specs[0] would split."));
  EXPECT_EQ(error_of(by_specs(with({skip(".*expert_bank")})), model), "");
}

TEST(Blocks, AreNamedByTheFirstNumberWithSomethingBehindIt) {
  EXPECT_EQ(block_of("model.layers.3.mlp.experts.11.w1"), "model.layers.3");
  EXPECT_EQ(block_of("h.0.attn"), "h.0");
  EXPECT_EQ(block_of("0.weight"), "0");
  for (const char* none : {"classifier.3", "lm_head", "", "layer3.conv", "a.b3.c"})
    EXPECT_EQ(block_of(none), "") << none;
}

// ---- what a model says of itself ---------------------------------------------------------------

using StyleOf = std::pair<std::string, std::string>;

// Names that no heuristic knows; 4 heads.
Model encoder(const std::vector<StyleOf>& plan) {
  Model model{{"custom", 4, 0, plan}, {}};
  model.embedding("embed", 16, 8);
  for (const std::string layer : {"encoder.0.", "encoder.1."})
    model.linear(layer + "attention.query", 8, 8, true)
        .linear(layer + "attention.output", 8, 8, true)
        .other(layer + "attention.scale", {2})
        .linear(layer + "ffn.intermediate", 32, 8)
        .linear(layer + "ffn.output", 8, 32);
  return model.linear("head", 16, 8).other("norm", {8});
}

const std::vector<StyleOf> kStyles = {{"encoder.*.attention.query", "colwise"},
                                      {"encoder.*.attention.output", "rowwise"},
                                      {"*.scale", "replicated_with_grad_allreduce"},
                                      {"ffn.intermediate", "COLWISE_REP"},
                                      {"ffn.output", "rowwise_split_input"},
                                      {"embed", "embedding_rowwise"},
                                      {"head", "colwise_gather_output"},
                                      {"no.such.module", "rowwise"}};

TEST(ModelsPlan, IsFollowedWhereNamesSplitNothing) {
  const TensorPlan made = plan(by_names(), encoder(kStyles));
  EXPECT_EQ(made.split_modules().size(), 10U);
  const ModulePlan &query = made.modules.at("encoder.1.attention.query"),
                   &output = made.modules.at("encoder.1.attention.output"),
                   &inner = made.modules.at("encoder.0.ffn.intermediate"),
                   &outer = made.modules.at("encoder.0.ffn.output"),
                   &scale = made.modules.at("encoder.0.attention.scale");
  EXPECT_EQ(query.placement, Placement::Column);
  EXPECT_EQ(query.weight, (Split{.dimension = 0, .segments = {8}, .shape = {8, 8}}));
  EXPECT_EQ(query.reason, "the model's plan: colwise");
  EXPECT_EQ(output.placement, Placement::Row);
  EXPECT_EQ(output.weight, (Split{.dimension = 1, .segments = {8}, .shape = {8, 8}}));
  EXPECT_TRUE(inner.placement == Placement::Column && inner.gathers_output);
  EXPECT_TRUE(outer.placement == Placement::Row && outer.takes_whole_input);
  EXPECT_TRUE(scale.sums_gradient && !scale.is_split());
  EXPECT_FALSE(query.gathers_output || query.sums_gradient || output.takes_whole_input);
  EXPECT_EQ(placed(made, "embed"), Placement::Vocabulary);
  EXPECT_TRUE(made.modules.at("head").gathers_output);
  EXPECT_FALSE(made.modules.at("norm").sums_gradient);
}

TEST(ModelsPlan, IsNotReadWhereAnotherRuleSplits) {
  Model model = llama();
  model.facts.plan = {{"*.q_proj", "rowwise"}, {"lm_head", "no such style"}};
  EXPECT_EQ(placed(plan(by_names(), model), "model.layers.0.self_attn.q_proj"), Placement::Column);
  EXPECT_EQ(placed(plan(by_names(), model), "lm_head"), Placement::Replicated);
  EXPECT_EQ(plan(by_specs({column(".*query"), row(".*attention.output")}), encoder(kStyles))
                .split_modules()
                .size(),
            4U);
}

TEST(ModelsPlan, APatternNamesAnEndingFromADotOn) {
  EXPECT_TRUE(is_named_by("layers.*.q_proj", "model.layers.12.q_proj"));
  EXPECT_TRUE(is_named_by("layers.*.q_proj", "layers.0.self_attn.q_proj"));
  EXPECT_TRUE(is_named_by("q_proj", "layers.0.q_proj") &&
              is_named_by("*.q_proj", "layers.0.q_proj"));
  EXPECT_FALSE(is_named_by("proj", "layers.0.q_proj") ||
               is_named_by("layers.*.q", "layers.0.q_proj"));
  EXPECT_FALSE(is_named_by("layers.q_proj", "layers.0.q_proj"));
}

TEST(ModelsPlan, WhatItDoesNotKnowIsRefusedByName) {
  const auto with = [](const StyleOf& one) {
    std::vector<StyleOf> styles = kStyles;
    styles.push_back(one);
    return error_of(by_names(), encoder(styles));
  };
  EXPECT_THAT(with({"experts", "moe_tp_experts"}),
              AllOf(HasSubstr("got \"moe_tp_experts\" for \"experts\""), HasSubstr("rowwise"),
                    HasSubstr("layer_specs")));
  EXPECT_THAT(
      with({"encoder.0.attention.query", "rowwise"}),
      HasSubstr("encoder.0.attention.query: expected one style in the model's own plan, got "
                "\"colwise\" and \"rowwise\""));
  EXPECT_THAT(with({"norm", "colwise"}), HasSubstr("norm: expected a linear for \"colwise\""));
  EXPECT_EQ(with({"encoder.0.attention.query", "colwise"}), "");
  EXPECT_EQ(with({"head", "colwise_rep"}), "") << "another name of its style";
  Model heads = encoder(kStyles);
  heads.facts.heads = 3;
  EXPECT_THAT(error_of(by_names(), heads),
              HasSubstr("attention.query: expected a number of heads"));
}

}  // namespace
}  // namespace equigrad::parallel
