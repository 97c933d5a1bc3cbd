// 16. Its parts: the rules of update, element by element, alone and on shards.
#include <ATen/ATen.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "conformance/contract/parts/drawn.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/kernels/parallel.hpp"
#include "engine/kernels/update.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/memory/ledger.hpp"
#include "engine/optimizer/sharded_state.hpp"
#include "engine/optimizer/update_rule.hpp"

namespace equigrad::conformance::contract {
namespace {

using memory::Category;

// One element, and what the rule keeps of it.
struct Updated {
  float p, first, second;  // exp_avg or the momentum's buffer, exp_avg_sq
};

// Every line of a page's formula in fp32, its factors in doubles, rounded once.
Updated adam_of(const OptimizerConfig& config, int64_t step, Updated at, float g) {
  const auto t = static_cast<double>(step);
  const auto fp32 = [](double factor) { return static_cast<float>(factor); };
  if (config.kind == OptimizerConfig::Kind::Adam && config.weight_decay != 0)
    g = g + at.p * fp32(config.weight_decay);
  if (config.kind == OptimizerConfig::Kind::AdamW && config.weight_decay != 0)
    at.p = at.p * fp32(1 - config.lr * config.weight_decay);
  at.first = at.first * fp32(config.beta1) + g * fp32(1 - config.beta1);
  at.second = at.second * fp32(config.beta2) + g * g * fp32(1 - config.beta2);
  const float root = fp32(1 / std::sqrt(1 - std::pow(config.beta2, t)));
  const float length =
      static_cast<float>(std::sqrt(static_cast<double>(at.second))) * root + fp32(config.eps);
  at.p = at.p - at.first / length * fp32(config.lr / (1 - std::pow(config.beta1, t)));
  return at;
}

Updated sgd_of(const OptimizerConfig& config, int64_t step, Updated at, float d) {
  const auto fp32 = [](double factor) { return static_cast<float>(factor); };
  if (config.weight_decay != 0) d = d + at.p * fp32(config.weight_decay);
  if (config.momentum != 0) {
    if (step > 1) {
      const float fresh = d * fp32(1 - config.dampening);
      at.first = at.first * fp32(config.momentum) + fresh;
    } else {
      at.first = d;
    }
    d = config.nesterov ? d + at.first * fp32(config.momentum) : at.first;
  }
  at.p = at.p - d * fp32(config.lr);
  return at;
}

Updated updated(const OptimizerConfig& config, int64_t step, Updated at, float gradient) {
  return config.kind == OptimizerConfig::Kind::Sgd ? sgd_of(config, step, at, gradient)
                                                   : adam_of(config, step, at, gradient);
}

const std::vector<OptimizerConfig>& rules_of_update() {
  static const std::vector<OptimizerConfig> kRules = {
      {.kind = OptimizerConfig::Kind::AdamW, .lr = 0.01, .weight_decay = 0.1},
      {.kind = OptimizerConfig::Kind::AdamW, .lr = 0.3, .beta1 = 0.5, .beta2 = 0.75, .eps = 0.125},
      {.kind = OptimizerConfig::Kind::Adam, .lr = 0.02, .weight_decay = 0.3, .beta1 = 0},
      {.kind = OptimizerConfig::Kind::Adam, .lr = 0.1, .eps = 1e-3},
      {.kind = OptimizerConfig::Kind::Sgd, .lr = 0.7},
      {.kind = OptimizerConfig::Kind::Sgd, .lr = 0.3, .weight_decay = 0.2},
      {.kind = OptimizerConfig::Kind::Sgd, .lr = 0.3, .momentum = 0.9},
      {.kind = OptimizerConfig::Kind::Sgd,
       .lr = 0.2,
       .weight_decay = 0.1,
       .momentum = 0.8,
       .dampening = 0.25},
      {.kind = OptimizerConfig::Kind::Sgd,
       .lr = 0.1,
       .weight_decay = 0.3,
       .momentum = 0.7,
       .nesterov = true}};
  return kRules;
}

std::vector<std::string> names_of(const OptimizerConfig& rule) {
  if (rule.kind != OptimizerConfig::Kind::Sgd) return {"exp_avg", "exp_avg_sq"};
  return rule.momentum != 0 ? std::vector<std::string>{"momentum_buffer"}
                            : std::vector<std::string>{};
}

at::ScalarType torch_type(Element type) {
  return type == Element::Fp32 ? at::kFloat : type == Element::Bf16 ? at::kBFloat16 : at::kHalf;
}

Floats floats_of(const at::Tensor& tensor) {
  const auto wide = tensor.to(at::kFloat).contiguous();
  const auto* first = wide.const_data_ptr<float>();
  return {first, first + wide.numel()};
}

// What an update works on, in the middle of memory that it must leave as it is.
struct Operands {
  std::array<Element, 4> types;  // of parameter, first, second, gradient
  std::array<at::Tensor, 4> all;
  int64_t numel;

