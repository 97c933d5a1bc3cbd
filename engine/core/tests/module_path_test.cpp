// A module whose parameters are tied, frozen, empty and 0-dim trains through initialize(module) bit
// for bit as it does through the core, at every stage.
#include <gmock/gmock.h>

#include <map>
#include <string>

#include "conformance/cases/recipe.hpp"
#include "conformance/on_rank/program.hpp"
#include "conformance/testing/small_run.hpp"

namespace equigrad::conformance {
namespace {

const CaseSpec kCase{.stage = 0,
                     .precision = Precision::Fp32,
                     .style = Style::LossBackward,
                     .world = 2,
                     .accumulation = 3,
                     .clip = Clip::Off,
                     .optimizer = Rule::AdamW,
                     .model = "irregular"};

std::string config_at(int stage, const reference::Model& model) {
  CaseSpec spec = kCase;
  spec.stage = stage;
  return config_text(spec, 0, model);
}

ParameterGroup everything_once(const reference::Model& model) {
  ParameterGroup all;
  for (const auto& [name, tensor] : reference::unique_parameters(model))
    all.parameters.push_back({name, tensor});
  return all;
}

// Everything two steps leave behind: gradients, masters, states, and every parameter whole.
std::map<std::string, at::Tensor> trained(Engine& engine, reference::Model& model,
                                          const reference::Data& data, int rank) {
  std::map<std::string, at::Tensor> all;
  const auto keep = [&all](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && tensor.numel() > 0) all[name] = tensor.clone();
  };
  for (int step = 0; step < 2; ++step) {
    engine.on_step([&](const std::vector<LocalShard>& shards) {
      for (const auto& shard : shards)
        keep(std::to_string(step) + " gradient " + shard.name, shard.gradient);
    });
    for (int index = 0; index < kCase.accumulation; ++index) {
      model.loss(data.make_batch("irregular", {7, step, rank, index})).backward();
      engine.step();
    }
  }
  for (const auto& shard : engine.local_shards()) {
    keep("master " + shard.name, shard.master);
    for (const auto& [name, state] : shard.state) keep(name + " " + shard.name, state);
  }
  for (const auto& [name, tensor] : reference::unique_parameters(model)) {
    keep("parameter " + name, engine.full_parameter(name));
    if (tensor.numel() == 0) EXPECT_EQ(engine.full_parameter(name).sizes(), tensor.sizes());
  }
  return all;
}

const reference::Data& text() {
  static const reference::Data data(reference::read_text({find_data("", false).text}), {});
  return data;
}

TEST(ModulePath, TheNastyModelHasWhatItIsHereFor) {
  EXPECT_EQ(ranks::on_ranks(1,
                            [](ranks::RankContext&) {
                              const auto model = reference::make_model("irregular", 7);
                              int frozen = 0, empty = 0, scalar = 0;
                              const auto unique = reference::unique_parameters(*model);
                              for (const auto& [name, tensor] : unique) {
                                frozen += tensor.requires_grad() ? 0 : 1;
                                empty += tensor.numel() == 0 ? 1 : 0;
                                scalar += tensor.dim() == 0 ? 1 : 0;
                              }
                              EXPECT_EQ(std::min({frozen, empty, scalar}), 1);
                              EXPECT_GT(model->named_parameters().size(), unique.size())
                                  << "one is tied";
                            }),
            "");
}

TEST(ModulePath, AModuleTrainsBitForBitAsItsParametersDo) {
  at_every_stage(kCase.world, [](ranks::RankContext& context, int stage) {
    const auto as_module = reference::make_model("irregular", 7);
    const auto as_parameters = reference::make_model("irregular", 7);
    const auto config = config_at(stage, *as_module);
    std::map<std::string, at::Tensor> got, want;
    {
      const auto engine = initialize(*as_module, config, context.group());
      got = trained(*engine, *as_module, text(), context.rank());
    }
    {
      const auto engine = initialize({everything_once(*as_parameters)},
                                     parse_config(config, kCase.world), context.group());
      want = trained(*engine, *as_parameters, text(), context.rank());
    }
    expect_equal(got, want, "initialize(module)");
    EXPECT_THAT(got, testing::Contains(testing::Key(testing::StartsWith("1 gradient"))));
    for (const auto& [name, start] :
         reference::unique_parameters(*reference::make_model("irregular", 7))) {
      if (start.requires_grad() || start.numel() == 0) continue;
      EXPECT_THAT(got.at("parameter " + name), oracle::HasTheBitsOf(start)) << name;
    }
  });
}

}  // namespace
}  // namespace equigrad::conformance
