// Keys that change no number: sizes of buckets, what comes and goes when, and those without effect.
#include <algorithm>
#include <string>
#include <vector>

#include "conformance/generator/draw.hpp"
#include "conformance/generator/idle_keys.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;

int64_t any_size(Dice& dice) {
  return dice.coin() ? dice.log_uniform(1, 10'000)
                     : dice.pick<int64_t>({1, 2, 7, 64, 300, 5'000, 100'000, 500'000'000});
}

void of_stage_3(Dice& dice, const Workload& workload, const Execution& how, json& zero) {
  for (const char* key : {"stage3_prefetch_bucket_size", "stage3_max_live_parameters",
                          "stage3_max_reuse_distance", "stage3_param_persistence_threshold"})
    if (dice.coin()) zero[key] = any_size(dice) - 1;
  if (dice.one_in(6)) zero["offload_param"]["device"] = dice.coin() ? "cpu" : "none";
  if (zero.contains("offload_param") && dice.coin())
    zero["offload_param"]["pin_memory"] = dice.coin();
  const bool has_chain =
      std::any_of(workload.tensors.begin(), workload.tensors.end(),
                  [](const WorkloadTensor& tensor) { return tensor.role == "linear"; });
  // Types of modules are known where the model itself is handed in.
  if (has_chain && how.way_in == "module" && dice.one_in(8))
    zero["leaf_module"]["classes"] = {"Linear"};
  std::vector<std::string> modules;
  for (const auto& tensor : workload.tensors) {
    const auto dot = tensor.name.rfind('.');
    // Of a tensor with two names an engine may know the other one.
    if (dot != std::string::npos && tensor.role != "buffer" && tensor.second_name.empty())
      modules.push_back(tensor.name.substr(0, dot));
  }
  if (modules.empty() || !dice.one_in(5)) return;
  const auto module = dice.pick(modules);
  if (dice.coin())
    zero["leaf_module"]["names"] = {module};
  else
    zero["leaf_module"]["name_suffixes"] = {module.substr(module.rfind('.') + 1)};
}

void offload(Dice& dice, const json& config, json& zero) {
  const auto of_numbers = config.value("zero_optimization", json::object());
  const bool is_needed = of_numbers.contains("offload_optimizer");
  if (!is_needed && !dice.one_in(4)) return;
  if (!is_needed && dice.one_in(4)) {
    zero["cpu_offload"] = !dice.one_in(4);
    if (dice.coin()) zero["cpu_offload_use_pin_memory"] = dice.coin();
    return;
  }
  json section = json::object();
  if (!is_needed) section["device"] = dice.coin() ? "cpu" : "none";
  if (dice.coin()) section["pin_memory"] = dice.coin();
  if (dice.one_in(4)) section["ratio"] = 1.0;
  if (!section.empty()) zero["offload_optimizer"] = section;
}

// It counts, and writes to nowhere.
void profiler(Dice& dice, json& knobs) {
  if (!dice.one_in(10)) return;
  auto& section =
      knobs["flops_profiler"] = {{"enabled", dice.coin()}, {"output_file", "/dev/null"}};
  if (dice.coin()) section["profile_step"] = dice.between(1, 3);
  if (dice.coin()) section["module_depth"] = dice.between(-1, 2);
  if (dice.coin()) section["top_modules"] = dice.between(1, 3);
  if (dice.coin()) section["detailed"] = dice.coin();
  if (dice.coin()) section["recompute_fwd_factor"] = dice.pick<double>({0, 0.5, 1});
}

// They change nothing of a step. A section may be empty, and get keys without effect.
void of_checkpoints(Dice& dice, json& knobs) {
  if (!dice.one_in(4)) return;
  auto& section = knobs["checkpoint"] = json::object();
  if (dice.coin()) section["tag_validation"] = dice.pick<std::string>({"Ignore", "Warn", "Fail"});
  if (dice.coin()) section["parallel_write"] = json::object();
}

// Of a tensor group of one rank, which splits nothing whatever its specs say.
void of_tensor_groups(Dice& dice, json& knobs) {
  if (dice.one_in(8)) knobs["sequence_parallel_size"] = 1;
  if (!dice.one_in(4)) return;
  auto& section = knobs["tensor_parallel"] = json::object();
  if (dice.coin()) section["autotp_size"] = dice.between(0, 1);
  if (dice.coin())
    section["preset_model"] = dice.pick<std::string>(
        {"llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3"});
  if (dice.coin()) section["vocab_parallel_lm_head"] = dice.coin();
  if (dice.coin()) section["tp"] = json::object();
  if (section.contains("tp") && dice.coin()) section["tp"]["tp_size"] = 1;
  if (!dice.coin()) return;
  auto& partition = section["partition_config"] = json::object();
  if (dice.coin()) partition["use_default_specs"] = dice.coin();
  if (dice.coin()) partition["strict_mode"] = dice.coin();
  if (dice.coin()) partition["lm_head_patterns"] = {"head"};
  if (dice.coin()) partition["tp_size"] = 1;
  if (dice.coin())
    partition["layer_specs"] = {{{"patterns", {".*weight"}}, {"partition_type", "row"}}};
}

}  // namespace

nlohmann::json draw_knobs(Dice& dice, const Workload& workload, const Execution& how) {
  json knobs = json::object(), zero = json::object();
  for (const char* key : {"reduce_bucket_size", "allgather_bucket_size"})
    if (!dice.one_in(3)) zero[key] = any_size(dice);
  if (dice.one_in(3)) zero["overlap_comm"] = dice.coin();
  if (how.stage == 3) of_stage_3(dice, workload, how, zero);
  if (how.stage > 0) offload(dice, workload.config, zero);
  if (!zero.empty()) knobs["zero_optimization"] = zero;
  if (dice.one_in(6)) knobs["communication_timeout_s"] = dice.pick<double>({300, 1800, 7200.5});
  if (dice.one_in(8)) {
    knobs["progressive_layer_drop"]["enabled"] = dice.coin();
    if (dice.coin()) knobs["progressive_layer_drop"]["theta"] = dice.pick<double>({0, 0.5, 1});
    if (dice.coin()) knobs["progressive_layer_drop"]["gamma"] = dice.pick<double>({0, 0.001, 1});
  }
  // Every step() acts there, which is what it does with one micro-batch anyway.
  if (workload.accumulation == 1 && dice.one_in(6))
    knobs["managed_gradient_accumulation"] = dice.coin();
  profiler(dice, knobs);
  of_checkpoints(dice, knobs);
  if (!workload.core) of_tensor_groups(dice, knobs);
  add_idle_keys(dice, workload.config, knobs);
  // Both names, of what only save_16bit_model() asks for.
  if (dice.one_in(6))
    knobs["zero_optimization"][dice.coin() ? "stage3_gather_16bit_weights_on_model_save"
                                           : "stage3_gather_fp16_weights_on_model_save"] =
        dice.coin();
  return knobs;
}

}  // namespace equigrad::conformance
