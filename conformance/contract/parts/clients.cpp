// 16. Its parts: optimizers of the user, on slices and in an engine.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "conformance/contract/parts/drawn.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/engine.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/memory/ledger.hpp"
#include "engine/optimizer/client_optimizer.hpp"
#include "engine/optimizer/sharded_state.hpp"

namespace equigrad::conformance::contract {
namespace {

using optimizer::ClientOptimizer;
using torch::optim::Optimizer;
using Tensors = std::vector<at::Tensor>;

at::Tensor values(Draws& draws, at::IntArrayRef shape) {
  const int64_t numel = c10::multiply_integers(shape);
  return at::tensor(drawn_all(draws, numel, -3, 0), at::kFloat).view(shape);
}

// A trained matrix, an empty tensor, one that is not trained, and a vector of a group of its own.
Tensors model_of(Draws& draws) {
  return {values(draws, {5, 3}).requires_grad_(), values(draws, {0}).requires_grad_(),
          values(draws, {4}), values(draws, {7}).requires_grad_()};
}

template <class Kind, class Options>
std::shared_ptr<Optimizer> made(const Tensors& model, const Options& options) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(Tensors{model[0], model[1], model[2]});
  groups.emplace_back(Tensors{model[3]}, std::make_unique<Options>(options));
  auto optimizer = std::make_shared<Kind>(groups, options);
  optimizer->param_groups()[1].options().set_lr(0.25);
  return optimizer;
}

struct Class {
  std::string name;
  std::function<std::shared_ptr<Optimizer>(const Tensors&)> make;
  std::vector<std::string> states;  // once it has stepped
  bool has_states_at_once = false;
};

const std::vector<Class>& classes() {
  using namespace torch::optim;
  static const std::vector<Class> kClasses = {
      {"SGD",
       [](const auto& model) { return made<SGD>(model, SGDOptions(0.5).weight_decay(0.1)); },
       {}},
      {"SGD with momentum",
       [](const auto& model) { return made<SGD>(model, SGDOptions(0.5).momentum(0.9)); },
       {"momentum_buffer"}},
      {"Adam",
       [](const auto& model) { return made<Adam>(model, AdamOptions(0.1).amsgrad(true)); },
       {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
      {"AdamW",
       [](const auto& model) { return made<AdamW>(model, AdamWOptions(0.1)); },
       {"exp_avg", "exp_avg_sq"}},
      {"RMSprop",
       [](const auto& model) {
         return made<RMSprop>(model, RMSpropOptions(0.1).momentum(0.5).centered(true));
       },
       {"square_avg", "momentum_buffer", "grad_avg"}},
      {"Adagrad",
       [](const auto& model) { return made<Adagrad>(model, AdagradOptions(0.1)); },
       {"sum"},
       true}};
  return kClasses;
}

// What two ranks own of the trained tensors of a model, beside each other in memory of their own.
std::vector<OwnedSlice> slices_of(const Tensors& model, int rank) {
  const std::vector<std::pair<std::size_t, int64_t>> cuts = {{0, 8}, {3, 4}};
  std::vector<OwnedSlice> slices;
  for (const auto& [number, cut] : cuts) {
    const int64_t begin = rank == 0 ? 0 : cut, end = rank == 0 ? cut : model[number].numel();
    slices.push_back({.name = "p" + std::to_string(number),
                      .parameter = model[number],
                      .begin = begin,
                      .end = end,
                      .master = at::empty({end - begin}).requires_grad_()});
  }
  return slices;
}

void write_masters(std::vector<OwnedSlice>& slices) {
  const torch::NoGradGuard no_grad;
  for (auto& slice : slices)
    slice.master.copy_(slice.parameter.flatten().slice(0, slice.begin, slice.end));
}

at::Tensor of_slice(const OwnedSlice& slice, const at::Tensor& whole) {
  return whole.detach().flatten().slice(0, slice.begin, slice.end);
}

std::shared_ptr<Optimizer> stepped(Draws& draws, const Class& of, const Tensors& model, int steps) {
  auto optimizer = of.make(model);
  for (int step = 0; step < steps; ++step) {
    for (const std::size_t number : {0U, 3U})
      model[number].mutable_grad() = values(draws, model[number].sizes());
    optimizer->step();
  }
  for (const auto& tensor : model) tensor.mutable_grad().reset();
  return optimizer;
}

// The whole's optimizer and the slice's, after the same.
struct Pair {
  const Class& of;
  Tensors model;
  std::shared_ptr<Optimizer> whole;
  std::vector<OwnedSlice> slices;
  ClientOptimizer client;
};

Pair pair_of(const Class& of, uint64_t seed, int rank, int steps) {
  Draws draws(seed), again(seed);
  Tensors model = model_of(draws);
  auto whole = stepped(draws, of, model, steps);
  // Of a second model: the same draws make the same values.
  Tensors other = model_of(again);
  auto given = stepped(again, of, other, steps);
  Pair pair{of, model, whole, slices_of(other, rank), ClientOptimizer(given)};
  pair.client.own(pair.slices);
  write_masters(pair.slices);
  return pair;
}

// Bytes of the states that a rank holds: of its slices alone.
void check_states(Play& play, Pair& pair, bool exist, bool second_too) {
  int64_t bytes = 0;
  for (std::size_t i = 0; i < pair.slices.size(); ++i) {
    const bool has = exist && (i == 0 || second_too);
    const auto want = has ? pair.of.states : std::vector<std::string>{};
    play.check(pair.of.name + " has its states by torch's names, when they exist",
               pair.client.state_names(i) == want);
    for (const auto& name : want) {
      const auto state = pair.client.state(i, name);
      bytes += state.numel() * 4;
      play.check(name + " of " + pair.of.name + " is flat, of the slice",
                 state.sizes() == pair.slices[i].master.sizes() &&
                     pair.client.state(i, name).data_ptr() == state.data_ptr());
    }
    if (!want.empty())
      play.check("a state of no such name is none", !pair.client.state(i, "none").defined());
  }
  play.check(pair.of.name + " holds " + std::to_string(bytes) + " bytes of states, said are " +
                 std::to_string(pair.client.state_bytes()),
             pair.client.state_bytes() == bytes);
}

// A gradient of the whole, and the slice's part of it; the second parameter has none at first.
void check_steps(Play& play, Pair& pair, Draws& draws, bool have_states) {
  const int64_t fault = play.fault() ? 1 : 0;
  for (int step = 0; step < 3; ++step) {
    Tensors gradients;
    for (std::size_t i = 0; i < pair.slices.size(); ++i) {
      auto& whole = pair.model[i == 0 ? 0 : 3];
      const auto gradient = values(draws, whole.sizes());
      const bool is_used = i == 0 || step > 0;
      whole.mutable_grad() = is_used ? gradient : at::Tensor();
      gradients.push_back(is_used ? of_slice(pair.slices[i], gradient).clone() : at::Tensor());
    }
    pair.whole->step();
    pair.client.step(gradients);
    for (std::size_t i = 0; i < pair.slices.size(); ++i) {
      const auto& slice = pair.slices[i];
      const auto want = of_slice(slice, pair.model[i == 0 ? 0 : 3]);
      play.check("a slice gets what " + pair.of.name + " gives it in its whole",
                 at::equal(slice.master, want + fault) && !slice.master.grad().defined());
    }
    check_states(play, pair, true, have_states || step > 0);
  }
}

void check_class(Play& play, const Class& of, int rank, Draws& draws) {
  const auto seed = draws();
  auto fresh = pair_of(of, seed, rank, 0);
  check_states(play, fresh, of.has_states_at_once, of.has_states_at_once);
  play.check("rates are those of its groups", fresh.client.lr()[1] == 0.25);
  check_steps(play, fresh, draws, of.has_states_at_once);
  auto used = pair_of(of, seed, rank, 2);  // has states, which are cut
  check_states(play, used, true, true);
  check_steps(play, used, draws, true);
}

void check_rates(Play& play, Draws& draws) {
  const Tensors model = model_of(draws);
  for (const auto& of : classes()) {
    const auto given = of.make(model);
    ClientOptimizer client(given);
    client.set_rates({0.125, 0.5}, {0.25, 0.75});
    play.check("rates are set by group", client.lr() == std::vector<double>{0.125, 0.5});
    client.set_rates({0.375}, {});
    client.set_rates({}, {});
    play.check("rates that are left out stay", client.lr() == std::vector<double>{0.375, 0.5});
    const std::string groups =
        "[optimizer.rates] broken invariant: there is a group for every rate";
    play.refuse(groups, [&] { client.set_rates({1, 2, 3}, {}); });
    play.refuse(groups, [&] { client.set_rates({}, {0.1, 0.2, 0.3}); });
    for (std::size_t group = 0; group < 2; ++group) {
      auto& options = given->param_groups()[group].options();
      const std::tuple<double, double> want{group == 0 ? 0.25 : 0.75, 0.999};
      if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options))
        play.check("Adam's first beta is set, the second stays", adam->betas() == want);
      if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options))
        play.check("AdamW's first beta is set, the second stays", adamw->betas() == want);
    }
  }
}

