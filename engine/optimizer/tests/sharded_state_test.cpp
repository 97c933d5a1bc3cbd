// Which parameters a step writes, with whose settings and whose step count.
#include "engine/optimizer/sharded_state.hpp"

#include <ATen/Context.h>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/optimizer/update_rule.hpp"

namespace equigrad::optimizer {
namespace {

using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using Used = std::vector<bool>;

layout::ParameterTable table_in_groups(const std::vector<std::size_t>& group_by_parameter) {
  std::vector<layout::Registration> registrations;
  for (std::size_t i = 0; i < group_by_parameter.size(); ++i) {
    registrations.push_back({"p" + std::to_string(i),
                             &group_by_parameter[i],
                             {static_cast<int64_t>(5 + i)},
                             true,
                             group_by_parameter[i]});
  }
  return layout::ParameterTable(registrations);
}

// Four parameters of 5, 6, 7 and 8 elements; group 1 has its own lr and weight decay.
struct Optimizer {
  layout::ParameterTable table;
  layout::BucketPlan plan;
  memory::Ledger ledger;
  OptimizerConfig config;
  ShardedState state;

  explicit Optimizer(const std::vector<std::size_t>& groups = {0, 0, 0, 0}, int shards = 1,
                     const StateOptions& options = {})
      : table(table_in_groups(groups)),
        plan(table, shards, 12),
        state(by_group(config, {{}, {0.5, 0.01}}), table, plan, options, ledger) {
    state.masters().copy_(sample(plan.shard_numel(), 1));
  }
  at::Tensor of(std::size_t parameter, const at::Tensor& flat) const {
    const auto where = *plan.slot_of(parameter);
    const auto& slot = plan.slot(where);
    return flat.narrow(0, plan.buckets()[where.bucket].offset + slot.offset, slot.shard_numel);
  }
  at::Tensor gradient(uint64_t seed, at::ScalarType dtype = at::kFloat) const {
    return sample(plan.shard_numel(), seed, dtype);
  }
};

// Every parameter alone, by the rule itself.
void update_alone(Optimizer& it, const at::Tensor& gradient, std::size_t parameter, int64_t step,
                  const OptimizerConfig& config) {
  std::vector<at::Tensor> states;
  for (const auto& state : it.state.states()) states.push_back(it.of(parameter, state));
  update_(config, step, it.of(parameter, it.state.masters()), it.of(parameter, gradient).clone(),
          states);
}

void expect_equal(const Optimizer& got, const Optimizer& want) {
  EXPECT_THAT(got.state.masters(), HasTheBitsOf(want.state.masters()));
  for (std::size_t i = 0; i < want.state.states().size(); ++i) {
    EXPECT_THAT(got.state.states()[i], HasTheBitsOf(want.state.states()[i]));
  }
}

const std::vector<StateOptions>& storages() {
  static const std::vector<StateOptions> all{{},
                                             {at::kBFloat16, at::kBFloat16},
                                             {at::kHalf, at::kFloat},
                                             {at::kBFloat16, at::kFloat},
                                             {at::kFloat, at::kBFloat16}};
  return all;
}

void runs_have_the_bits_of_parameters_alone(int shards, const StateOptions& options) {
  const std::vector<std::size_t> groups{0, 1, 1, 0};
  Optimizer got(groups, shards, options), want(groups, shards, options);
  OptimizerConfig other = want.config;
  other.lr = 0.5;
  other.weight_decay = 0.01;
  const std::vector<Used> windows{Used{true, true, true, true}, Used{true, false, true, true},
                                  Used{false, true, true, false}, Used{true, true, true, true}};
  std::vector<int64_t> steps(4, 0);
  for (std::size_t window = 0; window < windows.size(); ++window) {
    const auto gradient = got.gradient(window + 9, options.master);
    for (std::size_t i = 0; i < 4; ++i) {
      if (!windows[window][i]) continue;
      update_alone(want, gradient, i, ++steps[i], groups[i] == 0 ? want.config : other);
    }
    got.state.update(gradient, windows[window]);
    expect_equal(got, want);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(got.state.steps()[i], steps[i]);
  }
}

TEST(ShardedState, RunsOfParametersHaveTheBitsOfParametersAlone) {
  for (const int shards : {1, 3}) {
    for (const auto& options : storages()) runs_have_the_bits_of_parameters_alone(shards, options);
  }
}

TEST(ShardedState, AParameterThatNobodyUsedKeepsEveryBitAndItsStepCount) {
  Optimizer it;
  it.state.update(it.gradient(2), {true, true, true, true});
  const auto master = it.of(2, it.state.masters()).clone();
  const auto moment = it.of(2, it.state.states()[0]).clone();
  const auto square = it.of(2, it.state.states()[1]).clone();
  it.state.update(it.gradient(3), {true, true, false, true});
  EXPECT_THAT(it.of(2, it.state.masters()), HasTheBitsOf(master));
  EXPECT_THAT(it.of(2, it.state.states()[0]), HasTheBitsOf(moment));
  EXPECT_THAT(it.of(2, it.state.states()[1]), HasTheBitsOf(square));
  EXPECT_EQ(it.state.steps()[2], 1);
  EXPECT_EQ(it.state.steps()[3], 2);
}

TEST(ShardedState, AGroupOverridesItsOwnSettingsOnly) {
  Optimizer plain({0, 0, 0, 0}), grouped({0, 1, 0, 0});
  plain.state.update(plain.gradient(2), {true, true, true, true});
  grouped.state.update(grouped.gradient(2), {true, true, true, true});
  for (const std::size_t same : std::vector<std::size_t>{0, 2, 3}) {
    EXPECT_THAT(grouped.of(same, grouped.state.masters()),
                HasTheBitsOf(plain.of(same, plain.state.masters())));
  }
  EXPECT_THAT(grouped.of(1, grouped.state.masters()),
              testing::Not(HasTheBitsOf(plain.of(1, plain.state.masters()))));
}

TEST(ShardedState, ChargesMastersAndStatesInTheirOwnTypes) {
  for (const auto& options : storages()) {
    const Optimizer it({0, 0, 0, 0}, 3, options);
    const int64_t numel = 2 + 2 + 3 + 3;
    const auto bytes = [&](at::ScalarType dtype) { return numel * (dtype == at::kFloat ? 4 : 2); };
    EXPECT_EQ(it.ledger.bytes(memory::Category::MasterWeights), bytes(options.master));
    EXPECT_EQ(it.ledger.bytes(memory::Category::OptimizerState), 2 * bytes(options.state));
    EXPECT_EQ(it.state.masters().scalar_type(), options.master);
    EXPECT_EQ(it.state.states()[1].scalar_type(), options.state);
    EXPECT_EQ(it.state.state_names(0), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  }
}

TEST(ShardedState, AGradientThatIsThereIsNotCopied) {
  // Locked pages are for a device that is beside the CPU: here they are asked for in vain.
  Optimizer it({0, 0, 0, 0}, 1, {.pin_memory = !at::hasCUDA()});
  it.state.update(it.gradient(2), {true, true, true, true});
  EXPECT_EQ(it.ledger.peak_bytes(memory::Category::Gradients), 0);
  EXPECT_FALSE(it.state.masters().is_pinned());
}

TEST(ShardedState, AnotherDtypeIsAnError) {
  for (const StateOptions& options :
       {StateOptions{at::kDouble, at::kFloat}, StateOptions{at::kFloat, at::kDouble}}) {
    EXPECT_THAT(conformance::error_of([&] {
                  Optimizer({0, 0, 0, 0}, 1, options);
                }),
                testing::HasSubstr("[optimizer.state] expected dtype Float, BFloat16 or Half, got "
                                   "Double"));
  }
}

TEST(ShardedState, AGradientOfAnotherShapeAndMissingUsesAreBrokenInvariants) {
  Optimizer it;
  const Used all(4, true);
  EXPECT_THAT(conformance::error_of([&] {
                it.state.update(it.gradient(3).view({1, -1}), all);
              }),
              testing::HasSubstr("the gradient is flat over the shard space"));
  EXPECT_THAT(conformance::error_of([&] { it.state.update(it.gradient(3), Used(3, true)); }),
              testing::HasSubstr("every parameter was used or was not"));
}

}  // namespace
}  // namespace equigrad::optimizer
