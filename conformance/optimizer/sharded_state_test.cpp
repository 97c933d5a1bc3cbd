// Which parameters a step writes, with whose settings and whose step count.
#include "engine/optimizer/sharded_state.hpp"

#include "conformance/oracle/bits_matcher.hpp"
#include "conformance/sample.hpp"
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
  trace::Ledger ledger;
  OptimizerConfig config;
  ShardedState state;

  explicit Optimizer(const std::vector<std::size_t>& groups = {0, 0, 0, 0}, int shards = 1)
      : table(table_in_groups(groups)),
        plan(table, shards, 12),
        state(config, {{}, {0.5, 0.01}}, table, plan, c10::kCPU, ledger) {
    state.masters().copy_(sample(plan.shard_numel(), 1));
  }
  at::Tensor of(std::size_t parameter, const at::Tensor& flat) const {
    const auto where = *plan.slot_of(parameter);
    const auto& slot = plan.slot(where);
    return flat.narrow(0, plan.buckets()[where.bucket].offset + slot.offset, slot.shard_numel);
  }
  at::Tensor gradient(uint64_t seed) const { return sample(plan.shard_numel(), seed); }
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

TEST(ShardedState, RunsOfParametersHaveTheBitsOfParametersAlone) {
  for (const int shards : {1, 3}) {
    const std::vector<std::size_t> groups{0, 1, 1, 0};
    Optimizer got(groups, shards), want(groups, shards);
    OptimizerConfig other = want.config;
    other.lr = 0.5;
    other.weight_decay = 0.01;
    const std::vector<Used> windows{Used{true, true, true, true}, Used{true, false, true, true},
                                    Used{false, true, true, false}, Used{true, true, true, true}};
    std::vector<int64_t> steps(4, 0);
    for (std::size_t window = 0; window < windows.size(); ++window) {
      const auto gradient = got.gradient(window + 9);
      for (std::size_t i = 0; i < 4; ++i) {
        if (!windows[window][i]) continue;
        update_alone(want, gradient, i, ++steps[i], groups[i] == 0 ? want.config : other);
      }
      got.state.update(gradient, windows[window]);
      expect_equal(got, want);
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(got.state.steps_of(i), steps[i]);
    }
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
  EXPECT_EQ(it.state.steps_of(2), 1);
  EXPECT_EQ(it.state.steps_of(3), 2);
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

TEST(ShardedState, ChargesMastersAndStates) {
  const Optimizer it({0, 0, 0, 0}, 3);
  const int64_t bytes = 4 * (2 + 2 + 3 + 3);
  EXPECT_EQ(it.ledger.bytes(trace::Category::MasterWeights), bytes);
  EXPECT_EQ(it.ledger.bytes(trace::Category::OptimizerState), 2 * bytes);
  EXPECT_EQ(it.state.names(), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
}

}  // namespace
}  // namespace equigrad::optimizer