// Of a class that nobody knows; it throws when it is told to.
struct Own final : torch::optim::Optimizer {
  struct State : torch::optim::OptimizerCloneableParamState<State> {};
  explicit Own(const Tensors& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                  std::make_unique<torch::optim::SGDOptions>(1.0)) {}
  at::Tensor step(LossClosure = nullptr) override { throw std::runtime_error("no step today"); }
};

void check_client_refusals(Play& play, Draws& draws) {
  using torch::optim::SGD;
  const Tensors model = model_of(draws), other = model_of(draws);
  const auto refuse = [&](const std::string& words, const Tensors& parameters) {
    ClientOptimizer client(std::make_shared<SGD>(parameters, 0.5));
    play.refuse("[initialize] expected " + words, [&] { client.own(slices_of(model, 0)); });
  };
  refuse(
      "the model's parameters in the optimizer's groups, got a tensor that is none of them. "
      "Construct the optimizer with model.parameters().",
      {model[0], model[3], other[0]});
  refuse("every trainable parameter in the optimizer's groups, got none that has \"p3\". Add it",
         {model[0]});
  refuse("every trainable parameter in the optimizer's groups, got none that has \"p0\"",
         {model[3], model[1], other[2]});
  {
    const auto twice = std::make_shared<SGD>(Tensors{model[0], model[3]}, 0.5);
    twice->param_groups()[0].params().push_back(model[3]);
    ClientOptimizer client(twice);
    play.refuse(
        "[initialize] expected every parameter once in the optimizer's groups, got \"p3\" "
        "twice. Give a parameter that is tied under one name.",
        [&] { client.own(slices_of(model, 0)); });
  }
  play.refuse("[initialize] expected an optimizer, got a null pointer. Leave the argument out",
              [] { ClientOptimizer{nullptr}; });
  play.refuse("[initialize] expected an optimizer that updates every element by itself, got LBFGS",
              [&] { ClientOptimizer{std::make_shared<torch::optim::LBFGS>(Tensors{model[0]})}; });
  const auto own = std::make_shared<Own>(Tensors{model[0], model[3]});
  own->state()[model[3].unsafeGetTensorImpl()] = std::make_unique<Own::State>();
  ClientOptimizer unknown(own);
  play.refuse(
      "[initialize] expected an optimizer that has not stepped, got one with a state of "
      "\"p3\" that cannot be cut into slices. Construct a new one.",
      [&] { unknown.own(slices_of(model, 0)); });
  ClientOptimizer failing(std::make_shared<Own>(Tensors{model[0], model[3]}));
  auto slices = slices_of(model, 1);
  failing.own(slices);
  write_masters(slices);
  play.refuse("no step today", [&] {
    failing.step({of_slice(slices[0], model[0]).clone(), of_slice(slices[1], model[3]).clone()});
  });
  play.check("a step that throws keeps no gradient",
             !slices[0].master.grad().defined() && !slices[1].master.grad().defined());
  play.check("a class that nobody knows has no states",
             failing.state_names(0).empty() && failing.state_bytes() == 0);
  play.refuse("[optimizer.step] broken invariant: every slice has a gradient, defined or not",
              [&] { failing.step({at::Tensor()}); });
}

