// 17. What is refused: types and loss scales, and schedules, whose keys do not go together.
#include <map>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/reading/reading_cases.hpp"
#include "conformance/contract/reading/texts.hpp"

namespace equigrad::conformance::contract {
namespace {

using Problems = std::vector<std::string>;

std::vector<Relation> of_loss_scales() {
  const std::string fp16 = "fp16.enabled=true ", scale = "fp16.loss_scale",
                    least = "fp16.min_loss_scale", dynamic = " 0 stands for a dynamic scale.";
  const std::string range = ": expected a power of two from 2^-126 to 2^126, got ",
                    power = ": expected a power of two, which changes exponents only, got ";
  std::vector<Relation> all = {
      {"SGD", fp16 + scale + "=96", {scale + power + "96.0. Write 64.0 or 128.0." + dynamic}},
      {"SGD", fp16 + scale + "=0.75", {scale + power + "0.75. Write 0.5 or 1.0." + dynamic}},
      {"SGD", fp16 + scale + "=-2", {scale + range + "-2.0. Write 128." + dynamic}},
      {"SGD",
       fp16 + scale + "=1.7014118346046923e+38",
       {scale + range + "1.7014118346046923e+38. Write 128." + dynamic}},
      {"SGD",
       fp16 + scale + "=5.877471754111438e-39",
       {scale + range + "5.877471754111438e-39. Write 128." + dynamic}},
      {"SGD", fp16 + scale + "=8.507059173023462e+37", {}},
      {"SGD", fp16 + scale + "=1.1754943508222875e-38", {}},
      {"SGD", fp16 + scale + "=1", {}},
      {"SGD", "fp16.enabled=false " + scale + "=96", {}},
      {"SGD", fp16 + scale + "=64 " + least + "=3 fp16.initial_scale_power=999", {}},
      {"SGD", fp16 + least + "=3", {least + power + "3.0. Write 2.0 or 4.0."}},
      {"SGD", fp16 + least + "=0", {least + range + "0.0. Write 128."}},
      {"SGD", fp16 + least + "=65536", {}},
      {"SGD",
       fp16 + least + "=131072",
       {least + ": expected at most 2^initial_scale_power, got 131072.0 and a power of 16. Lower "
                "it, or raise the power."}},
      {"SGD", fp16 + least + "=131072 fp16.initial_scale_power=17", {}},
      {"SGD", least + "=3 fp16.hysteresis=0 fp16.initial_scale_power=127", {}},
      {"SGD", "fp16.auto_cast=true", {}},
      {"SGD",
       fp16 + "fp16.auto_cast=true",
       {"fp16.auto_cast: expected false, got true" + kUnsupported +
        "Cast the inputs to fp16 where the model is called."}}};
  const std::string one = "fp16.fp16_master_weights_and_grads",
                    other = "fp16.fp16_master_weights_and_gradients";
  for (const std::string yes : {"true", "false"}) {
    const std::string no = yes == "true" ? "false" : "true";
    all.push_back({"SGD", one + "=" + yes + " " + other + "=" + yes, {}});
    all.push_back({"SGD",
                   one + "=" + yes + " " + other + "=" + no,
                   {other + ": expected what fp16_master_weights_and_grads says, got " + no +
                    " and not " + yes + ". Drop one of the two spellings."}});
  }
  return all;
}

std::vector<Relation> of_modes() {
  const std::string bf16 = "bf16.enabled=true ", masters = "bf16.bf16_master_weights_and_grads",
                    states = "bf16.bf16_optimizer_states", stage = "zero_optimization.stage=",
                    offload = " zero_optimization.offload_optimizer.device=\"cpu\"",
                    both = bf16 + masters + "=true " + states + "=true ";
  const std::string of_stage = masters +
                               ": expected ZeRO stage 1, 2 or 3 with bf16 master "
                               "weights, got stage 0. Set zero_optimization.stage, or "
                               "drop the key.",
                    of_states = masters +
                                ": expected bf16_optimizer_states, or "
                                "zero_optimization.offload_optimizer with device "
                                "\"cpu\", beside bf16 master weights, got neither. Add "
                                "one of them.";
  return {{"SGD",
           bf16 + "fp16.enabled=true",
           {"bf16.enabled: expected bf16 or fp16, got both. Drop one of the sections."}},
          {"SGD",
           "bfloat16.enabled=true fp16.enabled=true",
           {"bf16.enabled: expected bf16 or fp16, got both. Drop one of the sections."}},
          {"SGD", "bf16.enabled=false fp16.enabled=true", {}},
          {"SGD",
           "bf16.enabled=false bfloat16.enabled=true",
           {"bfloat16: expected it or \"bf16\", got both. Drop it; it is bf16's old name."}},
          {"SGD", "bfloat16.enabled=true fp16.enabled=false", {}},
          {"SGD", both + stage + "0", {of_stage}},
          {"SGD", both + stage + "1", {}},
          {"SGD", bf16 + masters + "=true " + stage + "0", {of_stage, of_states}},
          {"SGD", bf16 + masters + "=true " + stage + "2", {of_states}},
          {"SGD", bf16 + masters + "=true " + stage + "2" + offload, {}},
          {"SGD",
           bf16 + states + "=true " + stage + "1",
           {states + ": expected false without bf16_master_weights_and_grads, got true. Set "
                     "bf16_master_weights_and_grads to true, or drop the key."}},
          {"SGD", masters + "=true " + states + "=true", {}},
          {"SGD", "fp16.enabled=true fp16.fp16_master_weights_and_grads=true", {}}};
}

std::vector<Relation> of_windows() {
  const std::string window = "data_types.grad_accum_dtype", param = "data_types.param_dtype",
                    bf16 = "bf16.enabled=true ", fp16 = "fp16.enabled=true ",
                    exact = "reduction=\"exact\" ", is = ": expected ";
  const std::string kept = ". Gradients have the master weights' type; drop one of the keys.";
  const auto set = [](const std::string& name) {
    return ". Set \"" + name + "\": {\"enabled\": ...} instead.";
  };
  const std::string chosen = is + "the type that \"bf16\", \"fp16\" and \"amp\" choose, ";
  return {
      {"SGD",
       window + "=\"bf16\"",
       {window + is + "fp32 for fp32 parameters, got \"bf16\". Enable bf16, or drop the key."}},
      {"SGD",
       window + "=\"half\"",
       {window + is + "fp32 for fp32 parameters, got \"fp16\". Enable fp16, or drop the key."}},
      {"SGD", window + "=\"torch.float32\"", {}},
      {"SGD",
       bf16 + window + "=\"fp16\"",
       {window + is + "fp32 or bf16 for bf16 parameters, got \"fp16\". Drop the key."}},
      {"SGD",
       fp16 + window + "=\"bfloat16\"",
       {window + is + "fp32 or fp16 for fp16 parameters, got \"bf16\". Drop the key."}},
      {"SGD", bf16 + window + "=\"BF16\"", {}},
      {"SGD", fp16 + window + "=\"Float16\"", {}},
      {"SGD", bf16 + window + "=\"float\"", {}},
      {"SGD",
       exact + bf16 + window + "=\"bf16\"",
       {window + is +
        "fp32 with \"reduction\": \"exact\", whose sums are rounded once, got "
        "\"bf16\". Drop one of the keys."}},
      {"SGD", exact + bf16 + window + "=\"fp32\"", {}},
      {"SGD",
       fp16 + "fp16.fp16_master_weights_and_grads=true " + window + "=\"fp32\"",
       {window + is + "fp16 with fp16.fp16_master_weights_and_grads, got \"fp32\"" + kept}},
      {"SGD",
       bf16 +
           "bf16.bf16_master_weights_and_grads=true bf16.bf16_optimizer_states=true "
           "zero_optimization.stage=1 " +
           window + "=\"fp32\"",
       {window + is + "bf16 with bf16.bf16_master_weights_and_grads, got \"fp32\"" + kept}},
      {"SGD",
       window + "=\"fp8\"",
       {window + is + "\"fp32\", \"bf16\" or \"fp16\", got \"fp8\". Use one of the three."}},
      {"SGD", param + "=\"float16\"", {param + chosen + "fp32, got \"float16\"" + set("fp16")}},
      {"SGD", param + "=\"bf16\"", {param + chosen + "fp32, got \"bf16\"" + set("bf16")}},
      {"SGD", bf16 + param + "=\"fp32\"", {param + chosen + "bf16, got \"fp32\"" + set("bf16")}},
      {"SGD", bf16 + param + "=\"torch.bfloat16\"", {}},
      {"SGD", "amp.enabled=true amp.opt_level=\"O2\" " + param + "=\"half\"", {}}};
}

std::vector<Relation> of_autocast() {
  const std::string on = "torch_autocast.enabled=true ", type = "torch_autocast.dtype",
                    modules = "torch_autocast.lower_precision_safe_modules",
                    wanted = modules +
                             ": expected modules of torch.nn that hold parameters, or "
                             "full names of other classes, got ";
  const std::string of_param = ": expected the type of the parameters, ",
                    drop = ". Drop the key, or the other section.";
  const std::string two = ": expected \"bfloat16\" or \"float16\", got ";
  return {{"SGD", on + type + "=\"float\"", {type + two + "\"float\". Use one of the two."}},
          {"SGD", type + "=\"fp32\"", {}},
          {"SGD", on + type + "=\"fp16\"", {}},
          {"SGD",
           on + "bf16.enabled=true " + type + "=\"fp16\"",
           {type + of_param + "bf16, got fp16" + drop}},
          {"SGD",
           on + "fp16.enabled=true " + type + "=\"bf16\"",
           {type + of_param + "fp16, got bf16" + drop}},
          {"SGD", on + "fp16.enabled=true", {}},
          {"SGD", on + "bf16.enabled=true " + type + "=\"bfloat16\"", {}},
          {"SGD",
           on + modules + "=[\"Linaer\",\"torch.nn.Conv2\",\"torch.nn.modules.conv.Conv9d\"]",
           {wanted + "\"torch.nn.Linaer\". Did you mean \"torch.nn.Linear\"?",
            wanted + "\"torch.nn.Conv2\". Did you mean \"torch.nn.Conv2d\"?",
            wanted + "\"torch.nn.Conv9d\". Did you mean \"torch.nn.Conv1d\"?"}},
          {"SGD",
           on + modules + "=[\"Softmax2dLayerOf\"]",
           {wanted + "\"torch.nn.Softmax2dLayerOf\". Write torch.nn.Linear, or package.Class."}},
          {"SGD", on + modules + "=[\"my.Own\",\"ours::Own\",\"PReLU\",\"torch.nn.GRUCell\"]", {}},
          {"SGD", on + modules + "=[]", {}},
          {"SGD", modules + "=[\"Softmax2dLayerOf\"]", {}}};
}

// Which kinds have a key, and a value for it.
const std::map<std::string, std::pair<std::string, std::string>>& parameters_of_schedules() {
  static const std::string kWarm = "WarmupLR WarmupDecayLR",
                           kTotal = "WarmupDecayLR WarmupCosineLR",
                           kAnyWarm = "WarmupLR WarmupDecayLR WarmupCosineLR";
  static const std::map<std::string, std::pair<std::string, std::string>> all = {
      {"warmup_min_lr", {kWarm, "0"}},
      {"warmup_max_lr", {kWarm, "0.5"}},
      {"warmup_min_ratio", {"WarmupCosineLR", "0"}},
      {"cos_min_ratio", {"WarmupCosineLR", "0"}},
      {"warmup_num_steps", {kAnyWarm, "5"}},
      {"warmup_type", {kAnyWarm, "\"linear\""}},
      {"total_num_steps", {kTotal, "5"}},
      {"cycle_min_lr", {"OneCycle", "0.1"}},
      {"cycle_max_lr", {"OneCycle", "0.5"}},
      {"cycle_first_step_size", {"OneCycle", "1"}},
      {"cycle_second_step_size", {"OneCycle", "1"}},
      {"cycle_first_stair_count", {"OneCycle", "1"}},
      {"cycle_second_stair_count", {"OneCycle", "1"}},
      {"decay_step_size", {"OneCycle", "1"}},
      {"decay_lr_rate", {"OneCycle", "1"}},
      {"decay_mom_rate", {"OneCycle", "1"}},
      {"cycle_momentum", {"OneCycle", "false"}},
      {"cycle_min_mom", {"OneCycle", "0.5"}},
      {"cycle_max_mom", {"OneCycle", "0.5"}},
      {"lr_range_test_min_lr", {"LRRangeTest", "0"}},
      {"lr_range_test_step_size", {"LRRangeTest", "1"}},
      {"lr_range_test_step_rate", {"LRRangeTest", "1"}},
      {"lr_range_test_staircase", {"LRRangeTest", "true"}},
      {"last_batch_iteration", {kAnyWarm + " OneCycle LRRangeTest", "3"}}};
  return all;
}

// Every key of all kinds, given to each of them.
std::vector<Relation> of_foreign_parameters() {
  std::vector<Relation> all;
  for (const std::string kind :
       {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"}) {
    Relation one{"AdamW", "scheduler.type=\"" + kind + "\"", {}};
    for (const auto& [key, given] : parameters_of_schedules()) {
      one.keys += " scheduler.params." + key + "=" + given.second;
      bool is_own = false;
      for (const auto& owner : words(given.first)) is_own = is_own || owner == kind;
      if (!is_own)
        one.problems.push_back("scheduler.params." + key + ": expected a parameter of " + kind +
                               ", got \"" + key + "\", which it does not have. Drop the key.");
    }
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<Relation> of_schedules() {
  const std::string type = "scheduler.type", params = "scheduler.params.", is = ": expected ",
                    total = params + "total_num_steps",
                    five = "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest, got ";
  std::vector<Relation> all = {
      {"SGD",
       params + "warmup_min_lr=0",
       {type + is + five + "parameters and no type. Add the key."}},
      {"SGD",
       type + "=\"StepLR\"",
       {type + is + five + "\"StepLR\", a Python class of torch. Choose one of the five."}},
      {"SGD",
       type + "=\"onecyclelr\" " + params + "warmup_min_lr=0",
       {type + is + five + "\"onecyclelr\", a Python class of torch. Choose one of the five."}},
      {"SGD",
       type + "=\"WarmpLR\"",
       {type + is + five + "\"WarmpLR\". Did you mean \"WarmupLR\"?"}},
      {"SGD",
       type + "=\"warmupdecaylrs\"",
       {type + is + five + "\"warmupdecaylrs\". Did you mean \"WarmupDecayLR\"?"}},
      {"SGD", type + "=\"qqqqqq\"", {type + is + five + "\"qqqqqq\". Choose one of them."}},
      {"SGD", type + "=\"wARMUPlr\"", {}}};
  for (const std::string kind : {"WarmupDecayLR", "WarmupCosineLR"}) {
    const std::string of = type + "=\"" + kind + "\" ", steps = params + "warmup_num_steps=7 ";
    const std::string none = total + is +
                             "the number of updates of the whole training, got none. "
                             "Add the key.";
    const auto few = [&](const std::string& got) {
      return Problems{total + is + "at least warmup_num_steps = 7, got " + got +
                      ". Raise it, or lower them."};
    };
    all.push_back({"SGD", of, {none}});
    all.push_back({"SGD", of + steps + total + "=0", {none}});
    all.push_back({"SGD", of + steps + total + "=6", few("6")});
    all.push_back({"SGD", of + steps + total + "=-6", few("-6")});
    all.push_back({"SGD", of + steps + total + "=7", {}});
  }
  const std::string cycle = type + "=\"OneCycle\" ",
                    rates = params + "cycle_min_lr=0 " + params + "cycle_max_lr=1 ",
                    momentum = params + "cycle_momentum";
  const std::string list = is +
                           "a number, or a list with one for each parameter group, got none. "
                           "Add the key.";
  const std::vector<Relation> more = {
      {"AdamW", cycle, {params + "cycle_min_lr" + list, params + "cycle_max_lr" + list}},
      {"AdamW", cycle + rates + momentum + "=true", {}},
      {"SGD", cycle + rates + momentum + "=false", {}},
      {"SGD", cycle + rates, {}},
      {"SGD",
       cycle + rates + momentum + "=true",
       {momentum + is +
        "false for SGD, got true. Only Adam's first beta is cycled, as in "
        "DeepSpeed; set it to false, or use Adam."}}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void types_together(Play& play) {
  if (play.group()) {
    check_relations(play, of_loss_scales());
    check_relations(play, of_modes());
    check_relations(play, of_windows());
    check_relations(play, of_autocast());
    check_relations(play, of_schedules());
    check_relations(play, of_foreign_parameters());
  }
  train_along(play);
}

}  // namespace

std::vector<Case> refused_types() {
  return {case_beside({.section = "17",
                       .name = "types_and_schedules_that_do_not_go_together",
                       .sentence = "so are relations of types, loss scales and schedules",
                       .fault = "another problem is expected",
                       .program = types_together},
                      Plays::Once)};
}

}  // namespace equigrad::conformance::contract
