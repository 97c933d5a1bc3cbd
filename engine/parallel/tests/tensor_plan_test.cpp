// Which modules are split: by names, by presets and by specs; what shares a weight; what goes
// together.
#include "engine/parallel/tensor_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/parallel/plan_rules.hpp"
#include "engine/parallel/tests/plan_models.hpp"

namespace equigrad::parallel {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Placement kWhole = Placement::Replicated, kColumn = Placement::Column,
                    kRow = Placement::Row, kVocabulary = Placement::Vocabulary;

void expect_llama(const TensorPlan& plan) {
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "mlp.gate_proj", "mlp.up_proj"})
      EXPECT_EQ(placed(plan, layer + name), kColumn) << name;
    for (const char* name : {"self_attn.o_proj", "mlp.down_proj"})
      EXPECT_EQ(placed(plan, layer + name), kRow) << name;
    EXPECT_EQ(placed(plan, layer + "input_layernorm"), kWhole);
  }
  for (const char* name : {"model.embed_tokens", "model.norm", "lm_head"})
    EXPECT_EQ(placed(plan, name), kWhole) << name;
}

TEST(TensorPlan, ByNamesColumnsAndRowsOfBlocksAreSplitAndNothingElse) {
  for (const char* type : {"llama", "", "Mistral"}) {
    const TensorPlan by_name = plan(by_names(), llama(type));
    expect_llama(by_name);
    EXPECT_EQ(by_name.size, 2);
    EXPECT_EQ(by_name.modules.size(), 19U);
    EXPECT_EQ(by_name.split_modules().size(), 14U);
  }
  const ModulePlan key = plan(by_names(4), llama()).modules.at("model.layers.1.self_attn.k_proj");
  EXPECT_EQ(key.weight, (Split{.dimension = 0, .segments = {16}, .shape = {16, 32}}));
  EXPECT_TRUE(key.has_bias);
  EXPECT_FALSE(key.gathers_output || key.takes_whole_input || key.sums_gradient);
  const ModulePlan down = plan(by_names(4), llama()).modules.at("model.layers.0.mlp.down_proj");
  EXPECT_EQ(down.weight, (Split{.dimension = 1, .segments = {48}, .shape = {32, 48}}));
  EXPECT_EQ(down.reason, "heuristics: down_proj");
}

TEST(TensorPlan, AtSizeOneEverythingIsReplicated) {
  for (const auto& config : {by_names(0), by_names(1), by_preset("llama", 1)})
    EXPECT_THAT(plan(config, llama()).split_modules(), IsEmpty());
}

TEST(TensorPlan, ThePresetsOfLlamaAndQwenAreAsByNames) {
  for (const char* preset : {"llama", "Qwen2", "LLAMA"}) {
    expect_llama(plan(by_preset(preset), llama("other")));
    EXPECT_EQ(plan(by_preset(preset), llama()).modules.at("model.layers.0.mlp.up_proj").reason,
              preset == std::string("Qwen2") ? "preset qwen2" : "preset llama");
  }
}

TEST(TensorPlan, EveryPresetOfTheConfigurationHasRules) {
  for (const char* name : kPresetModels) EXPECT_FALSE(preset_rules(name).empty()) << name;
  EXPECT_TRUE(preset_rules("gpt9").empty());
  EXPECT_THAT(error_of(by_preset("gpt9"), llama()), HasSubstr("got \"gpt9\""));
}

TEST(TensorPlan, APresetThatFitsNothingIsRefused) {
  EXPECT_THAT(error_of(by_preset("bloom"), llama("llama")),
              HasSubstr("expected a model that the preset \"bloom\" fits, got one of the type "
                        "\"llama\". Name its family"));
  EXPECT_THAT(error_of(by_preset("bloom"), llama("")), HasSubstr("without any of its modules"));
}