void check_types_of_a_client(Play& play, Draws& draws) {
  const Tensors model = model_of(draws);
  const int identity = 0;
  const layout::ParameterTable table({{.name = "p", .identity = &identity, .shape = {5, 3}}});
  const layout::BucketPlan plan(table, 2, 100);
  for (const bool master : {true, false}) {
    memory::Ledger ledger;
    const Tensors tensors = {model[0]};
    const optimizer::Client client{
        std::make_shared<ClientOptimizer>(std::make_shared<torch::optim::SGD>(tensors, 0.5)),
        tensors, 0};
    optimizer::StateOptions options;
    (master ? options.master : options.state) = at::kBFloat16;
    play.refuse(
        "[initialize] expected masters and optimizer states in fp32 with an optimizer of "
        "the caller's, got 16 bits. Drop the keys",
        [&] { optimizer::ShardedState(client, table, plan, options, ledger); });
  }
}

// The second of two shards: elements 8 to 14 of 15, and one of padding.
void check_shard_of_a_client(Play& play, Draws& draws) {
  const Tensors tensors = {values(draws, {5, 3}).requires_grad_()};
  const int identity = 0;
  const layout::ParameterTable table({{.name = "p", .identity = &identity, .shape = {5, 3}}});
  const layout::BucketPlan plan(table, 2, 100);
  const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.5).momentum(0.5);
  memory::Ledger ledger;
  optimizer::ShardedState state(
      {std::make_shared<ClientOptimizer>(std::make_shared<torch::optim::SGD>(tensors, options)),
       tensors, 1},
      table, plan, {}, ledger);
  const auto bytes = [&](memory::Category of) { return ledger.bytes(of); };
  play.check("before an update there are masters alone",
             state.state_names(0).empty() && state.states().empty() && state.steps()[0] == 0 &&
                 state.hyper_parameters().empty() && state.lr() == std::vector<double>{0.5} &&
                 at::equal(state.masters(), at::zeros({8})) &&
                 bytes(memory::Category::MasterWeights) == 32 &&
                 bytes(memory::Category::OptimizerState) == 0);
  state.set_rates({0.25}, {});
  state.keep_state(0);
  state.update(at::ones({8}), {false});
  play.check("a parameter that nobody used has no states", state.state_names(0).empty());
  state.update(at::ones({8}), {true});
  state.update(at::ones({8}), {true});
  const std::vector<float> want(7, -0.25F * 2.5F);  // a buffer of 1, then of 1.5
  play.check("a slice is updated by its rate, its padding is not",
             at::equal(state.masters().narrow(0, 0, 7).detach(), at::tensor(want)) &&
                 state.masters()[7].item<float>() == 0 && state.lr() == std::vector<double>{0.25});
  play.check("its state is there, charged and named",
             state.state_names(0) == std::vector<std::string>{"momentum_buffer"} &&
                 at::equal(state.state(0, 0), at::full({7}, 1.5)) &&
                 bytes(memory::Category::OptimizerState) == 28 && ledger.total_bytes() == 60);
}

