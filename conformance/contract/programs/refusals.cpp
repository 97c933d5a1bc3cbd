// 17. What is refused: arguments of an engine's calls, with what came and what is right, and
// nothing is changed by them.
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/engine.hpp"
#include "engine/zero_init.hpp"

namespace equigrad::conformance::contract {
namespace {

constexpr const char* kNoMessage = "no such message";

at::Tensor weights(at::IntArrayRef shape, double value = 1) {
  return at::full(shape, value).requires_grad_();
}

// What is no parameter that an engine can train.
void refuse_tensors(Play& play) {
  const auto config = parse_config(config_beside(play), play.context().world);
  const auto refuse = [&](const std::string& named, std::vector<NamedParameter> parameters) {
    const ParameterGroup group{std::move(parameters), {}, {}};
    play.refuse(play.fault() ? kNoMessage : "[initialize] expected " + named,
                [&] { (void)initialize({group}, config, play.group()); });
  };
  const auto leaf = weights({5});
  refuse("a leaf tensor for parameter \"a\", got none. Register the parameter itself.",
         {{"a", at::Tensor()}});
  refuse("a leaf tensor for parameter \"b.c\", got the result of an operator.",
         {{"a", leaf}, {"b.c", leaf * 2}});
  refuse("every element of parameter \"c\" in memory of its own, got one that overlaps itself",
         {{"c", at::ones({1}).expand({3}).requires_grad_()}});
  refuse(
      "dtype Float for parameter \"d\", got Double, which the configuration does not ask for. "
      "Convert the model first",
      {{"a", leaf}, {"d", at::ones({2}, at::kDouble).requires_grad_()}});
  refuse("dtype Float for parameter \"e\", got BFloat16, which the",
         {{"e", at::ones({2}, at::kBFloat16).requires_grad_()}});
  refuse("dtype Float for parameter \"f\", got Double, which the",
         {{"f", at::ones({2}, at::kDouble)}});
  refuse("at least one parameter, got a model with none. Did the model call register_module", {});
  const std::vector<NamedParameter> twice = {{"a", leaf}, {"a", weights({2})}};
  play.refuse("expected every name once, got \"a\" twice. Rename one of the parameters.", [&] {
    (void)initialize({ParameterGroup{twice, {}, {}}}, config, play.group());
  });
  const std::vector<NamedParameter> right = {
      {"a", leaf}, {"whole", at::ones({2}, at::kLong)}, {"empty", weights({0})}};
  const auto engine = initialize({ParameterGroup{right, {}, {}}}, config, play.group());
  refuse(
      "a parameter that no engine trains, got \"a\", which another engine holds. Destroy that "
      "engine first.",
      {{"a", leaf}});
  play.check("after what was refused an engine is made of what is right",
             engine->full_parameter("a").equal(at::ones({5})) &&
                 engine->full_parameter("whole").equal(at::ones({2}, at::kLong)));
  const auto bf16 = parse_config(config_beside(play, {.keys = R"(, "bf16": {"enabled": true})"}),
                                 play.context().world);
  const std::vector<NamedParameter> small = {{"e", at::ones({2}, at::kBFloat16).requires_grad_()}};
  const auto low = initialize({ParameterGroup{small, {}, {}}}, bf16, play.group());
  play.check("16 bits are taken where parameters have them",
             low->full_parameter("e").equal(at::ones({2}, at::kBFloat16)));
}

// Shards went with their engine; where parameters are whole, another engine may have them.
void refuse_lost(Play& play) {
  const auto text = config_beside(play, {.zero = R"(, "stage3_param_persistence_threshold": 0)"});
  const auto config = parse_config(text, play.context().world);
  const auto leaf = weights({5});
  const ParameterGroup group{{{"a", leaf}}, {}, {}};
  (void)initialize({group}, config, play.group());
  if (play.context().stage == 3)
    play.refuse("to hold data, got one whose shards went with a stage 3 engine",
                [&] { (void)initialize({group}, config, play.group()); });
  else
    (void)initialize({group}, config, play.group());
}

struct Named : torch::nn::Module {
  Named() : inner(register_module("inner", torch::nn::Linear(2, 3))) {
    own = register_parameter("own", at::ones({4}));
  }
  torch::nn::Linear inner;
  at::Tensor own;
};

std::string casting(const Play& play, const std::string& modules) {
  return config_beside(play, {.keys = R"(, "torch_autocast": {"enabled": true, )"
                                      R"("lower_precision_safe_modules": )" +
                                      modules + "}"});
}

// Modules are known by their types' names.
void refuse_modules(Play& play) {
  const auto with_types = [&](const std::string& modules, const std::string& type) {
    const ParameterGroup group{{{"a", weights({3}), type}, {"b", weights({2})}}, {}, {}};
    (void)initialize({group}, parse_config(casting(play, modules), play.context().world),
                     play.group());
  };
  play.refuse(
      "expected the module_type of parameters for torch_autocast, got none. Give the "
      "module itself, or set \"lower_precision_safe_modules\": [].",
      [&] { with_types(R"(["torch.nn.Linear"])", ""); });
  with_types("[]", "");
  with_types(R"(["torch.nn.Conv3d", "my.Own"])", "my.Own");
  const std::string unknown =
      "expected a module of the model in lower_precision_safe_modules, "
      "got ";
  play.refuse(unknown + "\"my.Onw\". Did you mean \"my.Own\"?",
              [&] { with_types(R"(["my.Own", "my.Onw"])", "my.Own"); });
  play.refuse(unknown + "\"a.quite.different.one\".",
              [&] { with_types(R"(["a.quite.different.one"])", "my.Own"); });
  Named model;
  play.refuse(unknown + "\"torch.nm.Linear\". Did you mean \"torch.nn.Linear\"?", [&] {
    (void)initialize(model, casting(play, R"(["torch.nm.Linear"])"), play.group());
  });
  play.refuse("(anonymous namespace).Named\"?", [&] {
    (void)initialize(
        model, casting(play, R"(["equigrad.conformance.contract.(anonymous namespace).Name"])"),
        play.group());
  });
  (void)initialize(
      model, casting(play, R"(["equigrad.conformance.contract.(anonymous namespace).Named"])"),
      play.group());
}

// What zero::Init has cut goes with its own stage.
void refuse_early(Play& play) {
  const auto& context = play.context();
  const auto text = [](const std::string& stage) {
    return R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"},
               "zero_optimization": {"stage": )" +
           stage + R"(, "stage3_param_persistence_threshold": 0}})";
  };
  zero::Init init(text("3"), play.group());
  Named model;
  init.finish();
  play.refuse("expected stage 3 on rank " + std::to_string(context.rank) + " of " +
                  std::to_string(context.world) +
                  " for parameter \"own\", which zero::Init has "
                  "partitioned, got stage 2 on rank " +
                  std::to_string(context.rank),
              [&] { (void)initialize(model, text("2"), play.group()); });
  const auto engine = initialize(model, text("3"), play.group());
  play.check("of its stage they are taken", engine->full_parameter("own").equal(at::ones({4})));
}

void parameters_refused(Play& play) {
  if (play.group()) {
    refuse_tensors(play);
    refuse_lost(play);
    refuse_modules(play);
    refuse_early(play);
  }
  train_along(play);
}

// An optimizer of the caller's goes with a configuration that names none.
void refuse_optimizers(Play& play) {
  const std::string stage = std::to_string(play.context().stage);
  Named model;
  const auto optimizer =
      std::make_shared<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(0.25));
  play.refuse(
      "optimizer: expected no optimizer beside the one that initialize() is given, got "
      "one. Drop the key, or the argument.",
      [&] { (void)initialize(model, config_beside(play), optimizer, play.group()); });
  const auto engine = initialize(
      model,
      R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": )" + stage + "}}",
      optimizer, play.group());
  play.check("the rate is the caller's optimizer's, and it has no hyper-parameters here",
             engine->get_lr() == std::vector<double>{0.25} && engine->hyper_parameters().empty());
  play.refuse(
      "[engine.set_hyper_parameters] expected 0 groups, for the optimizer is the caller's, "
      "got 1.",
      [&] { engine->set_hyper_parameters({OptimizerConfig{}}); });
  engine->set_hyper_parameters({});
  engine->set_lr(0.5);
  play.check(
      "a rate is set in the caller's optimizer",
      engine->get_lr() == std::vector<double>{0.5} &&
          static_cast<torch::optim::SGDOptions&>(optimizer->param_groups()[0].options()).lr() ==
              0.5);
}

// Groups have rates and decays of their own, and every rank has rank 0's values.
void check_groups(Play& play) {
  const auto& context = play.context();
  const double mine = context.rank + 1;
  const auto turned = at::full({3, 2}, mine).t().requires_grad_();
  const auto frozen = at::full({3}, mine);
  const auto whole = at::full({2}, context.rank + 1, at::kLong);
  const std::vector<ParameterGroup> groups = {
      {{{"a", weights({5}, mine)}}, 0.5, 0.125},
      {{{"b", turned}, {"c", frozen}, {"d", whole}}, {}, {}},
      {{{"e", weights({}, mine)}}, {}, 0.25}};
  const auto config = parse_config(config_beside(play), context.world);
  const auto engine = initialize(groups, config, play.group());
  const auto all = engine->hyper_parameters();
  play.check("what a group says is its own, and the rest is the configuration's",
             engine->get_lr() == std::vector<double>{0.5, 1, 1} && all.size() == 3 &&
                 all[0].weight_decay == 0.125 && all[1].weight_decay == 0 &&
                 all[2].weight_decay == 0.25 && all[2].lr == 1);
  for (const auto& [name, like] : std::map<std::string, at::Tensor>{{"a", at::ones({5})},
                                                                    {"b", at::ones({2, 3})},
                                                                    {"c", at::ones({3})},
                                                                    {"d", at::ones({2}, at::kLong)},
                                                                    {"e", at::ones({})}})
    play.check("every rank has rank 0's values of " + name,
               engine->full_parameter(name).equal(like));
  play.refuse("expected 3 rates, one for each parameter group, got 2. Give one number to set all",
              [&] {
                engine->set_lr({1, 2});
              });
  engine->set_lr(3);
  play.check("one rate is that of all groups", engine->get_lr() == std::vector<double>{3, 3, 3});
  engine->set_lr({0, 1, std::numeric_limits<float>::max()});
  play.refuse("expected a rate of 0 or more that fp32 can hold, got 3.5e+38. The rates stay", [&] {
    engine->set_lr({1, 2, 3.5e38});
  });
  play.check("rates are set by group, up to the largest, or not at all",
             engine->get_lr() == std::vector<double>{0, 1, std::numeric_limits<float>::max()});
  play.refuse("expected the name of one of 5 parameters, got \"f\".",
              [&] { (void)engine->full_parameter("f"); });
}

// A weight of five ones, whose gradient is that of sum(weight * factor).
struct Weight {
  explicit Weight(const Play& play, const std::string& keys = "")
      : tensor(weights({5})),
        engine(initialize({ParameterGroup{{{"a", tensor}}, {}, {}}},
                          parse_config(config_beside(play, {.accumulation = 2, .keys = keys}),
                                       play.context().world),
                          const_cast<Play&>(play).group())) {}
  at::Tensor loss(double factor) const { return (tensor * factor).sum(); }
  bool has_gradient(double value) const {
    const auto gradient = engine->access().full_gradient("a");
    return gradient.defined() && at::equal(gradient, at::full({5}, value));
  }
  at::Tensor tensor;
  std::unique_ptr<Engine> engine;
};

void refuse_losses(Play& play) {
  Weight one(play);
  auto& engine = *one.engine;
  const auto refuse = [&](const std::string& named, const at::Tensor& loss) {
    play.refuse(play.fault() ? kNoMessage : named,
                [&] { engine.backward(loss, false, /*scale_wrt_gas=*/false); });
  };
  const std::string scalar = "[engine.backward] expected a scalar loss, got shape ",
                    remedy = ". For other outputs call output.backward(gradient).",
                    graph =
                        "[engine.scale] expected a tensor with a graph, got one that requires "
                        "no gradient. Compute it from the model's parameters";
  refuse(scalar + "of an undefined tensor" + remedy, at::Tensor());
  refuse(scalar + "[5]" + remedy, one.tensor * 2);
  refuse(scalar + "[2, 0]" + remedy, at::ones({2, 0}));
  refuse(graph, at::ones({}));
  play.refuse(graph, [&] { (void)engine.scale(at::ones({3})); });
  play.refuse(graph, [&] { (void)engine.scale(at::Tensor()); });
  play.refuse(
      "[engine.step] expected no lr_kwargs without a scheduler, got \"metrics\". Configure "
      "one under \"scheduler\".",
      [&] {
        engine.step({{"metrics", 1}});
      });
  play.check("what is refused counts for nothing",
             engine.counters().micro_steps == 0 && !engine.access().full_gradient("a").defined());
  const auto loss = one.loss(4);
  loss.backward();
  play.check("nor does it change how the next pass is weighed", one.has_gradient(2));
  play.check("a pass gives its loss, divided by the number of passes",
             engine.backward(one.loss(4)).item<float>() == 10 && one.has_gradient(4));
  play.check("or as it is, for one call",
             engine.backward(one.loss(4), false, false).item<float>() == 20 && one.has_gradient(8));
  one.loss(4).reshape({1, 1}).backward(at::ones({1, 1}));
  play.check("and not for the next", one.has_gradient(10));
  const auto again = one.loss(2);
  engine.backward(again, /*retain_graph=*/true);
  engine.backward(again);
  play.check("a graph that is kept has a second pass", one.has_gradient(12));
}

void check_outcomes(Play& play) {
  Weight one(play);
  auto& engine = *one.engine;
  play.check("before the first step there is no norm, no update and no count",
             !engine.get_global_grad_norm() && !engine.was_step_applied() &&
                 engine.counters().micro_steps == 0 && engine.counters().global_steps == 0 &&
                 engine.loss_scale() == 1 && !engine.layer_drop().progressive_layer_drop &&
                 engine.layer_drop().pld_theta == 1);
  engine.backward(one.loss(2));
  engine.step();
  play.check("a step before the boundary is counted, and is no update",
             engine.counters().micro_steps == 1 && engine.counters().global_steps == 0 &&
                 !engine.was_step_applied() && engine.is_gradient_accumulation_boundary());
  engine.backward(one.loss(2));
  engine.step();
  const auto norm = engine.get_global_grad_norm();
  play.check("a step at it is one, of the averaged gradient",
             engine.counters().micro_steps == 2 && engine.counters().global_steps == 1 &&
                 engine.was_step_applied() && norm && *norm == 2 * std::sqrt(5) &&
                 at::equal(engine.full_parameter("a"), at::full({5}, -1.0)));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  engine.set_gradient_accumulation_boundary(true);
  engine.backward(
      (one.tensor * at::tensor({1.0, kInfinity, 0.0, kInfinity, 2.0}).to(at::kFloat)).sum());
  play.refuse(
      "expected finite gradients, got 2 elements that are not, the first in parameter "
      "\"a\". Nothing was written; look at the inputs, or lower the learning rate.",
      [&] { engine.step(); });
  play.check("a step that is refused is no update; its norm is none",
             !engine.was_step_applied() && std::isnan(*engine.get_global_grad_norm()) &&
                 engine.counters().global_steps == 1 && engine.counters().skipped_steps == 0 &&
                 at::equal(engine.full_parameter("a"), at::full({5}, -1.0)) &&
                 !engine.access().full_gradient("a").defined());
}

void refuse_sizes(Play& play) {
  Weight one(play);
  auto& engine = *one.engine;
  const int64_t world = play.context().world;
  const auto refuse = [&](int64_t size) {
    play.refuse("[engine.set_train_batch_size] expected a multiple of " + std::to_string(world) +
                    " (micro-batch size x ranks), got " + std::to_string(size) + ".",
                [&] { engine.set_train_batch_size(size); });
  };
  refuse(0);
  refuse(-world);
  if (world > 1) refuse(world + 1);
  play.check("a size that is refused changes nothing",
             engine.config().train_batch_size == 2 * world &&
                 engine.config().gradient_accumulation_steps == 2);
  engine.set_train_batch_size(3 * world);
  play.check("one that is right does", engine.config().train_batch_size == 3 * world &&
                                           engine.config().gradient_accumulation_steps == 3 &&
                                           engine.config().train_micro_batch_size_per_gpu == 1);
  engine.backward(one.loss(6));
  play.check("and passes are divided by it", one.has_gradient(2));
  play.refuse("expected to be between windows, got 0 micro-batches and 1 passes into one.",
              [&] { engine.set_train_batch_size(world); });
  Weight other(play), scaled(play, R"(, "fp16": {"enabled": true})");
  play.refuse(
      "[engine.share_loss_scale] expected engines with the same loss scale in their "
      "configurations, got different ones.",
      [&] { other.engine->share_loss_scale(*scaled.engine); });
  play.refuse(
      "[engine.share_loss_scale] expected an empty accumulation window, got 1 backward "
      "passes.",
      [&] { engine.share_loss_scale(*other.engine); });
  engine.zero_grad();
  engine.share_loss_scale(*other.engine);
}

void calls_refused(Play& play) {
  if (play.group()) {
    refuse_optimizers(play);
    check_groups(play);
    refuse_losses(play);
    check_outcomes(play);
    refuse_sizes(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> refusals() {
  return {
      case_beside(
          {.section = "17",
           .name = "parameters_that_cannot_be_trained",
           .sentence = "what cannot be trained is refused by its name before anything is changed",
           .fault = "another message is expected",
           .program = parameters_refused}),
      case_beside({.section = "17",
                   .name = "calls_with_wrong_arguments",
                   .sentence =
                       "a call with a wrong argument is refused and changes nothing; what a right "
                       "one gives is counted",
                   .fault = "another message is expected",
                   .program = calls_refused})};
}

}  // namespace equigrad::conformance::contract