  static constexpr int64_t kAround = 3;
  Operands(Draws& draws, int64_t size, const std::array<Element, 4>& of) : types(of), numel(size) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto values = drawn_all(draws, numel + 2 * kAround, -6, 2);
      if (i == 2)
        for (auto& value : values) value = std::fabs(value);
      all[i] = at::tensor(values, at::kFloat).to(torch_type(types[i]));
    }
  }
  Operands copy() const {
    Operands other = *this;
    for (auto& tensor : other.all) tensor = tensor.clone();
    return other;
  }
  at::Tensor part(std::size_t i) const { return all[i].narrow(0, kAround, numel); }
  std::vector<at::Tensor> states(const OptimizerConfig& rule) const {
    std::vector<at::Tensor> some;
    for (std::size_t i = 0; i < names_of(rule).size(); ++i) some.push_back(part(i + 1));
    return some;
  }
};

// By the formula; each number rounded to its own type at the end.
std::array<Floats, 3> after(const OptimizerConfig& rule, int64_t step, const Operands& before) {
  std::array<Floats, 4> all;
  for (std::size_t i = 0; i < 4; ++i) all[i] = floats_of(before.all[i]);
  for (auto i = place(Operands::kAround); i < place(Operands::kAround + before.numel); ++i) {
    const Updated got = updated(rule, step, {all[0][i], all[1][i], all[2][i]}, all[3][i]);
    all[0][i] = got.p;
    all[1][i] = got.first;
    all[2][i] = got.second;
  }
  return {Kept(all[0], before.types[0]).wide, Kept(all[1], before.types[1]).wide,
          Kept(all[2], before.types[2]).wide};
}

void check_after(Play& play, const Operands& got, const std::array<Floats, 3>& want,
                 const std::string& what) {
  for (std::size_t i = 0; i < want.size(); ++i)
    check_same(play, what + ", operand " + std::to_string(i) + " of " + std::to_string(got.numel),
               floats_of(got.all[i]), want[i]);
}

std::string word_of(const OptimizerConfig& rule, int64_t step) {
  const std::string kind = rule.kind == OptimizerConfig::Kind::Sgd    ? "SGD"
                           : rule.kind == OptimizerConfig::Kind::Adam ? "Adam"
                                                                      : "AdamW";
  return kind + " of rate " + std::to_string(rule.lr) + " at step " + std::to_string(step);
}

// By the loop, by the loop in every set of instructions, and by torch's operations.
void check_rule(Play& play, const OptimizerConfig& rule, int64_t step, const Operands& before) {
  auto want = after(rule, step, before);
  if (play.fault() && before.numel > 0) want[0][Operands::kAround] += 1;
  const auto what = word_of(rule, step);
  const auto loop = before.copy(), operations = before.copy();
  optimizer::update_(rule, step, loop.part(0), loop.part(3), loop.states(rule));
  check_after(play, loop, want, what + " by a loop");
  optimizer::update_by_operations_(rule, step, operations.part(0), operations.part(3),
                                   operations.states(rule));
  check_after(play, operations, want, what + " by operations");
}