TEST(TensorPlan, ThePresetsOfPackedModelsCutThemApart) {
  const auto of = [](const std::string& preset, const Model& model, const char* name) {
    return segments(plan(by_preset(preset), model), name);
  };
  const std::string qkv = "transformer.h.0.self_attention.query_key_value";
  const Model bloom = packed("bloom", "self_attention", "query_key_value", "dense", 96, 8, 0);
  EXPECT_EQ(of("bloom", bloom, qkv.c_str()), (Sizes{96}));
  const Model glm = packed("chatglm", "self_attention", "query_key_value", "dense", 64, 8, 4);
  EXPECT_EQ(of("chatglm", glm, qkv.c_str()), (Sizes{32, 16, 16}));
  EXPECT_EQ(of("chatglm", glm, "transformer.h.0.mlp.dense_h_to_4h"), (Sizes{64, 64}));
  EXPECT_EQ(of("bloom", bloom, "transformer.h.0.mlp.dense_h_to_4h"), (Sizes{128}));
  Model phi{{"phi3", 8, 2}, {}};
  phi.linear("model.layers.0.self_attn.qkv_proj", 48, 32)
      .linear("model.layers.0.self_attn.o_proj", 32, 32)
      .linear("model.layers.0.mlp.gate_up_proj", 96, 32)
      .linear("model.layers.0.mlp.down_proj", 32, 48);
  EXPECT_EQ(of("phi3", phi, "model.layers.0.self_attn.qkv_proj"), (Sizes{32, 8, 8}));
  EXPECT_EQ(of("phi3", phi, "model.layers.0.mlp.gate_up_proj"), (Sizes{48, 48}));
  EXPECT_EQ(plan(by_names(), phi).split_modules(), plan(by_preset("phi3"), phi).split_modules());
}

TEST(TensorPlan, MixturesOfExpertsKeepTheirGateWhole) {
  Model mixtral{{"mixtral", 8, 4}, {}};
  const std::string layer = "model.layers.0.", moe = layer + "block_sparse_moe.";
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
    mixtral.linear(layer + "self_attn." + name, 32, 32);
  mixtral.linear(moe + "gate", 4, 32);
  for (const std::string expert : {"experts.0.", "experts.11."})
    mixtral.linear(moe + expert + "w1", 64, 32)
        .linear(moe + expert + "w2", 32, 64)
        .linear(moe + expert + "w3", 64, 32);
  for (const auto& config : {by_names(), by_preset("mixtral")}) {
    const TensorPlan made = plan(config, mixtral);
    EXPECT_EQ(placed(made, moe + "gate"), kWhole);
    EXPECT_EQ(placed(made, moe + "experts.11.w2"), kRow);
    EXPECT_EQ(placed(made, moe + "experts.11.w1"), kColumn);
    EXPECT_EQ(placed(made, moe + "experts.0.w3"), kColumn);
  }
}

TEST(TensorPlan, LatentProjectionsOfDeepSeekStayWhole) {
  for (const bool has_latent_queries : {true, false}) {
    Model model{{"deepseek_v2", 8, 8}, {}};
    const std::string attention = "model.layers.0.self_attn.", mlp = "model.layers.0.mlp.";
    if (has_latent_queries)
      model.linear(attention + "q_a_proj", 12, 32).linear(attention + "q_b_proj", 48, 12);
    else
      model.linear(attention + "q_proj", 48, 32);
    model.linear(attention + "kv_a_proj_with_mqa", 10, 32)
        .linear(attention + "kv_b_proj", 64, 8)
        .linear(attention + "o_proj", 32, 32)
        .linear(mlp + "gate", 5, 32)
        .linear(mlp + "experts.0.gate_proj", 16, 32)
        .linear(mlp + "experts.0.down_proj", 32, 16)
        .linear(mlp + "shared_experts.up_proj", 16, 32)
        .linear(mlp + "shared_experts.down_proj", 32, 16);
    for (const auto& config : {by_names(), by_preset("deepseek_v2")}) {
      const TensorPlan made = plan(config, model);
      EXPECT_EQ(placed(made, attention + "kv_a_proj_with_mqa"), kWhole);
      EXPECT_EQ(placed(made, attention + "kv_b_proj"), kColumn);
      EXPECT_EQ(placed(made, attention + (has_latent_queries ? "q_b_proj" : "q_proj")), kColumn);
      if (has_latent_queries) EXPECT_EQ(placed(made, attention + "q_a_proj"), kWhole);
      EXPECT_EQ(placed(made, mlp + "gate"), kWhole);
      EXPECT_EQ(placed(made, mlp + "experts.0.down_proj"), kRow);
      EXPECT_EQ(placed(made, mlp + "shared_experts.up_proj"), kColumn);
    }
  }
}

