// 15. What a configuration is read as, key by key, and what is said of it.
#include <functional>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/reading/reading_cases.hpp"
#include "conformance/contract/reading/texts.hpp"

namespace equigrad::conformance::contract {
namespace {

using Policy = LossScaleConfig::Policy;
using Lines = std::vector<std::string>;

// Keys that are given and in force; of what is shown in another way, the line.
Lines given(const std::string& keys) {
  Lines lines;
  for (const auto& key : keys_of(keys)) lines.push_back(key.path + " = " + key.value + " (file)");
  return lines;
}

struct Reading {
  std::string optimizer;
  Told told;
};

// Every key of the top, of ZeRO and of the profiler, each with a value of its own.
Reading of_all() {
  const std::string keys =
      "managed_gradient_accumulation=false "
      "optimizer.params.lr=0.25 optimizer.params.weight_decay=0.125 "
      "optimizer.params.momentum=0.5 optimizer.params.nesterov=true zero_optimization.stage=3 "
      "zero_optimization.overlap_comm=false zero_optimization.reduce_bucket_size=11 "
      "zero_optimization.allgather_bucket_size=12 "
      "zero_optimization.stage3_prefetch_bucket_size=13 "
      "zero_optimization.stage3_param_persistence_threshold=14 "
      "zero_optimization.stage3_max_live_parameters=15 "
      "zero_optimization.stage3_max_reuse_distance=16 "
      "zero_optimization.stage3_gather_16bit_weights_on_model_save=true "
      "zero_optimization.leaf_module.classes=[\"A\"] "
      "zero_optimization.leaf_module.names=[\"b\"] "
      "zero_optimization.leaf_module.name_suffixes=[\"c\",\"d\"] "
      "zero_optimization.offload_param.device=\"cpu\" "
      "zero_optimization.offload_param.pin_memory=false "
      "zero_optimization.offload_optimizer.device=\"cpu\" "
      "zero_optimization.offload_optimizer.pin_memory=false "
      "zero_optimization.offload_optimizer.ratio=1.0 gradient_clipping=0.75 "
      "gradient_norm_type=\"inf\" gradient_predivide_factor=3.0 reduction=\"native\" "
      "communication_timeout_s=2.5 dataloader_drop_last=true progressive_layer_drop.enabled=true "
      "progressive_layer_drop.theta=0.25 progressive_layer_drop.gamma=0.5 "
      "flops_profiler.enabled=true flops_profiler.profile_step=7 flops_profiler.module_depth=2 "
      "flops_profiler.top_modules=3 flops_profiler.detailed=false "
      "flops_profiler.output_file=\"f\" flops_profiler.recompute_fwd_factor=1.5 "
      "sequence_parallel_size=1 tensor_parallel.autotp_size=1";
  return {"SGD", {keys, given(keys), [](EngineConfig& config) {
                    config.managed_gradient_accumulation = false;
                    config.optimizer.lr = 0.25;
                    config.optimizer.weight_decay = 0.125;
                    config.optimizer.momentum = 0.5;
                    config.optimizer.nesterov = true;
                    config.zero = {.stage = 3,
                                   .reduce_bucket_size = 11,
                                   .allgather_bucket_size = 12,
                                   .stage3_prefetch_bucket_size = 13,
                                   .stage3_param_persistence_threshold = 14,
                                   .stage3_max_live_parameters = 15,
                                   .stage3_max_reuse_distance = 16,
                                   .overlap_comm = false,
                                   .leaf_module = {{"A"}, {"b"}, {"c", "d"}},
                                   .offload_param = {true, false},
                                   .stage3_gather_16bit_weights_on_model_save = true};
                    config.offload_optimizer = {true, false};
                    config.gradient_clipping = 0.75;
                    config.gradient_norm = NormType::Infinity;
                    config.averaging = {AveragingConfig::Kind::Around, 3.0};
                    config.reduction = ReductionOrder::Native;
                    config.communication_timeout_s = 2.5;
                    config.dataloader_drop_last = true;
                    config.progressive_layer_drop = {true, 0.25, 0.5};
                    config.flops_profiler = {true, 1.5, 7, 2, 3, false, "f"};
                    config.sequence_parallel_size = 1;
                    config.tensor_parallel.autotp_size = 1;
                  }}};
}

std::vector<Reading> of_optimizers() {
  const std::string params = "optimizer.params.", w_mode = params + "adam_w_mode = ",
                    decay = params + "weight_decay = ", torch = params + "torch_adam = true (file)",
                    type = "optimizer.type = \"AdamW\" (file)";
  const auto adam_w = [](EngineConfig& config) {
    config.optimizer.kind = OptimizerConfig::Kind::AdamW;
  };
  return {
      {"SGD",
       {"optimizer.params.dampening=-0.5 optimizer.params.momentum=0.5",
        given("optimizer.params.dampening=-0.5 optimizer.params.momentum=0.5"),
        [](EngineConfig& config) {
          config.optimizer.dampening = -0.5;
          config.optimizer.momentum = 0.5;
        }}},
      {"AdamW",
       {"optimizer.params.eps=0.5 optimizer.params.betas=[0.25,0.75]",
        given("optimizer.params.eps=0.5 optimizer.params.betas=[0.25,0.75]"),
        [](EngineConfig& config) {
          config.optimizer.eps = 0.5;
          config.optimizer.beta1 = 0.25;
          config.optimizer.beta2 = 0.75;
        }}},
      {"SGD",
       {"optimizer.type=\"adamw\"",
        {type, w_mode + "true (default)", params + "eps = 1e-08 (default)",
         params + "betas = [0.9,0.999] (default)",
         params + "torch_adam = false (default) only the default of weight_decay depends on it",
         "-optimizer.params.momentum", "-optimizer.params.dampening", "-optimizer.params.nesterov"},
        adam_w}},
      {"AdamW",
       {"optimizer.type=\"aDAM\"", {type + " \"Adam\" is AdamW here, as in DeepSpeed"}, adam_w}},
      {"AdamW",
       {"optimizer.type=\"Adam\" optimizer.params.adam_w_mode=false",
        {"optimizer.type = \"Adam\" (file)", w_mode + "false (file)"},
        [](EngineConfig& config) { config.optimizer.kind = OptimizerConfig::Kind::Adam; }}},
      {"AdamW",
       {params + "torch_adam=true",
        {torch, decay + "0.01 (derived) torch_adam: the default of torch's AdamW"},
        [](EngineConfig& config) { config.optimizer.weight_decay = 0.01; }}},
      {"AdamW",
       {params + "torch_adam=true " + params + "weight_decay=0",
        {torch, decay + "0.0 (file)"},
        adam_w}},
      {"AdamW",
       {"optimizer.type=\"Adam\" " + params + "torch_adam=true " + params + "adam_w_mode=false",
        {torch, "optimizer.type = \"Adam\" (file)", w_mode + "false (file)"},
        [](EngineConfig& config) { config.optimizer.kind = OptimizerConfig::Kind::Adam; }}}};
}

// Of keys that do nothing: given, with the reason.
std::string idle(const std::string& key, const std::string& value, const std::string& why) {
  return key + " = " + value + " (no effect) " + why;
}

void as_it_was(EngineConfig&) {}

// Whether save_16bit_model() gathers, which it need not below stage 3.
std::vector<Reading> of_gathering_to_save() {
  const std::string gather = "zero_optimization.stage3_gather_16bit_weights_on_model_save";
  return {{"SGD",
           {gather + "=true",
            {idle(gather, "true", "parameters are whole below stage 3")},
            [](EngineConfig& config) {
              config.zero.stage3_gather_16bit_weights_on_model_save = true;
            }}}};
}

// What stays as it was and is only said to be off changes its note.
std::vector<Reading> of_zero() {
  const std::string zero = "zero_optimization.", leaf = zero + "leaf_module.",
                    offload = zero + "offload_optimizer.", param = zero + "offload_param.",
                    below = "parameters are whole below stage 3", off = "it is off";
  const auto to_cpu = [](bool pinned) {
    return [pinned](EngineConfig& config) {
      config.zero.stage = 1;
      config.offload_optimizer = {true, pinned};
    };
  };
  const std::string stage = zero + "stage=1 ", is_1 = zero + "stage = 1 (file)",
                    ratio = offload + "ratio = 1.0 (default)",
                    old_device = "\"cpu\" (derived) as cpu_offload, its old name",
                    old_pin = " (derived) as cpu_offload_use_pin_memory, its old name";
  return {
      {"SGD",
       {leaf + "names=[\"x\"] " + leaf + "classes=[] " + leaf + "name_suffixes=[]",
        {idle(leaf + "names", "[\"x\"]", below), idle(leaf + "classes", "[]", below),
         idle(leaf + "name_suffixes", "[]", below)},
        [](EngineConfig& config) {
          config.zero.leaf_module.names = {"x"};
          config.zero.leaf_module.classes = {};
        }}},
      {"SGD",
       {offload + "pin_memory=false " + offload + "ratio=0.5 " + param + "pin_memory=false",
        {idle(offload + "pin_memory", "false", off), idle(offload + "ratio", "0.5", off),
         idle(param + "pin_memory", "false", off)},
        as_it_was}},
      {"SGD",
       {offload + "device=\"none\" " + param + "device=\"none\"",
        given(offload + "device=\"none\" " + param + "device=\"none\""), as_it_was}},
      {"SGD",
       {stage + zero + "cpu_offload=true",
        {is_1, offload + "device = " + old_device, offload + "pin_memory = true (default)", ratio,
         zero + "cpu_offload = true (file)"},
        to_cpu(true)}},
      {"SGD",
       {stage + zero + "cpu_offload=true " + zero + "cpu_offload_use_pin_memory=false",
        {is_1, offload + "device = " + old_device, offload + "pin_memory = false" + old_pin, ratio,
         zero + "cpu_offload = true (file)", zero + "cpu_offload_use_pin_memory = false (file)"},
        to_cpu(false)}},
      {"SGD",
       {stage + offload + "device=\"cpu\" " + zero + "cpu_offload_use_pin_memory=false",
        {is_1, offload + "device = \"cpu\" (file)", offload + "pin_memory = false" + old_pin, ratio,
         zero + "cpu_offload_use_pin_memory = false (file)"},
        to_cpu(false)}},
      {"SGD",
       {zero + "cpu_offload=false " + zero + "cpu_offload_use_pin_memory=false",
        {offload + "device = \"none\" (derived) as cpu_offload, its old name",
         offload + "pin_memory = true (derived) it is off", zero + "cpu_offload = false (file)",
         idle(zero + "cpu_offload_use_pin_memory", "false", off)},
        as_it_was}}};
}

std::vector<Reading> of_averages() {
  const std::string before =
                        "prescale_gradients divides by all ranks before the sum, as in "
                        "DeepSpeed",
                    factor = "gradient_predivide_factor";
  return {
      {"SGD",
       {"prescale_gradients=true",
        {"prescale_gradients = true (file)", factor + " = 1.0 (default) " + before},
        [](EngineConfig& config) { config.averaging.kind = AveragingConfig::Kind::BeforeSum; }}},
      {"SGD",
       {"gradient_allreduce_op=\"SUM\"",
        {"gradient_allreduce_op = \"sum\" (file)"},
        [](EngineConfig& config) { config.averaging.kind = AveragingConfig::Kind::Never; }}},
      {"SGD",
       {"gradient_allreduce_op=\"mean\" prescale_gradients=false gradient_norm_type=2",
        given("gradient_allreduce_op=\"mean\" prescale_gradients=false gradient_norm_type=2"),
        as_it_was}},
      {"SGD",
       {"reduction=\"exact\"",
        {"reduction = \"exact\" (file)",
         "data_types.grad_accum_dtype = \"fp32\" (derived) what an exact sum is rounded to"},
        [](EngineConfig& config) { config.reduction = ReductionOrder::Exact; }}},
      {"SGD",
       {"communication_data_type=\"half\"",
        {"communication_data_type = \"fp16\" (file)"},
        [](EngineConfig& config) { config.precision.communication = DataType::Fp16; }}}};
}

void check_readings(Play& play, const std::vector<Reading>& all) {
  for (const auto& one : all) check_told(play, usual_keys(one.optimizer), one.told);
}

void read_as(Play& play) {
  if (play.group()) {
    check_readings(play, {of_all()});
    check_readings(play, of_optimizers());
    check_readings(play, of_gathering_to_save());
    check_readings(play, of_zero());
    check_readings(play, of_averages());
  }
  train_along(play);
}

}  // namespace

std::vector<Case> read_keys() {
  return {case_beside({.section = "15",
                       .name = "keys_one_by_one",
                       .sentence = "every key is read as what it says, and what it changes is said",
                       .fault = "another line is expected",
                       .program = read_as},
                      Plays::Once)};
}

}  // namespace equigrad::conformance::contract