void check_sets(Play& play, Draws& draws) {
  const auto of = [](const Operands& operands, std::size_t i) {
    return kernels::Stored{operands.part(i).mutable_data_ptr(), operands.types[i]};
  };
  const auto fp32 = [](double factor) { return static_cast<float>(factor); };
  const auto &adam = rules_of_update()[3], &sgd = rules_of_update()[7];
  for (const auto set : instruction_sets())
    for (const int64_t numel : {63, 1030}) {
      const Operands before(draws, numel,
                            {Element::Fp32, Element::Bf16, Element::Fp32, Element::Fp16});
      const Operands first = before.copy(), second = before.copy();
      const kernels::StoredConst g{first.part(3).const_data_ptr(), Element::Fp16};
      kernels::adam({.keep = 1,
                     .decays = false,
                     .decay = 0.5,
                     .beta1 = fp32(adam.beta1),
                     .fresh1 = fp32(1 - adam.beta1),
                     .beta2 = fp32(adam.beta2),
                     .fresh2 = fp32(1 - adam.beta2),
                     .root = fp32(1 / std::sqrt(1 - adam.beta2 * adam.beta2)),
                     .eps = fp32(adam.eps),
                     .rate = fp32(adam.lr / (1 - adam.beta1 * adam.beta1))},
                    of(first, 0), of(first, 1), of(first, 2), g, numel, set);
      check_after(play, first, after(adam, 2, before), "Adam on a set of instructions");
      play.check("a gradient is read only", at::equal(first.all[3], before.all[3]));
      const auto buffer = of(second, 1);
      kernels::sgd({.decays = true,
                    .decay = fp32(sgd.weight_decay),
                    .first = false,
                    .momentum = fp32(sgd.momentum),
                    .fresh = fp32(1 - sgd.dampening),
                    .nesterov = false,
                    .rate = fp32(sgd.lr)},
                   of(second, 0), &buffer, g, numel, set);
      check_after(play, second, after(sgd, 9, before), "SGD on a set of instructions");
    }
}

void check_update_threads(Play& play, Draws& draws) {
  constexpr int64_t kNumel = 2 * kernels::kGrainNumel + 7;
  const std::array<Element, 4> types = {Element::Fp32, Element::Fp32, Element::Fp32, Element::Bf16};
  for (const std::size_t number : {0U, 5U, 8U}) {
    const auto& rule = rules_of_update()[number];
    const Operands one(draws, kNumel, types), two = one.copy();
    optimizer::update_(rule, 3, one.part(0), one.part(3), one.states(rule));
    const Threads guard(2);
    const auto before = kernels::parts_on_other_threads();
    optimizer::update_(rule, 3, two.part(0), two.part(3), two.states(rule));
    play.check("a large update runs on threads, with the same bits",
               kernels::parts_on_other_threads() == before + 1 &&
                   at::equal(one.all[0], two.all[0]) && at::equal(one.all[1], two.all[1]) &&
                   at::equal(one.all[2], two.all[2]));
  }
}