TEST(TensorPlan, EncodersWithNormsBehindAndBiasesOfHeadsAreSplit) {
  Model bert{{"bert", 4, 0}, {}};
  const std::string layer = "bert.encoder.layer.0.";
  for (const char* name : {"attention.self.query", "attention.self.key", "attention.self.value",
                           "attention.output.dense"})
    bert.linear(layer + name, 32, 32, true);
  bert.linear(layer + "intermediate.dense", 128, 32).linear(layer + "output.dense", 32, 128);
  bert.linear("bert.pooler.dense", 32, 32);
  const TensorPlan of_bert = plan(by_names(), bert);
  EXPECT_EQ(placed(of_bert, layer + "attention.self.key"), kColumn);
  EXPECT_EQ(placed(of_bert, layer + "attention.output.dense"), kRow);
  EXPECT_EQ(placed(of_bert, layer + "intermediate.dense"), kColumn);
  EXPECT_EQ(placed(of_bert, layer + "output.dense"), kRow);
  EXPECT_EQ(placed(of_bert, "bert.pooler.dense"), kWhole);
  Model t5{{"t5", 4, 0}, {}};
  const std::string attention = "encoder.block.0.layer.0.SelfAttention.";
  for (const char* name : {"q", "k", "v", "o"}) t5.linear(attention + name, 32, 32);
  t5.embedding(attention + "relative_attention_bias", 16, 4);
  t5.linear("encoder.block.0.layer.1.DenseReluDense.wi", 64, 32)
      .linear("encoder.block.0.layer.1.DenseReluDense.wo", 32, 64);
  const TensorPlan of_t5 = plan(by_names(), t5);
  EXPECT_EQ(placed(of_t5, attention + "o"), kRow);
  EXPECT_EQ(of_t5.modules.at(attention + "relative_attention_bias").weight,
            (Split{.dimension = 1, .segments = {4}, .shape = {16, 4}}));
  t5.facts.heads = 3;
  EXPECT_THAT(error_of(by_names(), t5), HasSubstr("heads"));
}

TEST(TensorPlan, ConvolutionalModelsAndUnknownBlocksAreLeftAlone) {
  Model vgg;
  vgg.other("features.0", {8, 3, 3, 3})
      .linear("classifier.0", 64, 128)
      .linear("classifier.3", 8, 64);
  EXPECT_THAT(plan(by_names(), vgg).split_modules(), IsEmpty());
  Model convnext;
  convnext.other("stages.0.blocks.0.conv_dw", {8, 1, 7, 7})
      .linear("stages.0.blocks.0.mlp.fc1", 32, 8)
      .linear("stages.0.blocks.0.mlp.fc2", 8, 32);
  EXPECT_THAT(plan(by_names(), convnext).split_modules(), IsEmpty());
  convnext.modules.erase(convnext.modules.begin());
  EXPECT_EQ(plan(by_names(), convnext).split_modules().size(), 2U);
  Model unknown;
  unknown.linear("layers.0.mixer.a", 32, 8).linear("layers.0.mixer.b", 8, 32);
  EXPECT_THAT(plan(by_names(), unknown).split_modules(), IsEmpty());
}

TEST(TensorPlan, TypesThatNamesDoNotTellOfAreRefused) {
  EXPECT_THAT(error_of(by_names(), llama("Yuan")),
              AllOf(HasSubstr("got the type \"yuan\""), HasSubstr("layer_specs")));
  EXPECT_EQ(error_of(by_preset("llama"), llama("Yuan")), "");
}

