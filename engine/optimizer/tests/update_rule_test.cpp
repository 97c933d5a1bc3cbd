// The update rules have the bits of the reference's plain loops, on the whole and on every slice.
#include "engine/optimizer/update_rule.hpp"

#include <array>
#include <map>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/sample.hpp"
#include "conformance/testing/threads.hpp"
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

// A correction of Adam's that stops somewhere is seen where beta2 is so near to 1 that it still
// counts; the last of these is beyond the whole numbers that fp32 holds.
TEST(UpdateRule, LateStepsHaveTheBitsOfTheReferenceLoops) {
  auto late = all_configs();
  const auto first = late.size();
  for (std::size_t i = 0; i < first; ++i) {
    auto slow = late[i];
    slow.name += ", slow betas";
    slow.config.beta1 = 1 - 1e-6, slow.config.beta2 = 1 - 1e-7;
    late.push_back(slow);
  }
  for (const auto& [name, config] : late) {
    Weights got(config, 70), want(config, 70);
    for (const int64_t step : {2, 99, 100, 101, 999, 1'000, 1'001, 1'024, 1'025, 4'097, 10'001,
                               65'536, 65'537, 1'000'001, 16'777'217}) {
      const auto gradient = gradient_of(step, 70);
      std::vector<float*> state;
      for (const auto& tensor : want.state) state.push_back(tensor.mutable_data_ptr<float>());
      reference::update<float>(spec_of(config), step, 70, want.parameter.mutable_data_ptr<float>(),
                               state, gradient.const_data_ptr<float>());
      update_(config, step, got.parameter, gradient.clone(), got.state);
      expect_equal(got, want, name + ", step " + std::to_string(step));
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

// Of masters, states and gradient.
struct Storage {
  at::ScalarType master, state, gradient;
};

std::vector<Storage> all_storages() {
  std::vector<Storage> all;
  for (const auto master : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto state : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const auto gradient : {at::kFloat, at::kBFloat16, at::kHalf}) {
        all.push_back({master, state, gradient});
      }
    }
  }
  return all;
}

// Any number, one in eight of them zero, subnormal, huge, infinite or NaN. Never negative for a
// second moment, so that its root is a number.
at::Tensor wild(int64_t numel, uint64_t seed, at::ScalarType dtype) {
  const std::array<float, 8> edges = {0.0F,     -0.0F, 0x1p-149F, -0x1p-130F,
                                      0x1p-24F, 3e38F, INFINITY,  NAN};
  const auto values = sample(numel, seed);
  for (int64_t i = 0; i < numel; ++i) {
    const auto word = reference::hash(seed * 1009 + static_cast<uint64_t>(i));
    if (word % 8 == 0) values[i] = edges[(word >> 8) % 8];
  }
  return values.to(dtype);
}

// The first of many, which are made once.
at::Tensor wild_of_many(int64_t numel, uint64_t seed, at::ScalarType dtype) {
  static std::map<uint64_t, at::Tensor> made;
  auto& all = made[seed];
  if (!all.defined()) all = wild(conformance::kManyNumel, seed, at::kFloat);
  return all.narrow(0, 0, numel).to(dtype, /*non_blocking=*/false, /*copy=*/true);
}

// The payload of a NaN is nobody's promise.
at::Tensor told(const at::Tensor& tensor) { return tensor.masked_fill(tensor.isnan(), NAN); }

struct Wild {
  at::Tensor parameter, gradient;
  std::vector<at::Tensor> state;

  Wild(const OptimizerConfig& config, int64_t numel, const Storage& storage)
      : parameter(wild(numel, 1, storage.master)), gradient(wild(numel, 2, storage.gradient)) {
    for (std::size_t i = 0; i < state_names(config).size(); ++i) {
      state.push_back(wild(numel, 3 + i, storage.state));
      if (i == 1) state[i].abs_();
    }
  }
};

void expect_equal(const Wild& got, const Wild& want, const std::string& what) {
  ASSERT_THAT(told(got.parameter), HasTheBitsOf(told(want.parameter))) << what;
  for (std::size_t i = 0; i < want.state.size(); ++i) {
    ASSERT_THAT(told(got.state[i]), HasTheBitsOf(told(want.state[i]))) << what << ", state " << i;
  }
}

TEST(UpdateRule, TheLoopHasTheBitsOfTheOperations) {
  std::vector<int64_t> numels{1023, 1025, 32'769};  // blocks of 2^10, chunks of 2^15
  for (int64_t numel = 1; numel <= 130; ++numel) numels.push_back(numel);
  for (const auto& [name, config] : all_configs()) {
    for (const int64_t numel : numels) {
      for (const int64_t step : {1, 2}) {
        Wild loop(config, numel, {at::kFloat, at::kFloat, at::kFloat});
        Wild operations(config, numel, {at::kFloat, at::kFloat, at::kFloat});
        update_(config, step, loop.parameter, loop.gradient, loop.state);
        update_by_operations_(config, step, operations.parameter, operations.gradient,
                              operations.state);
        expect_equal(loop, operations, name + ", " + std::to_string(numel));
      }
    }
    Wild none(config, 0, {at::kFloat, at::kFloat, at::kFloat});
    update_(config, 1, none.parameter, none.gradient, none.state);
    update_by_operations_(config, 1, none.parameter, none.gradient, none.state);
  }
}

// Widened, updated by the reference in fp32, and rounded once by ATen.
void update_plainly(const OptimizerConfig& config, int64_t step, Wild& weights) {
  auto parameter = weights.parameter.to(at::kFloat);
  const auto gradient = weights.gradient.to(at::kFloat);
  std::vector<at::Tensor> wide;
  std::vector<float*> state;
  for (const auto& tensor : weights.state) wide.push_back(tensor.to(at::kFloat));
  for (const auto& tensor : wide) state.push_back(tensor.mutable_data_ptr<float>());
  reference::update<float>(spec_of(config), step, parameter.numel(),
                           parameter.mutable_data_ptr<float>(), state,
                           gradient.const_data_ptr<float>());
  weights.parameter.copy_(parameter);
  for (std::size_t i = 0; i < wide.size(); ++i) weights.state[i].copy_(wide[i]);
}

TEST(UpdateRule, EveryStorageIsWidenedAndRoundedOnce) {
  for (const auto& [name, config] : all_configs()) {
    for (const auto& storage : all_storages()) {
      const bool same = storage.master == storage.state && storage.state == storage.gradient;
      // The operations go in chunks of 2^15.
      for (const int64_t numel : {1, 130, same ? 33'000 : 1100}) {
        Wild loop(config, numel, storage), operations(config, numel, storage);
        Wild plain(config, numel, storage);
        for (int64_t step = 1; step <= 3; ++step) {
          update_(config, step, loop.parameter, loop.gradient.clone(), loop.state);
          update_by_operations_(config, step, operations.parameter, operations.gradient.clone(),
                                operations.state);
          update_plainly(config, step, plain);
        }
        const auto what = name + ", " + std::to_string(numel);
        expect_equal(loop, plain, what);
        expect_equal(operations, plain, what);
      }
    }
  }
}

// The parameter and the states after two steps.
std::vector<at::Tensor> two_steps(const OptimizerConfig& config, int64_t numel,
                                  const Storage& storage, int threads) {
  const auto parameter = wild_of_many(numel, 1, storage.master);
  std::vector<at::Tensor> state;
  for (std::size_t i = 0; i < state_names(config).size(); ++i) {
    state.push_back(wild_of_many(numel, 3 + i, storage.state));
    if (i == 1) state[i].abs_();
  }
  for (const int64_t step : {1, 2}) {
    const auto gradient = wild_of_many(numel, 2, storage.gradient);
    const conformance::ThreadsGuard guard(threads);
    update_(config, step, parameter, gradient, state);
  }
  std::vector<at::Tensor> all{told(parameter)};
  for (const auto& tensor : state) all.push_back(told(tensor));
  return all;
}

TEST(UpdateRule, ThreadsChangeNoBit) {
  for (const auto& one : all_configs()) {
    for (const auto& storage : all_storages()) {
      const bool same = storage.master == storage.state && storage.state == storage.gradient;
      auto numels = conformance::numels_for_threads();
      if (same && storage.master != at::kFloat) numels = {3 * kernels::kGrainNumel + 1};
      if (!same) numels = {2 * kernels::kGrainNumel + 11};
      for (const int64_t numel : numels)
        conformance::expect_the_bits_of_one_thread(one.name, numel, /*loops=*/2, [&](int threads) {
          return two_steps(one.config, numel, storage, threads);
        });
    }
  }
}

TEST(UpdateRule, AnotherDtypeIsAnError) {
  const OptimizerConfig config;
  const auto wide = at::zeros({3}, at::kDouble);
  EXPECT_THAT(conformance::error_of([&] {
                update_(config, 1, wide, wide, {wide, wide});
              }),
              testing::HasSubstr("expected dtype Float, BFloat16 or Half, got Double"));
}

}  // namespace
}  // namespace equigrad::optimizer