void check_update_refusals(Play& play) {
  const auto x = at::ones({4}), longer = at::ones({5}), wide = at::ones({4}, at::kDouble);
  const auto &adam = rules_of_update()[0], &sgd = rules_of_update()[4],
             &heavy = rules_of_update()[6];
  const auto refuse = [&](const std::string& words, const OptimizerConfig& rule, int64_t step,
                          const at::Tensor& p, const at::Tensor& g,
                          const std::vector<at::Tensor>& states) {
    play.refuse("[optimizer.update] " + words,
                [&] { optimizer::update_(rule, step, p, g, states); });
  };
  const std::string broken = "broken invariant: ",
                    states = broken + "operands have one length, and";
  const std::string dtype = "expected dtype Float, BFloat16 or Half, got Double";
  refuse(broken + "steps count from 1", sgd, 0, x, x, {});
  refuse(states, sgd, 1, x, longer, {});
  refuse(states, sgd, 1, x, x, {x});
  refuse(states, heavy, 1, x, x, {});
  refuse(states, adam, 1, x, x, {x});
  refuse(states, adam, 1, x, x, {x, x, x});
  refuse(broken + "operands have one length.", adam, 1, x, x, {x, longer});
  refuse(broken + "operands have one length.", heavy, 1, x, x, {longer});
  refuse(dtype, adam, 1, x, x, {x, wide});
  refuse(dtype, adam, 1, wide, x, {x, x});
  refuse(dtype, sgd, 1, x, wide, {});
  refuse(dtype, heavy, 1, x, x, {wide});
  play.check("what is refused changes nothing", at::equal(x, at::ones({4})));
  for (const auto& rule : rules_of_update())
    play.check("a rule's states have torch's names",
               optimizer::state_names(rule) == names_of(rule));
}

void update_rules(Play& play) {
  if (play.group()) {
    const torch::NoGradGuard no_grad;
    Draws draws(play.context().seed);
    const std::vector<std::array<Element, 4>> types = {
        {Element::Fp32, Element::Fp32, Element::Fp32, Element::Fp32},
        {Element::Bf16, Element::Fp32, Element::Fp32, Element::Bf16},
        {Element::Fp32, Element::Fp16, Element::Bf16, Element::Fp16},
        {Element::Fp16, Element::Bf16, Element::Fp32, Element::Fp32}};
    for (const auto& rule : rules_of_update()) {
      for (const int64_t numel : {0, 1, 63, 64, 65, 1023, 1024, 1025, 1088, 2051})
        check_rule(play, rule, std::array<int64_t, 3>{1, 2, 1000}[draws() % 3],
                   Operands(draws, numel, types[draws() % types.size()]));
      for (const int64_t step : {1, 2, 5})
        for (const auto& some : types) check_rule(play, rule, step, Operands(draws, 100, some));
    }
    for (const std::size_t number : {2U, 7U})  // more than a chunk of operations
      check_rule(play, rules_of_update()[number], 2,
                 Operands(draws, (1 << 15) + 5, types[number / 4]));
    check_sets(play, draws);
    check_update_threads(play, draws);
    check_update_refusals(play);
  }
  train_along(play);
}

// ---- On shards ----

using layout::BucketPlan;
using layout::ParameterTable;
using optimizer::ShardedState;

ParameterTable table_of_shards() {
  static const std::array<int, 7> kIdentities{};
  const std::vector<std::vector<int64_t>> shapes = {{3, 4}, {5}, {0}, {7}, {2, 2}, {}, {9}};
  std::vector<layout::Registration> all;
  for (std::size_t i = 0; i < shapes.size(); ++i)
    all.push_back({.name = "p" + std::to_string(i),
                   .identity = &kIdentities[i],
                   .shape = shapes[i],
                   .trainable = i != 3,
                   .group = i >= 1 && i <= 4 ? 1U : 0U});
  return ParameterTable(all);
}

// The rules of two groups by hand, one parameter at a time.
struct ByHand {
  std::vector<OptimizerConfig> rules;
  std::vector<int64_t> steps = std::vector<int64_t>(7, 0);
  std::array<Floats, 3> all = {};  // over the shard space

  void update(const ParameterTable& table, const BucketPlan& plan, const Floats& gradient,
              const std::vector<bool>& used) {
    for (std::size_t parameter = 0; parameter < table.size(); ++parameter) {
      const auto at = plan.slot_of(parameter);
      if (!at || !used[parameter]) continue;
      ++steps[parameter];
      const auto& slot = plan.slot(*at);
      const auto begin = place(plan.buckets()[at->bucket].offset + slot.offset);
      for (auto i = begin; i < begin + place(slot.shard_numel); ++i) {
        const Updated got = updated(rules[table[parameter].group], steps[parameter],
                                    {all[0][i], all[1][i], all[2][i]}, gradient[i]);
        all[0][i] = got.p;
        all[1][i] = got.first;
        all[2][i] = got.second;
      }
    }
  }
};

