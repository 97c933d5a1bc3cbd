// The interface of an optimizer of the caller's: an implementation that is none of torch's.
#include "engine/api/slice_optimizer.hpp"

#include "conformance/testing/small_run.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::expect_equal;
using conformance::SmallOptions;
using conformance::SmallRun;
using conformance::ranks::RankContext;

// SGD without momentum, as the engine's own.
struct PlainSlices final : SliceOptimizer {
  std::vector<at::Tensor> masters;
  double rate = 0.01;
  void own(const std::vector<OwnedSlice>& slices) override {
    for (const auto& slice : slices) {
      EXPECT_EQ(slice.master.numel(), slice.end - slice.begin);
      EXPECT_TRUE(slice.master.is_leaf());
      masters.push_back(slice.master);
    }
  }
  void step(const std::vector<at::Tensor>& gradients) override {
    ASSERT_EQ(gradients.size(), masters.size());
    for (std::size_t i = 0; i < masters.size(); ++i)
      if (gradients[i].defined()) masters[i].sub_(gradients[i] * rate);
  }
  std::vector<double> lr() const override { return {rate}; }
  void set_rates(const std::vector<double>& lr, const std::vector<double>& /*beta1*/) override {
    rate = lr.at(0);
  }
  std::vector<std::string> state_names(std::size_t /*slice*/) const override { return {}; }
  at::Tensor state(std::size_t /*slice*/, const std::string& /*name*/) override { return {}; }
  int64_t state_bytes() const override { return 0; }
  std::string kind() const override { return "plain slices"; }
  std::string numbers(std::size_t /*slice*/) const override { return {}; }
  void restore(std::size_t /*slice*/, const SliceStates& /*states*/,
               const std::string& /*numbers*/) override {}
};

TEST(SliceOptimizer, AnyImplementationOfTheInterfaceWillDo) {
  at_every_stage(3, [](RankContext& context, int stage) {
    const SmallOptions options{.stage = stage, .clipping = 0.25};
    SmallRun client(context, options), built_in(context, options);
    auto config = conformance::config_of(options, context.world_size());
    config.optimizer.kind = OptimizerConfig::Kind::Sgd;
    config.optimizer.weight_decay = 0;
    for (auto* run : {&client, &built_in}) {
      run->engine.reset();
      for (auto& [name, tensor, type] : run->parameters)
        tensor = at::sin(at::arange(tensor.numel()))
                     .view(tensor.sizes().vec())
                     .requires_grad_(tensor.requires_grad());
    }
    const ParameterGroup of_client{client.parameters, {}, {}};
    built_in.engine =
        initialize({ParameterGroup{built_in.parameters, {}, {}}}, config, built_in.group);
    config.optimizer.kind = OptimizerConfig::Kind::AdamW;  // overridden
    client.engine = initialize({of_client}, config, client.group, std::make_shared<PlainSlices>());
    for (int64_t micro = 0; micro < 3; ++micro) {
      client.train(micro);
      built_in.train(micro);
      client.engine->set_lr(0.5);
      built_in.engine->set_lr(0.5);
    }
    expect_equal(client.all(), built_in.all(), "the interface");
  });
}

}  // namespace
}  // namespace equigrad
