// The list of layer specs: every key of a spec, how the list is shown, and what is wrong with one.
#include "engine/config/sections/layer_specs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/config/config.hpp"

namespace equigrad {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Type = LayerSpec::Type;

std::string specs(const std::string& list, const std::string& beside = "") {
  return R"({"train_micro_batch_size_per_gpu": 3, "optimizer": {"type": "SGD"}, "tensor_parallel": {
             "autotp_size": 2, "partition_config": {"layer_specs": )" +
         list + beside + "}}}";
}

std::vector<std::string> problems(const std::string& text, int world) {
  try {
    explain_config(text, world);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

// The example of DeepSpeed's documentation, and the rest of a spec's keys.
TEST(Specs, AreReadWhole) {
  const auto config = load_config(specs(R"([
      {"patterns": [".*\\.o_proj\\.weight$", ".*\\.down_proj\\.weight$"], "partition_type": "row"},
      {"patterns": [".*\\.[qkv]_proj\\.weight$"], "partition_type": "Column",
       "gather_output": true},
      {"patterns": [".*\\.gate_up_proj\\.weight$"], "partition_type": "column", "shape": [2, -1],
       "partition_dim": 0, "model_types": ["Llama", "qwen2"]},
      {"patterns": [".*\\.qkv_proj\\.weight$"], "shape": [[64, 16, 16], -1]},
      {"patterns": [".*norm"], "partition_type": "skip", "grad_allreduce": true}])",
                                        R"(, "use_default_specs": false)"),
                                  2);
  const auto& all = config.tensor_parallel.partition_config->layer_specs;
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].type, Type::Row);
  EXPECT_THAT(all[0].patterns, ElementsAre(".*\\.o_proj\\.weight$", ".*\\.down_proj\\.weight$"));
  EXPECT_EQ(all[1].type, Type::Column);
  EXPECT_TRUE(all[1].gather_output);
  EXPECT_EQ(all[2].shape, (std::vector<ShapeEntry>{{2, {}}, {-1, {}}}));
  EXPECT_EQ(all[2].partition_dim, 0);
  EXPECT_THAT(all[2].model_types, ElementsAre("llama", "qwen2"));
  EXPECT_EQ(all[3].shape, (std::vector<ShapeEntry>{{-1, {64, 16, 16}}, {-1, {}}}));
  EXPECT_EQ(all[4].type, Type::Skip);
  EXPECT_TRUE(all[4].grad_allreduce);
  EXPECT_FALSE(config.tensor_parallel.partition_config->use_default_specs);
}

TEST(Specs, AreShownAsTheyWereRead) {
  const std::string text = specs(R"([{"patterns": ["a"], "shape": [[4, 2], -1]}])");
  for (const Setting& one : explain_config(text, 2).settings)
    if (one.key == "tensor_parallel.partition_config.layer_specs")
      EXPECT_EQ(one.value, R"([{"partition_type":"column","patterns":["a"],"shape":[[4,2],-1]}])");
}

TEST(Specs, WrongOnesNameTheirPlaceInTheList) {
  const std::string at = "tensor_parallel.partition_config.layer_specs[1].";
  const auto of = [&](const std::string& spec) {
    return problems(specs(R"([{"patterns": ["a"]}, )" + spec + "]"), 2);
  };
  const auto one = [&](const std::string& start, const std::string& rest) {
    return ElementsAre(AllOf(StartsWith(at + start), HasSubstr(rest)));
  };
  EXPECT_THAT(of(R"({"patterns": ["a", "("]})"), one("patterns[1]: ", "got \"(\""));
  EXPECT_THAT(of(R"({"patterns": "a"})"), one("patterns: ", "expected a list of names, got \"a\""));
  EXPECT_THAT(of(R"({"partition_type": "row"})"), one("patterns: ", "got none"));
  EXPECT_THAT(of(R"({"patterns": []})"), one("patterns: ", "got none"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "partition_type": "rows"})"),
              one("partition_type: ", "Did you mean \"row\"?"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "partition_tipe": "row"})"),
              one("partition_tipe: ", "Did you mean \"partition_type\"?"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "shape": [2, 1.5]})"), one("shape: ", "whole numbers"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "shape": [2, [[1], 2]]})"),
              one("shape: ", "whole numbers"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "shape": []})"), one("shape: ", "whole numbers"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "shape": [[], -1]})"), one("shape: ", "whole numbers"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "shape": [-1, [2, 2]]})"),
              one("shape: ", "expected a list of sizes at partition_dim 0 only"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "shape": [[2, 0], -1]})"), one("shape: ", "at least 1"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "shape": [0, -1]})"), one("shape: ", "or -1"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "shape": [2, -1], "partition_dim": 2})"),
              one("shape: ", "expected an entry for partition_dim 2"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "partition_dim": -1})"),
              one("partition_dim: ", "expected at least 0, got -1"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "partition_type": "skip", "shape": [2, -1]})"),
              one("partition_type: ", "which cuts nothing"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "partition_type": "row", "gather_output": true})"),
              one("gather_output: ", "but for \"column\""));
  EXPECT_THAT(of(R"({"patterns": ["a"], "shape": [2, -1], "gather_output": true})"),
              one("gather_output: ", "beside shape"));
  EXPECT_THAT(of(R"({"patterns": ["a"], "grad_allreduce": true})"),
              one("grad_allreduce: ", "but for \"skip\""));
  EXPECT_THAT(of("3"), ElementsAre(HasSubstr("layer_specs: expected a list of specs, got [")));
}

TEST(Specs, HaveARowForEveryKeyThatIsShown) {
  const LayerSpec one{.patterns = {"a"},
                      .type = Type::Column,
                      .shape = {{2, {}}, {-1, {}}},
                      .partition_dim = 0,
                      .model_types = {"b"},
                      .gather_output = true,
                      .grad_allreduce = true};
  const Json shown = json_of_spec(one);
  EXPECT_EQ(shown.size(), layer_spec_rows().size());
  for (const Row& row : layer_spec_rows()) EXPECT_TRUE(shown.contains(row.path)) << row.path;
}

}  // namespace
}  // namespace equigrad