void check_held(Play& play, const ShardedState& state, const ByHand& by_hand,
                const ParameterTable& table, const BucketPlan& plan) {
  check_same(play, "masters are updated by parameter and group", floats_of(state.masters()),
             by_hand.all[0]);
  const auto names = names_of(by_hand.rules[0]);
  play.check("as many states are kept as the rule has", state.states().size() == names.size());
  for (std::size_t kept = 0; kept < state.states().size(); ++kept)
    check_same(play, names[kept] + " is updated by parameter", floats_of(state.states()[kept]),
               by_hand.all[kept + 1]);
  for (std::size_t parameter = 0; parameter < table.size(); ++parameter) {
    play.check("steps are counted by parameter, and states named",
               state.steps()[parameter] == by_hand.steps[parameter] &&
                   state.state_names(parameter) == names);
    const auto at = plan.slot_of(parameter);
    for (std::size_t kept = 0; kept < names.size(); ++kept) {
      const auto slice = state.state(parameter, kept);
      const int64_t numel = at ? plan.slot(*at).shard_numel : 0;
      const int64_t offset = at ? plan.buckets()[at->bucket].offset + plan.slot(*at).offset : 0;
      play.check("a state is a view of its slice",
                 slice.numel() == numel &&
                     (numel == 0 || slice.data_ptr() ==
                                        state.states()[kept].narrow(0, offset, numel).data_ptr()));
    }
  }
}

// Five updates, in which not all are used, rates change, and a state was written.
void check_shards(Play& play, Draws& draws, const OptimizerConfig& rule, int shards) {
  const auto table = table_of_shards();
  const BucketPlan plan(table, shards, 13);
  const auto configs = optimizer::by_group(rule, {{.lr = 0.25}, {.weight_decay = 0.125}});
  ByHand by_hand{configs};
  by_hand.rules[0].lr = play.fault() ? 0.5 : 0.25;
  play.check("a group overrides its rate and its decay, and no more",
             configs.size() == 2 && configs[0].weight_decay == rule.weight_decay &&
                 configs[0].lr == 0.25 && configs[1].lr == rule.lr &&
                 configs[1].weight_decay == 0.125 && configs[1].beta1 == rule.beta1);
  memory::Ledger ledger;
  ShardedState state(configs, table, plan, {}, ledger);
  const int64_t numel = plan.shard_numel(), bytes = 4 * numel;
  const auto names = static_cast<int64_t>(names_of(rule).size());
  play.check("what is held is charged",
             ledger.bytes(Category::MasterWeights) == bytes &&
                 ledger.bytes(Category::OptimizerState) == names * bytes &&
                 ledger.total_bytes() == (1 + names) * bytes &&
                 ledger.total_peak_bytes() == ledger.total_bytes());
  by_hand.all = {drawn_all(draws, numel, -3, 1), Floats(place(numel)), Floats(place(numel))};
  state.masters().copy_(at::tensor(by_hand.all[0], at::kFloat));
  check_held(play, state, by_hand, table, plan);
  for (int step = 0; step < 5; ++step) {
    const auto gradient = drawn_all(draws, numel, -4, 1);
    std::vector<bool> used(table.size(), true);
    for (std::size_t i = 0; i < used.size() && step > 0; ++i) used[i] = draws() % 3 != 0;
    if (step == 0) used[4] = used[5] = false;
    if (step == 1 && names > 0) {  // written before the first update
      state.state(5, 0).fill_(0.5);
      state.keep_state(5);
      const auto at = *plan.slot_of(5);
      by_hand.all[1][place(plan.buckets()[at.bucket].offset + plan.slot(at).offset)] = 0.5;
      if (rule.kind == OptimizerConfig::Kind::Sgd) by_hand.steps[5] = 1;
      state.keep_state(0);
    }
    if (step == 2) state.set_rates({0.5}, {});
    if (step == 2) by_hand.rules[0].lr = 0.5;
    if (step == 3) state.set_rates({0.75, 0.0625}, {0.25, 0.5});
    if (step == 3)
      for (const std::size_t group : {0U, 1U}) {
        by_hand.rules[group].lr = group == 0 ? 0.75 : 0.0625;
        by_hand.rules[group].beta1 = group == 0 ? 0.25 : 0.5;
      }
    if (step == 4) state.hyper_parameters()[1].weight_decay = by_hand.rules[1].weight_decay = 0;
    play.check("rates are told by group",
               state.lr() == std::vector<double>{by_hand.rules[0].lr, by_hand.rules[1].lr});
    state.update(at::tensor(gradient, at::kFloat), used);
    by_hand.update(table, plan, gradient, used);
    check_held(play, state, by_hand, table, plan);
  }
  play.check("an update holds nothing more", ledger.total_bytes() == (1 + names) * bytes &&
                                                 ledger.total_peak_bytes() == ledger.total_bytes());
}