TEST(TensorPlan, AColumnWithoutARowAndARowWithoutAColumnAreRefused) {
  Model lone = llama();
  lone.linear("model.layers.0.adapter.first", 64, 32);
  EXPECT_THAT(error_of(by_names(), lone),
              HasSubstr("model.layers.0.adapter.first: expected a row-parallel module after it"));
  Model fused = llama();
  fused.linear("model.layers.0.cross.out_proj", 32, 32);
  EXPECT_THAT(error_of(by_names(), fused),
              HasSubstr("model.layers.0.cross.out_proj: expected a column-parallel module before"));
  EXPECT_EQ(error_of(by_specs({column(".*q_proj"), row(".*o_proj")}), fused), "");
  // The projections before it are no modules.
  Model torch_encoder;
  torch_encoder.linear("layers.0.self_attn.out_proj", 32, 32)
      .linear("layers.0.linear1", 128, 32)
      .linear("layers.0.linear2", 32, 128);
  EXPECT_THAT(
      error_of(by_names(), torch_encoder),
      HasSubstr("layers.0.self_attn.out_proj: expected a column-parallel module before it"));
  EXPECT_THAT(error_of(by_specs({row(".*o_proj")}), llama()),
              HasSubstr("expected a column-parallel module before a row-parallel one"));
  // A preset for another model: attention has its row only.
  Model phi = llama();
  EXPECT_THAT(error_of(by_preset("phi3"), phi), HasSubstr("down_proj: expected a column-parallel"));
}

TEST(TensorPlan, NormsOfSplitHeadsAddTheirGradientsAndNormsOverAllHeadsAreRefused) {
  Model qwen = llama("qwen3", 1);
  qwen.other("model.layers.0.self_attn.q_norm", {4}).other("model.layers.0.self_attn.k_norm", {4});
  for (const auto& config :
       {by_names(), by_preset("llama"), by_specs({column(".*[qkv]_proj"), row(".*o_proj")})}) {
    const TensorPlan made = plan(config, qwen);
    EXPECT_TRUE(made.modules.at("model.layers.0.self_attn.q_norm").sums_gradient);
    EXPECT_TRUE(made.modules.at("model.layers.0.self_attn.k_norm").sums_gradient);
    EXPECT_FALSE(made.modules.at("model.layers.0.input_layernorm").sums_gradient);
    EXPECT_FALSE(made.modules.at("model.layers.0.self_attn.q_norm").is_split());
  }
  const TensorPlan whole = plan(by_specs({column(".*gate_proj"), row(".*down_proj")}), qwen);
  EXPECT_FALSE(whole.modules.at("model.layers.0.self_attn.q_norm").sums_gradient);
  Model olmo = llama("olmo2", 1);
  olmo.other("model.layers.0.self_attn.k_norm", {16});
  EXPECT_THAT(error_of(by_names(), olmo),
              HasSubstr("k_norm: expected one norm for the outputs of each head, got one over all "
                        "outputs of model.layers.0.self_attn.k_proj, which is split"));
  Model cohere = llama("cohere", 1);
  cohere.other("model.layers.0.self_attn.q_norm", {8, 4});
  EXPECT_THAT(error_of(by_names(), cohere), HasSubstr("q_norm: expected one norm"));
  Model stable = llama("stablelm", 1);
  stable.other("model.layers.0.self_attn.q_layernorm.norms.3", {4});
  EXPECT_THAT(error_of(by_names(), stable), HasSubstr("norms.3: expected one norm for the outputs "
                                                      "of each head, got one of many on"));
  Model packed_heads = packed("persimmon", "self_attn", "query_key_value", "dense", 96, 8, 0);
  packed_heads.other("transformer.h.0.self_attn.q_layernorm", {4});
  EXPECT_TRUE(plan(by_names(), packed_heads)
                  .modules.at("transformer.h.0.self_attn.q_layernorm")
                  .sums_gradient);
}

