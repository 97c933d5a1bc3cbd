// Relation 34: an element-wise update on shards is the update of the whole, bit for bit, and both
// are the reference's. No ranks here: a shard does not know its neighbours.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <sstream>

#include "conformance/oracle/bits.hpp"
#include "engine/layout/partition.hpp"
#include "engine/optimizer/sharded_state.hpp"
#include "engine/optimizer/update_rule.hpp"
#include "property_tests/numbers.hpp"
#include "reference/optimizer.hpp"

namespace equigrad::property_tests {
namespace {

using conformance::oracle::compare;
using conformance::oracle::describe;
using Kind = OptimizerConfig::Kind;

constexpr int kSteps = 3;

OptimizerConfig any_rule() {
  OptimizerConfig rule;
  const auto thousandths = [](int end) { return *rc::gen::inRange(0, end) / 1000.0; };
  rule.kind = *rc::gen::element(Kind::Sgd, Kind::Adam, Kind::AdamW);
  rule.lr = *rc::gen::element(1e-3, 0.1, 3e-4, 0.0);
  rule.weight_decay = *rc::gen::element(0.0, 0.01, 0.3);
  rule.beta1 = thousandths(1000);
  rule.beta2 = thousandths(1000);
  rule.eps = *rc::gen::element(1e-8, 1e-6);
  rule.momentum = *rc::gen::element(0.0, 0.9, 0.5);
  rule.nesterov = rule.momentum != 0 && *rc::gen::arbitrary<bool>();
  rule.dampening = rule.nesterov ? 0 : thousandths(500);
  return rule;
}

reference::OptimizerSpec spec_of(const OptimizerConfig& rule) {
  reference::OptimizerSpec spec;
  spec.rule = rule.kind == Kind::Sgd    ? reference::Rule::Sgd
              : rule.kind == Kind::Adam ? reference::Rule::Adam
                                        : reference::Rule::AdamW;
  spec.lr = rule.lr;
  spec.weight_decay = rule.weight_decay;
  spec.beta1 = rule.beta1;
  spec.beta2 = rule.beta2;
  spec.eps = rule.eps;
  spec.momentum = rule.momentum;
  spec.dampening = rule.dampening;
  spec.nesterov = rule.nesterov;
  return spec;
}

// One line to know a case by.
std::string told(const OptimizerConfig& rule, int64_t numel, uint64_t seed) {
  std::ostringstream text;
  text << "rule " << static_cast<int>(rule.kind) << " lr " << rule.lr << " wd " << rule.weight_decay
       << " betas " << rule.beta1 << ", " << rule.beta2 << " eps " << rule.eps << " momentum "
       << rule.momentum << " dampening " << rule.dampening << " nesterov " << rule.nesterov
       << " numel " << numel << " seed " << seed;
  return text.str();
}

struct Weights {
  at::Tensor parameter;
  std::vector<at::Tensor> state;