void check_shards_of_16_bits(Play& play) {
  const auto table = table_of_shards();
  const BucketPlan plan(table, 2, 100);
  const auto& adam = rules_of_update()[0];
  memory::Ledger ledger;
  const ShardedState state({adam}, table, plan, {.master = at::kBFloat16, .state = at::kHalf},
                           ledger);
  play.check("masters and states are kept in their types",
             state.masters().scalar_type() == at::kBFloat16 &&
                 state.states()[1].scalar_type() == at::kHalf && state.masters().is_cpu() &&
                 at::equal(state.states()[0], at::zeros({plan.shard_numel()}, at::kHalf)) &&
                 ledger.bytes(Category::MasterWeights) == 2 * plan.shard_numel() &&
                 ledger.bytes(Category::OptimizerState) == 4 * plan.shard_numel());
  const ShardedState locked({adam}, table, plan, {.pin_memory = true}, ledger);
  play.check("pages are locked where there is a device for them, and else are none",
             locked.masters().is_pinned() == at::hasCUDA() && !state.masters().is_pinned());
  const std::string dtype = "[optimizer.state] expected dtype Float, BFloat16 or Half, got Double";
  play.refuse(dtype, [&] { ShardedState({adam}, table, plan, {.master = at::kDouble}, ledger); });
  play.refuse(dtype, [&] { ShardedState({adam}, table, plan, {.state = at::kDouble}, ledger); });
  ShardedState one({adam}, table, plan, {}, ledger);
  const std::string groups = "[optimizer.rates] broken invariant: there is a group for every rate";
  play.refuse(groups, [&] { one.set_rates({1, 2}, {}); });
  play.refuse(groups, [&] { one.set_rates({1}, {0.5, 0.5}); });
  play.check("rates that are refused are not set",
             one.lr() == std::vector<double>{adam.lr} && one.hyper_parameters()[0] == adam);
}

void shards(Play& play) {
  if (play.group()) {
    const torch::NoGradGuard no_grad;
    Draws draws(play.context().seed);
    for (const std::size_t number : {0U, 2U, 4U, 6U, 8U})
      for (const int count : {1, 2, 3}) check_shards(play, draws, rules_of_update()[number], count);
    check_shards_of_16_bits(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> updates() {
  return {of_part("updates_element_by_element",
                  "a rule of update is its page's, in numbers of any type, by any path",
                  "another parameter is expected", update_rules),
          of_part("updates_of_shards",
                  "masters and states are updated and counted by parameter and by group",
                  "another rate is expected", shards)};
}

}  // namespace equigrad::conformance::contract