TEST(TensorPlan, ATiedHeadAndEmbeddingHaveOneCut) {
  Model tied = llama();
  tied.share("model.embed_tokens", "lm_head");
  EXPECT_EQ(placed(plan(by_names(), tied), "lm_head"), kWhole);
  const Split by_entries{.dimension = 0, .segments = {64}, .shape = {64, 32}},
      by_width{.dimension = 1, .segments = {32}, .shape = {64, 32}};
  auto vocabulary = by_names();
  vocabulary.vocab_parallel_lm_head = true;
  const TensorPlan made = plan(vocabulary, tied);
  expect_llama([&] {
    TensorPlan rest = made;
    rest.modules["lm_head"] = rest.modules["model.embed_tokens"] = {};
    return rest;
  }());
  EXPECT_EQ(placed(made, "model.embed_tokens"), kVocabulary);
  EXPECT_EQ(placed(made, "lm_head"), kColumn);
  EXPECT_FALSE(made.modules.at("lm_head").gathers_output);
  for (const char* name : {"model.embed_tokens", "lm_head"})
    EXPECT_EQ(made.modules.at(name).weight, by_entries) << name;
  const auto with = [](const LayerSpec& one) {
    return by_specs({one, column(".*[qkv]_proj"), row(".*o_proj")});
  };
  const TensorPlan by_embedding = plan(with(row("model.embed_tokens")), tied);
  EXPECT_EQ(placed(by_embedding, "model.embed_tokens"), kVocabulary);
  EXPECT_EQ(by_embedding.modules.at("lm_head").weight, by_entries);
  EXPECT_TRUE(by_embedding.modules.at("lm_head").gathers_output);
  const TensorPlan by_head = plan(with(row("lm_head")), tied);
  EXPECT_EQ(placed(by_head, "lm_head"), kRow);
  EXPECT_TRUE(by_head.modules.at("lm_head").takes_whole_input);
  EXPECT_EQ(placed(by_head, "model.embed_tokens"), kColumn);
  EXPECT_TRUE(by_head.modules.at("model.embed_tokens").gathers_output);
  EXPECT_EQ(by_head.modules.at("model.embed_tokens").weight, by_width);
  EXPECT_THAT(error_of(by_specs({column("lm_head"), skip("model.embed_tokens"),
                                 column(".*[qkv]_proj"), row(".*o_proj")}),
                       tied),
              HasSubstr("expected one cut of the weight that model.embed_tokens and lm_head share, "
                        "got replicated and column"));
}

TEST(TensorPlan, TheVocabularyIsThatOfOneHead) {
  auto config = by_names();
  config.vocab_parallel_lm_head = true;
  Model none = llama();
  none.modules.pop_back();
  EXPECT_THAT(error_of(config, none), HasSubstr("for vocab_parallel_lm_head, got none"));
  Model two = llama();
  two.linear("second.lm_head", 64, 32);
  EXPECT_THAT(error_of(config, two), HasSubstr("got lm_head, second.lm_head"));
  Model odd = llama();
  odd.at("lm_head").shape = {63, 32};
  EXPECT_THAT(error_of(config, odd),
              HasSubstr("lm_head.weight: expected a size that the tensor size 2 divides, got 63"));
  config = by_specs({column(".*[qkv]_proj"), row(".*o_proj"), column("lm_head")});
  config.vocab_parallel_lm_head = true;
  EXPECT_THAT(error_of(config, llama()), HasSubstr("got both, layer_specs[2]"));
  config.partition_config->layer_specs.pop_back();
  config.partition_config->lm_head_patterns = {"head"};
  Model other = llama();
  other.at("lm_head").name = "model.head";
  EXPECT_EQ(placed(plan(config, other), "model.head"), kColumn);
}

TEST(TensorPlan, ModulesThatCannotBeAreRefused) {
  EXPECT_THAT(error_of(by_names(), llama().linear("lm_head", 4, 4)),
              HasSubstr("expected every module once, got lm_head twice"));
  Model flat = llama();
  flat.at("lm_head").shape = {64};
  EXPECT_THAT(error_of(by_names(), flat),
              HasSubstr("lm_head: expected a weight of two dimensions"));
}

TEST(TensorPlan, IsDescribedLineByLine) {
  Model qwen = llama("qwen3", 1);
  qwen.other("model.layers.0.self_attn.q_norm", {4});
  const std::string text = describe(plan(by_names(), qwen));
  for (const char* line :
       {"lm_head  replicated\n",
        "model.layers.0.mlp.down_proj  row  [48] of dimension 1  (heuristics: down_proj)\n",
        "model.layers.0.self_attn.q_norm  replicated, gradient summed  (norm of the heads of "
        "model.layers.0.self_attn.q_proj)\n"})
    EXPECT_THAT(text, HasSubstr(line));
}

}  // namespace
}  // namespace equigrad::parallel