  Weights(const OptimizerConfig& rule, int64_t numel, uint64_t seed)
      : parameter(spread(seed, 0, numel)), state(optimizer::state_names(rule).size()) {
    for (auto& tensor : state) tensor = at::zeros({numel});
  }
};

std::string difference(const std::string& what, const Weights& got, const Weights& want) {
  const auto parameter = compare(got.parameter, want.parameter);
  if (!parameter.equal()) return what + " parameter: " + describe(parameter);
  for (std::size_t i = 0; i < got.state.size(); ++i) {
    const auto state = compare(got.state[i], want.state[i]);
    if (!state.equal()) return what + " state " + std::to_string(i) + ": " + describe(state);
  }
  return "";
}

// Whole, by slices at `cuts`, and by the reference.
std::string updates_agree(const OptimizerConfig& rule, int64_t numel,
                          const std::vector<int64_t>& cuts, uint64_t seed) {
  Weights whole(rule, numel, seed), cut(rule, numel, seed), plain(rule, numel, seed);
  // From the first step on, or from one up to 2^20.
  const int64_t before = seed % 2 == 0 ? 0 : int64_t{1} << (seed / 2 % 21);
  for (int64_t step = before + 1; step <= before + kSteps; ++step) {
    const auto gradient = spread(seed, static_cast<uint64_t>(step), numel);
    optimizer::update_(rule, step, whole.parameter, gradient.clone(), whole.state);
    auto scratch = gradient.clone();
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto part = [&](const at::Tensor& tensor) {
        return tensor.slice(0, cuts[i], cuts[i + 1]);
      };
      std::vector<at::Tensor> state;
      for (const auto& tensor : cut.state) state.push_back(part(tensor));
      optimizer::update_(rule, step, part(cut.parameter), part(scratch), state);
    }
    std::vector<float*> states;
    for (auto& tensor : plain.state) states.push_back(tensor.mutable_data_ptr<float>());
    reference::update<float>(spec_of(rule), step, numel, plain.parameter.mutable_data_ptr<float>(),
                             states, gradient.const_data_ptr<float>());
    auto wrong = difference("slices against the whole,", cut, whole);
    if (wrong.empty()) wrong = difference("the whole against the reference,", whole, plain);
    if (!wrong.empty()) return "step " + std::to_string(step) + ", " + wrong;
  }
  return "";
}

RC_GTEST_PROP(Optimizer, UpdatesOfSlicesAreTheWholesAndTheReferences, ()) {
  at::set_num_threads(1);
  const auto rule = any_rule();
  // Beyond 2^15 a whole is updated in several chunks.
  const auto numel =
      *rc::gen::oneOf(rc::gen::inRange<int64_t>(1, 300), rc::gen::inRange<int64_t>(1, 300),
                      rc::gen::inRange<int64_t>(32'700, 33'000));
  auto cuts = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, numel + 1));
  cuts.push_back(0);
  cuts.push_back(numel);
  std::sort(cuts.begin(), cuts.end());
  const auto seed = *rc::gen::noShrink(rc::gen::inRange<uint64_t>(0, 1 << 30));
  const auto wrong = updates_agree(rule, numel, cuts, seed);
  RC_ASSERT((wrong.empty() ? "" : wrong + " in " + told(rule, numel, seed)) == "");
}

// A table of parameters in two groups, and which of them are used in each step.
struct Case {
  OptimizerConfig rule;
  std::vector<int64_t> numels;
  std::vector<std::vector<bool>> used;  // [step][parameter]
  std::vector<optimizer::GroupOverride> groups;
  optimizer::StateOptions stored;
  int shards = 1;
  int64_t bucket_size = 1;
  uint64_t seed = 0;
};

layout::ParameterTable table_of(const Case& one) {
  std::vector<layout::Registration> registrations;
  for (std::size_t i = 0; i < one.numels.size(); ++i)
    registrations.push_back(
        {"p" + std::to_string(i), &one.numels[i], {one.numels[i]}, true, i % 2});
  return layout::ParameterTable(registrations);
}

// One rank's flat shard space, filled from whole parameters; padding zero.
at::Tensor shard_space(const layout::BucketPlan& plan, int rank, uint64_t seed, uint64_t stream) {
  auto flat = at::zeros({plan.shard_numel()});
  for (const auto& bucket : plan.buckets())
    for (const auto& slot : bucket.slots) {
      const auto mine = layout::Partition(slot.numel, plan.shards()).range(rank);
      flat.narrow(0, bucket.offset + slot.offset, mine.numel())
          .copy_(spread(seed, stream + 100 * slot.parameter, slot.numel)
                     .slice(0, mine.begin, mine.end));
    }
  return flat;
}

// Moves what `flat` holds of each parameter into `wholes`; what is left over is padding.
std::string take(const layout::BucketPlan& plan, int rank, const at::Tensor& flat,
                 std::vector<at::Tensor>& wholes) {
  auto rest = flat.clone();
  for (const auto& bucket : plan.buckets())
    for (const auto& slot : bucket.slots) {
      const auto mine = layout::Partition(slot.numel, plan.shards()).range(rank);
      auto part = rest.narrow(0, bucket.offset + slot.offset, mine.numel());
      wholes[slot.parameter].slice(0, mine.begin, mine.end).copy_(part);
      part.zero_();
    }
  return compare(rest, at::zeros_like(rest)).equal() ? "" : "padding is not zero";
}