void check_one_element(Play& play) {
  const auto parameter = at::ones({1}).requires_grad_(), master = at::ones({1}).requires_grad_();
  ClientOptimizer client(std::make_shared<torch::optim::SGD>(Tensors{parameter}, 0.25));
  client.own({{.name = "p", .parameter = parameter, .begin = 0, .end = 1, .master = master}});
  client.step({at::ones({1})});
  play.check("a parameter of one element is trained", master.item<float>() == 0.75F);
}

void on_slices(Play& play) {
  if (play.group()) {
    Draws draws(play.context().seed);
    for (const auto& of : classes())
      for (const int rank : {0, 1}) check_class(play, of, rank, draws);
    check_rates(play, draws);
    check_client_refusals(play, draws);
    check_types_of_a_client(play, draws);
    check_shard_of_a_client(play, draws);
    check_one_element(play);
  }
  train_along(play);
}

// ---- In an engine ----

struct Weights : torch::nn::Module {
  explicit Weights(uint64_t seed) : torch::nn::Module("Weights") {
    Draws draws(seed);
    all = model_of(draws);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = register_parameter("p" + std::to_string(i), all[i].detach(), i != 2);
  }
  // The gradient of a trained tensor is `scale` everywhere; the last is used if it is told so.
  at::Tensor loss(double scale, bool uses_last) {
    const auto first = all[0].sum() * scale + all[1].sum();
    return uses_last ? first + all[3].sum() * scale : first;
  }
  Tensors all;
};

