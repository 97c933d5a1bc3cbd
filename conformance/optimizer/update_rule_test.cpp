// The update rules have the bits of the reference's plain loops, on the whole and on every slice.
#include "engine/optimizer/update_rule.hpp"

#include "conformance/oracle/bits_matcher.hpp"
#include "conformance/sample.hpp"
#include "reference/optimizer.hpp"

namespace equigrad::optimizer {
namespace {

using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using Kind = OptimizerConfig::Kind;

struct NamedConfig {
  std::string name;
  OptimizerConfig config;
};

std::vector<NamedConfig> all_configs() {
  std::vector<NamedConfig> all;
  const auto add = [&](const std::string& name, Kind kind, auto set) {
    OptimizerConfig config;
    config.kind = kind;
    config.lr = 0.0123;
    set(config);
    // Without weight decay Adam is AdamW.
    if (kind != Kind::Adam) all.push_back({name, config});
    config.weight_decay = 0.07;
    all.push_back({name + ", weight decay", config});
  };
  add("AdamW", Kind::AdamW, [](auto&) {});
  add("AdamW, other betas", Kind::AdamW,
      [](auto& c) { c.beta1 = 0.85, c.beta2 = 0.97, c.eps = 1e-5; });
  add("Adam", Kind::Adam, [](auto&) {});
  add("SGD", Kind::Sgd, [](auto&) {});
  add("SGD, momentum", Kind::Sgd, [](auto& c) { c.momentum = 0.9; });
  add("SGD, dampening", Kind::Sgd, [](auto& c) { c.momentum = 0.9, c.dampening = 0.3; });
  add("SGD, Nesterov", Kind::Sgd, [](auto& c) { c.momentum = 0.9, c.nesterov = true; });
  return all;
}

reference::OptimizerSpec spec_of(const OptimizerConfig& config) {
  reference::OptimizerSpec spec;
  spec.rule = config.kind == Kind::AdamW  ? reference::Rule::AdamW
              : config.kind == Kind::Adam ? reference::Rule::Adam
                                          : reference::Rule::Sgd;
  spec.lr = config.lr;
  spec.weight_decay = config.weight_decay;
  spec.beta1 = config.beta1;
  spec.beta2 = config.beta2;
  spec.eps = config.eps;
  spec.momentum = config.momentum;
  spec.dampening = config.dampening;
  spec.nesterov = config.nesterov;
  return spec;
}

struct Weights {
  at::Tensor parameter;
  std::vector<at::Tensor> state;

  Weights(const OptimizerConfig& config, int64_t numel) : parameter(sample(numel, 1)) {
    for (std::size_t i = 0; i < state_names(config).size(); ++i) {
      state.push_back(at::zeros({numel}));
    }
  }
};

constexpr int64_t kSteps = 5;

at::Tensor gradient_of(int64_t step, int64_t numel) {
  return sample(numel, static_cast<uint64_t>(step) + 50);
}

Weights by_the_reference(const OptimizerConfig& config, int64_t numel) {
  Weights weights(config, numel);
  std::vector<float*> state;
  for (const auto& tensor : weights.state) state.push_back(tensor.mutable_data_ptr<float>());
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto gradient = gradient_of(step, numel);
    reference::update<float>(spec_of(config), step, numel,
                             weights.parameter.mutable_data_ptr<float>(), state,
                             gradient.const_data_ptr<float>());
  }
  return weights;
}

// In slices that begin at these elements.
Weights by_the_engine(const OptimizerConfig& config, int64_t numel, std::vector<int64_t> begins) {
  Weights weights(config, numel);
  begins.push_back(numel);
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto gradient = gradient_of(step, numel);
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
      const auto slice = [&](const at::Tensor& whole) {
        return whole.slice(0, begins[i], begins[i + 1]);
      };
      std::vector<at::Tensor> state;
      for (const auto& tensor : weights.state) state.push_back(slice(tensor));
      update_(config, step, slice(weights.parameter), slice(gradient), state);
    }
  }
  return weights;
}

void expect_equal(const Weights& got, const Weights& want, const std::string& what) {
  EXPECT_THAT(got.parameter, HasTheBitsOf(want.parameter)) << what;
  for (std::size_t i = 0; i < want.state.size(); ++i) {
    EXPECT_THAT(got.state[i], HasTheBitsOf(want.state[i])) << what << ", state " << i;
  }
}

TEST(UpdateRule, HasTheBitsOfTheReferenceLoops) {
  for (const auto& [name, config] : all_configs()) {
    // The last is longer than two chunks.
    for (const int64_t numel : {1, 70, 65'537}) {
      expect_equal(by_the_engine(config, numel, {0}), by_the_reference(config, numel),
                   name + ", " + std::to_string(numel));
    }
  }
}

TEST(UpdateRule, ASliceHasTheBitsOfTheWhole) {
  for (const auto& [name, config] : all_configs()) {
    const auto whole = by_the_engine(config, 70, {0});
    for (int64_t cut = 0; cut <= 70; ++cut) {
      expect_equal(by_the_engine(config, 70, {0, cut}), whole,
                   name + ", cut at " + std::to_string(cut));
    }
    std::vector<int64_t> begins;
    for (int64_t begin = 0; begin < 70; ++begin) begins.push_back(begin);
    expect_equal(by_the_engine(config, 70, begins), whole, name + ", element by element");
  }
}

TEST(UpdateRule, KeepsTheStatesThatItsKindNeeds) {
  OptimizerConfig config;
  EXPECT_EQ(state_names(config), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  config.kind = Kind::Sgd;
  EXPECT_EQ(state_names(config), std::vector<std::string>{});
  config.momentum = 0.5;
  EXPECT_EQ(state_names(config), std::vector<std::string>{"momentum_buffer"});
}

TEST(UpdateRule, SettingsThatTheTestsUseMatter) {
  // Every configuration of this file ends elsewhere: none of the comparisons above repeats another.
  const auto configs = all_configs();
  for (std::size_t i = 0; i < configs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_THAT(by_the_engine(configs[i].config, 70, {0}).parameter,
                  testing::Not(HasTheBitsOf(by_the_engine(configs[j].config, 70, {0}).parameter)))
          << configs[i].name << " and " << configs[j].name;
    }
  }
}

}  // namespace
}  // namespace equigrad::optimizer