// Masters and states of every parameter after kSteps, put together from all shards.
std::string train(const Case& one, int shards, std::vector<at::Tensor>& wholes) {
  const auto table = table_of(one);
  const layout::BucketPlan plan(table, shards, one.bucket_size);
  memory::Ledger ledger;
  const std::size_t kinds = 1 + optimizer::state_names(one.rule).size();
  std::vector<std::vector<at::Tensor>> by_kind(kinds);
  for (auto& kind : by_kind)
    for (const int64_t numel : one.numels) kind.push_back(at::full({numel}, NAN));
  for (int rank = 0; rank < shards; ++rank) {
    optimizer::ShardedState state(optimizer::by_group(one.rule, one.groups), table, plan,
                                  one.stored, ledger);
    auto masters = state.masters();
    masters.copy_(shard_space(plan, rank, one.seed, 0));
    for (int step = 0; step < kSteps; ++step)
      state.update(shard_space(plan, rank, one.seed, static_cast<uint64_t>(step) + 1),
                   one.used[static_cast<std::size_t>(step)]);
    std::vector<at::Tensor> flats = {state.masters()};
    flats.insert(flats.end(), state.states().begin(), state.states().end());
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      const auto wrong = take(plan, rank, flats[kind].to(at::kFloat), by_kind[kind]);
      if (!wrong.empty()) return wrong;
    }
  }
  for (const auto& kind : by_kind) wholes.insert(wholes.end(), kind.begin(), kind.end());
  return "";
}

// Which depend on whether an element is in a vector or in what is left over.
at::Tensor without_signs_of_nan(const at::Tensor& values) {
  return at::where(values.isnan(), at::full({}, NAN), values);
}

std::string shards_agree_with_the_whole(const Case& one) {
  std::vector<at::Tensor> sharded, whole;
  auto wrong = train(one, one.shards, sharded);
  if (wrong.empty()) wrong = train(one, 1, whole);
  for (std::size_t i = 0; wrong.empty() && i < whole.size(); ++i) {
    const auto report = compare(without_signs_of_nan(sharded[i]), without_signs_of_nan(whole[i]));
    if (!report.equal()) wrong = "tensor " + std::to_string(i) + ": " + describe(report);
  }
  if (wrong.empty()) return "";
  return wrong + " in " + told(one.rule, static_cast<int64_t>(one.numels.size()), one.seed) +
         " sizes " + testing::PrintToString(one.numels) + " shards " + std::to_string(one.shards) +
         " bucket " + std::to_string(one.bucket_size) + " masters in " +
         c10::toString(one.stored.master) + " states in " + c10::toString(one.stored.state);
}

RC_GTEST_PROP(Optimizer, ShardedStatesAreSlicesOfTheWholeAndTheirPaddingStaysZero, ()) {
  at::set_num_threads(1);
  Case one;
  one.rule = any_rule();
  const auto parameters = static_cast<std::size_t>(*rc::gen::inRange(1, 7));
  one.numels =
      *rc::gen::container<std::vector<int64_t>>(parameters, rc::gen::inRange<int64_t>(0, 80));
  for (int step = 0; step < kSteps; ++step)
    one.used.push_back(
        *rc::gen::container<std::vector<bool>>(parameters, rc::gen::arbitrary<bool>()));
  one.groups = {{}, {0.05, 0.1}};
  one.stored.master = *rc::gen::element(at::kFloat, at::kBFloat16, at::kHalf);
  one.stored.state = *rc::gen::element(at::kFloat, at::kBFloat16, at::kHalf);
  one.shards = *rc::gen::inRange(1, 7);
  one.bucket_size = *rc::gen::inRange<int64_t>(1, 200);
  one.seed = *rc::gen::noShrink(rc::gen::inRange<uint64_t>(0, 1 << 30));
  RC_ASSERT(shards_agree_with_the_whole(one) == "");
}

}  // namespace
}  // namespace equigrad::property_tests