// A rank's gradient; their average is 1, and every sum exact.
double scale_of(const ContractContext& context) {
  return 1 + context.rank - 0.5 * (context.world - 1);
}

void check_in_engine(Play& play, const Class& of) {
  const auto& context = play.context();
  Weights model(context.seed), plain(context.seed);
  const auto whole = of.make(plain.all);
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": )" +
      std::to_string(context.stage) + "}}";
  const auto engine = initialize(model, config, of.make(model.all), play.group());
  const int64_t shards = context.stage == 0 ? 1 : context.world;
  const auto numel_of = [&](int64_t numel) {
    const int64_t each = (numel + shards - 1) / shards, rank = shards == 1 ? 0 : context.rank;
    return std::clamp<int64_t>(numel - rank * each, 0, each);
  };
  for (int step = 0; step < 3; ++step) {
    const bool uses_last = step > 0;
    plain.all[0].mutable_grad() = at::ones({5, 3});
    plain.all[3].mutable_grad() = uses_last ? at::ones({7}) : at::Tensor();
    whole->step();
    engine->backward(model.loss(scale_of(context), uses_last));
    engine->step();
    for (const std::size_t i : {0U, 3U})
      play.check("an engine updates as " + of.name + " does",
                 at::equal(engine->full_parameter("p" + std::to_string(i)),
                           plain.all[i].detach() + (play.fault() ? 1 : 0)));
    const int64_t held = numel_of(15) + (uses_last || of.has_states_at_once ? numel_of(7) : 0);
    play.check("an engine holds the states of " + of.name + ", once they exist",
               engine->ledger().bytes(memory::Category::OptimizerState) ==
                   4 * held * static_cast<int64_t>(of.states.size()));
  }
  for (const auto& name : of.states)
    play.check(
        name + " is given whole",
        engine->access().full_optimizer_state("p0", name).sizes() == at::IntArrayRef({5, 3}));
  engine->set_lr({0.5, 0.0625});
  play.check("an engine tells and sets the rates of " + of.name,
             engine->get_lr() == std::vector<double>{0.5, 0.0625});
}

void in_engine(Play& play) {
  if (play.group())
    for (const auto& of : classes()) check_in_engine(play, of);
  train_along(play);
}

}  // namespace

std::vector<Case> clients() {
  const std::string fault = "another parameter is expected";
  return {
      of_part("client_optimizers_on_slices",
              "torch's optimizers do to a slice what they do to it in its whole", fault, on_slices),
      of_part("client_optimizers_in_an_engine",
              "an optimizer of the user trains shards, and its states are held by them", fault,
              in_engine, Plays::EveryStage)};
}

}  // namespace equigrad::conformance::contract
