// 15. What an engine says of itself: its configuration.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <utility>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/programs/programs.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance::contract {
namespace {

using Origin = Setting::Origin;

const std::string kMicro = "train_micro_batch_size_per_gpu", kTrain = "train_batch_size",
                  kAccumulation = "gradient_accumulation_steps";

std::string text_of(const std::string& keys) {
  return R"({"optimizer": {"type": "SGD", "params": {"lr": 0.5}}, )" + keys + "}";
}

// One setting of a text: where it is said to come from, and what is said of it.
struct Said {
  std::string keys;
  Setting want;
};

void check_said(Play& play, const Said& said) {
  const auto effective = explain_config(text_of(said.keys), play.context().world);
  const auto found = std::find_if(effective.settings.begin(), effective.settings.end(),
                                  [&](const Setting& one) { return one.key == said.want.key; });
  const bool is_there = found != effective.settings.end();
  const std::string got = is_there ? found->value + " (" + found->note + ")" : "nothing";
  play.check(said.want.key + " of {" + said.keys + "} is " + said.want.value + " (" +
                 said.want.note + "), said is " + got,
             is_there && *found == said.want);
  const auto line = describe(effective);
  play.check("the table has " + said.want.key + " and its note",
             line.find(said.want.key) != std::string::npos &&
                 line.find(said.want.note) != std::string::npos);
}

std::vector<Said> of_batches(int world) {
  const auto size = [](int64_t number) { return std::to_string(number); };
  const std::string micro = "\"" + kMicro + "\": 3", steps = "\"" + kAccumulation + "\": 5",
                    train = "\"" + kTrain + "\": " + size(15 * world);
  const auto of = [](const std::string& keys, const std::string& key, const std::string& value,
                     const std::string& derived) {
    const auto origin = derived.empty() ? Origin::File : Origin::Derived;
    return Said{keys, {.key = key, .value = value, .origin = origin, .note = derived}};
  };
  return {of(micro + ", " + steps, kTrain, size(15 * world), "micro x accumulation x world"),
          of(micro + ", " + train, kAccumulation, "5", "train / (micro x world)"),
          of(train + ", " + steps, kMicro, "3", "train / (accumulation x world)"),
          of(micro + ", " + steps + ", " + train, kTrain, size(15 * world), ""),
          of(micro + ", " + steps + ", " + train, kAccumulation, "5", ""),
          of(micro + ", " + steps + ", " + train, kMicro, "3", "")};
}

std::vector<Said> without_effect() {
  const auto of = [](const std::string& keys, const std::string& key, const std::string& value,
                     const std::string& why) {
    return Said{"\"" + kMicro + "\": 1, " + keys,
                {.key = key, .value = value, .origin = Origin::NoEffect, .note = why}};
  };
  const std::string off = R"("bf16": {"enabled": false, "check_grad_overflow": false})",
                    fp16 = R"("fp16": {"enabled": true, "loss_scale": 128, "hysteresis": 3}, )",
                    overflow = "bf16.check_grad_overflow";
  return {of(off, overflow, "false", "fp32 always throws"),
          of(fp16 + off, overflow, "false", "a step that overflows is always skipped"),
          of(fp16 + off, "fp16.hysteresis", "3", "loss_scale is static"),
          of(R"("prescale_gradients": true, "gradient_predivide_factor": 2.0)",
             "gradient_predivide_factor", "2.0",
             "prescale_gradients divides by all ranks before the sum, as in DeepSpeed"),
          of(R"("steps_per_print": 10)", "steps_per_print", "10",
             "it only changes what DeepSpeed prints"),
          of(R"("torch_autocast": {"enabled": false, "dtype": "fp16"})", "torch_autocast.dtype",
             "\"fp16\"", "it is off"),
          of(R"("flops_profiler": {"profile_step": 7})", "flops_profiler.profile_step", "7",
             "it is off")};
}

// In force, and said to be so.
std::vector<Said> with_effect() {
  const auto of = [](const std::string& keys, const std::string& key, const std::string& value) {
    return Said{"\"" + kMicro + "\": 1, " + keys,
                {.key = key, .value = value, .origin = Origin::File, .note = ""}};
  };
  return {of(R"("bf16": {"enabled": true, "check_grad_overflow": false})",
             "bf16.check_grad_overflow", "false"),
          of(R"("flops_profiler": {"enabled": true, "profile_step": 7})",
             "flops_profiler.profile_step", "7"),
          of(R"("gradient_predivide_factor": 2.0)", "gradient_predivide_factor", "2.0")};
}

// The path of a file gives what its text gives, to the reader and to the engine.
void check_path(Play& play) {
  const auto& context = play.context();
  const auto text = config_beside(play, {.accumulation = 3, .keys = R"(, "gradient_clipping": 7)"});
  const std::string path = file_beside(play, "config.json");
  std::ofstream(path) << " \n" << text;
  const auto by_path = explain_config(path, context.world),
             by_text = explain_config(text, context.world);
  play.check("a path says what its text says", by_path.config == by_text.config &&
                                                   by_path.settings == by_text.settings &&
                                                   !by_path.settings.empty());
  const auto model = make_contract_model("tower", context.seed);
  const auto engine = initialize(*model, path, play.group());
  play.check("an engine by a path has the configuration of its text",
             engine->config() == parse_config(text, context.world) &&
                 engine->config().gradient_clipping == (play.fault() ? 6 : 7));
  std::ofstream(path) << "{}";
  play.refuse("[config " + path + "]", [&] { load_config(path, context.world); });
  std::remove(path.c_str());
  play.refuse("the path of a readable file, got \"" + path + "\"",
              [&] { load_config(path, context.world); });
}

void says_where_from(Play& play) {
  if (play.group()) {
    for (const auto& said : of_batches(play.context().world)) check_said(play, said);
    for (const auto& said : without_effect()) check_said(play, said);
    for (const auto& said : with_effect()) check_said(play, said);
    check_path(play);
  }
  train_along(play);
}

// A relation of keys that no text has broken, and what the refusal names.
struct Contradiction {
  std::string named;
  std::function<void(EngineConfig&)> make;
};

std::vector<Contradiction> of_precision() {
  const auto scaled = [](EngineConfig& config, double scale) {
    config.precision.param = config.precision.accumulate = DataType::Fp16;
    config.precision.loss_scale = {.policy = LossScaleConfig::Policy::Static,
                                   .static_scale = scale};
  };
  return {{"expected a static or dynamic loss scale for fp16, got none",
           [](EngineConfig& config) {
             config.precision.param = config.precision.accumulate = DataType::Fp16;
           }},
          {"expected no loss scale without fp16, got one",
           [](EngineConfig& config) {
             config.precision.loss_scale.policy = LossScaleConfig::Policy::DeepSpeed;
           }},
          {"expected a power of two, which changes exponents only, got 96",
           [scaled](EngineConfig& config) { scaled(config, 96); }},
          {"expected master weights in fp32 or in the type of the parameters",
           [](EngineConfig& config) { config.precision.master = DataType::Bf16; }},
          {"data_types.grad_accum_dtype: expected fp32 for fp32 parameters",
           [](EngineConfig& config) { config.precision.accumulate = DataType::Bf16; }},
          {"fp16.initial_scale_power: expected",
           [scaled](EngineConfig& config) {
             scaled(config, 1);
             config.precision.loss_scale = {.policy = LossScaleConfig::Policy::GradScaler,
                                            .initial_scale_power = 400};
           }},
          {"torch_autocast.dtype: expected bf16 or fp16, got fp32", [](EngineConfig& config) {
             config.precision.autocast = {.enabled = true, .dtype = DataType::Fp32};
           }}};
}

std::vector<Contradiction> of_the_rest() {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  return {{"train_batch_size: expected micro x accumulation x world",
           [](EngineConfig& config) { ++config.train_batch_size; }},
          {"optimizer.params.nesterov: expected a momentum above 0",
           [](EngineConfig& config) { config.optimizer.nesterov = true; }},
          {"optimizer.params.lr: expected a number that fp32 can hold, got nan",
           [](EngineConfig& config) { config.optimizer.lr = kNan; }},
          {"zero_optimization.stage: expected 0, 1, 2 or 3, got 4",
           [](EngineConfig& config) { config.zero.stage = 4; }},
          {"reduce_bucket_size: expected at least 1, got 0",
           [](EngineConfig& config) { config.zero.reduce_bucket_size = 0; }},
          {"gradient_clipping: expected at least 0, got -1",
           [](EngineConfig& config) { config.gradient_clipping = -1; }},
          {"gradient_predivide_factor: expected 1 unless gradients are divided around the sum",
           [](EngineConfig& config) { config.averaging.predivide_factor = 2; }},
          {"communication_timeout_s: expected seconds from 0.001",
           [](EngineConfig& config) { config.communication_timeout_s = 0; }},
          {"total_num_steps: expected the number of updates of the whole training, got none",
           [](EngineConfig& config) {
             config.scheduler = SchedulerConfig{.kind = SchedulerConfig::Kind::WarmupDecayLr};
           }}};
}

// Of a stage that a key does not go with.
std::vector<Contradiction> of_stage(int stage) {
  std::vector<Contradiction> all;
  if (stage < 3)
    all.push_back({"offload_param.device: expected \"none\" below stage 3, got \"cpu\"",
                   [](EngineConfig& config) { config.zero.offload_param.to_cpu = true; }});
  if (stage < 1)
    all.push_back({"offload_optimizer.device: expected ZeRO stage 1, 2 or 3",
                   [](EngineConfig& config) { config.offload_optimizer.to_cpu = true; }});
  return all;
}

// Made in C++, where no reader has looked at it.
void contradictory(Play& play) {
  if (play.group()) {
    auto all = of_precision();
    for (auto& one : of_the_rest()) all.push_back(std::move(one));
    for (auto& one : of_stage(play.context().stage)) all.push_back(std::move(one));
    const auto model = make_contract_model("tower", play.context().seed);
    ParameterGroup group;
    for (const auto& item : model->named_parameters())
      group.parameters.push_back({item.key(), item.value()});
    for (const auto& one : all) {
      auto config = parse_config(config_beside(play), play.context().world);
      one.make(config);
      const std::string named = play.fault() ? "no such message" : one.named;
      play.refuse(named, [&] { validate(config, play.context().world); });
      play.refuse(named, [&] { (void)initialize({group}, config, play.group()); });
    }
  }
  train_along(play);
}

}  // namespace

std::vector<Case> configuration() {
  return {
      case_beside(
          {.section = "15",
           .name = "configuration_says_where_values_come_from",
           .sentence = "derived sizes, keys without effect and files by their path are told right",
           .fault = "another threshold is expected",
           .program = says_where_from}),
      case_beside({.section = "15",
                   .name = "configuration_that_contradicts_itself",
                   .sentence = "one that is made in C++ is refused as one that is read, by its key",
                   .fault = "another message is expected",
                   .program = contradictory})};
}

}  // namespace equigrad::conformance::contract
