// 17. What is refused: names of keys that are not known, keys that are not supported, and texts
// that are no JSON.
#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/reading/reading_cases.hpp"
#include "conformance/contract/reading/texts.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad::conformance::contract {
namespace {

// Every key, by section.
const std::map<std::string, std::string> kNames = {
    {"",
     "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
     "managed_gradient_accumulation zero_allow_untested_optimizer zero_force_ds_cpu_optimizer "
     "gradient_clipping gradient_norm_type prescale_gradients gradient_predivide_factor "
     "gradient_allreduce_op sparse_gradients reduction communication_data_type "
     "seq_parallel_communication_data_type communication_timeout_s disable_allgather "
     "sequence_parallel_size data_parallel_size steps_per_print wall_clock_breakdown "
     "memory_breakdown dump_state log_level dataloader_drop_last aio activation_checkpointing "
     "compile compiled_autograd comms_logger tensorboard wandb comet csv_monitor "
     "eigenvalue quantize_training compression_training curriculum_learning data_efficiency "
     "elasticity autotuning hybrid_engine pipeline sparse_attention nebula vocabulary_size "
     "use_data_before_expert_parallelism expert_parallel graph_harvesting allgather_size "
     "datastates_ckpt"},
    {"optimizer", "type params legacy_fusion"},
    {"optimizer.params",
     "lr weight_decay momentum dampening nesterov eps betas adam_w_mode torch_adam "
     "bias_correction amsgrad maximize differentiable foreach fused capturable max_grad_norm"},
    {"zero_optimization",
     "stage overlap_comm reduce_bucket_size allgather_bucket_size stage3_prefetch_bucket_size "
     "stage3_param_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance "
     "stage3_model_persistence_threshold stage3_gather_16bit_weights_on_model_save "
     "stage3_gather_fp16_weights_on_model_save stage3_module_granularity_threshold "
     "stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential contiguous_gradients "
     "reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions round_robin_gradients "
     "sub_group_size load_from_fp32_weights memory_efficient_linear override_module_apply "
     "log_trace_cache_warnings enable_sanity_checks ignore_unused_parameters "
     "elastic_checkpoint legacy_stage1 pipeline_loading_checkpoint zenflow "
     "zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights "
     "zero_quantized_gradients zeropp_loco_param mics_shard_size "
     "mics_hierarchical_params_gather save_muon_momentum_buffer_in_memory cpu_offload "
     "cpu_offload_use_pin_memory cpu_offload_param"},
    {"zero_optimization.leaf_module", "classes names name_suffixes"},
    {"zero_optimization.offload_param",
     "device pin_memory nvme_path buffer_count buffer_size max_in_cpu"},
    {"zero_optimization.offload_optimizer",
     "device pin_memory ratio nvme_path buffer_count pipeline pipeline_read pipeline_write "
     "fast_init convert_grad_on_cpu super_offload cpuadam_cores_perc"},
    {"amp",
     "enabled opt_level patch_torch_functions master_weights keep_batchnorm_fp32 loss_scale "
     "max_loss_scale min_loss_scale cast_model_type cast_batchnorm cast_model_outputs "
     "num_losses verbosity"},
    {"fp16",
     "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis "
     "consecutive_hysteresis min_loss_scale fp16_master_weights_and_grads "
     "fp16_master_weights_and_gradients"},
    {"bf16",
     "enabled check_grad_overflow immediate_grad_update bf16_master_weights_and_grads "
     "bf16_optimizer_states"},
    {"torch_autocast", "enabled dtype lower_precision_safe_modules"},
    {"data_types", "param_dtype grad_accum_dtype buffer_dtype"},
    {"scheduler.params",
     "warmup_min_lr warmup_max_lr warmup_min_ratio cos_min_ratio warmup_num_steps warmup_type "
     "total_num_steps cycle_min_lr cycle_max_lr cycle_first_step_size cycle_second_step_size "
     "cycle_first_stair_count cycle_second_stair_count decay_step_size decay_lr_rate "
     "decay_mom_rate cycle_momentum cycle_min_mom cycle_max_mom lr_range_test_min_lr "
     "lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase "
     "last_batch_iteration"},
    {"progressive_layer_drop", "enabled theta gamma"},
    {"tensor_parallel",
     "autotp_size preset_model vocab_parallel_lm_head dtype tp_overlap_comm "
     "vocab_parallel_ce_backend keep_module_on_host replace_with_kernel_inject kernel_inject "
     "injection_policy_tuple"},
    {"tensor_parallel.tp", "tp_size tp_grain_size mpu tp_group"},
    {"tensor_parallel.partition_config",
     "use_default_specs strict_mode layer_specs lm_head_patterns tp_size "
     "embedding_partition_dim"},
    {"checkpoint", "tag_validation load_universal use_node_local_storage writer"},
    {"checkpoint.parallel_write", "pipeline_stage"},
    {"flops_profiler",
     "enabled profile_step module_depth top_modules detailed output_file recompute_fwd_factor"}};

std::string with_dot(const std::string& section) { return section.empty() ? "" : section + "."; }

// Of two neighbours of it, the other way round.
std::string misspelt(std::string name, std::mt19937_64& random) {
  const std::size_t places = name.size() - 1;
  std::size_t at = random() % places;
  while (name[at] == name[at + 1]) at = (at + 1) % places;
  std::swap(name[at], name[at + 1]);
  return name;
}

// Every key of a section, one letter off.
void check_spelling(Play& play) {
  std::mt19937_64 random(play.context().seed);
  for (const auto& [section, keys] : kNames) {
    auto text = usual_keys("SGD");
    std::vector<std::string> problems;
    for (const auto& key : words(keys)) {
      const auto wrong = misspelt(key, random);
      text.push_back({with_dot(section) + wrong, "1"});
      problems.push_back(with_dot(section) + wrong + ": expected a known key" +
                         (section.empty() ? "" : " of " + section) + ", got \"" + wrong +
                         "\". Did you mean \"" + key + "\"?");
    }
    if (section == "scheduler.params")
      problems.emplace_back(
          "scheduler.type: expected WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or "
          "LRRangeTest, got parameters and no type. Add the key.");
    check_problems(play, text_of_keys(text), problems);
  }
}

// A key of another section, none at all, and one with a dot in it.
void check_elsewhere(Play& play) {
  const auto at = [](const std::string& path) { return " It belongs at \"" + path + "\"."; };
  const auto unknown = [](const std::string& path, const std::string& section,
                          const std::string& key, const std::string& hint) {
    return path + ": expected a known key" + (section.empty() ? "" : " of " + section) +
           ", got \"" + key + "\"." + hint;
  };
  const std::string drop = " Drop it, or correct its name.";
  check_problems(
      play,
      R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "gamma": 1},
          "lr": 1, "hysteresis": 2, "bf16": {"theta": 0}, "qqqqqqqq": 1, "eps.": 1,
          "bf16.enabled": true, "optimizer.type": "SGD", "flops_profiler": {"a.b": 0},
          "data_types": {"optimizer.params.betas": 1}, "gradient": 3, "": 4})",
      {unknown("optimizer.gamma", "optimizer", "gamma", at("progressive_layer_drop.gamma")),
       unknown("lr", "", "lr", at("optimizer.params.lr")),
       unknown("hysteresis", "", "hysteresis", at("fp16.hysteresis")),
       unknown("bf16.theta", "bf16", "theta", at("progressive_layer_drop.theta")),
       unknown("qqqqqqqq", "", "qqqqqqqq", drop), unknown("\"eps.\"", "", "eps.", drop),
       unknown("\"bf16.enabled\"", "", "bf16.enabled", at("bf16.enabled")),
       unknown("\"optimizer.type\"", "", "optimizer.type", at("optimizer.type")),
       unknown("flops_profiler.\"a.b\"", "flops_profiler", "a.b", drop),
       unknown("data_types.\"optimizer.params.betas\"", "data_types", "optimizer.params.betas",
               at("optimizer.params.betas")),
       unknown("gradient", "", "gradient", " Did you mean \"gradient_accumulation_steps\"?"),
       unknown("", "", "", drop)});
}

// Sections that are no objects, and placeholders.
void check_sections(Play& play) {
  auto text = keys_of("train_micro_batch_size_per_gpu=1");
  std::vector<std::string> problems;
  for (const std::string section : {"optimizer", "scheduler", "zero_optimization", "fp16", "bf16",
                                    "amp", "torch_autocast", "data_types", "progressive_layer_drop",
                                    "tensor_parallel", "flops_profiler", "checkpoint"}) {
    text.push_back({section, "[1]"});
    problems.push_back(section + ": expected an object, got [1]. Write \"" + section +
                       "\": {...}.");
  }
  check_problems(play, text_of_keys(text), problems);
  const auto inner = keys_of(
      "optimizer.params=3 zero_optimization.leaf_module=\"x\" scheduler.params=false "
      "zero_optimization.offload_param=true zero_optimization.offload_optimizer=0 "
      "tensor_parallel.tp=3 tensor_parallel.partition_config=false");
  problems.clear();
  for (const auto& key : inner)
    problems.push_back(key.path + ": expected an object, got " + key.value + ". Write \"" +
                       key.path.substr(key.path.find('.') + 1) + "\": {...}.");
  check_problems(play, text_of_keys(with_keys(usual_keys("SGD"), inner)), problems);
  text = usual_keys("SGD");
  problems.clear();
  for (const std::string path :
       {"gradient_clipping", "fp16.enabled", "train_batch_size", "zero_optimization",
        "steps_per_print", "aio", "optimizer.params.lr", "elasticity", "amp.num_losses"}) {
    text.push_back({path, "\"auto\""});
    problems.push_back(path +
                       ": expected a value, got \"auto\", a Hugging Face placeholder that its "
                       "Trainer fills in; give a number (or the value that is meant), or drop the "
                       "key.");
  }
  check_problems(play, text_of_keys(text), problems);
}

void unknown_names(Play& play) {
  if (play.group()) {
    check_spelling(play);
    check_elsewhere(play);
    check_sections(play);
  }
  train_along(play);
}

// Keys of a kind, what they accept, and what is said to do instead.
struct Absent {
  std::string keys;
  std::vector<std::string> accepted;
  std::string remedy = "Drop the key.";
};

const std::vector<Absent>& absent() {
  static const std::string zero = "zero_optimization.", amp = "amp.", params = "optimizer.params.",
                           tensor = "tensor_parallel.";
  static const std::string python =
      "It is a Python facility; the C++ autograd graph needs no compilation. Drop the key.";
  static const std::vector<Absent> all = {
      {"disable_allgather use_data_before_expert_parallelism graph_harvesting "
       "optimizer.legacy_fusion optimizer.params.amsgrad optimizer.params.maximize "
       "optimizer.params.differentiable zero_optimization.legacy_stage1 "
       "zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_gradients "
       "zero_optimization.zero_quantized_nontrainable_weights "
       "zero_optimization.mics_hierarchical_params_gather "
       "zero_optimization.save_muon_momentum_buffer_in_memory",
       {"false"}},
      {"sparse_gradients",
       {"false"},
       "A sparse gradient is refused: build embeddings with sparse(false), in Python with "
       "sparse=False."},
      {zero + "cpu_offload_param", {"false"}, "Write \"offload_param\": {\"device\": \"cpu\"}."},
      {params + "bias_correction",
       {"true"},
       "Means are always corrected here; without it first steps would be larger. Drop the key."},
      {zero + "ignore_unused_parameters", {"true"}, "Unused parameters are left untouched."},
      {zero + "zero_hpz_partition_size", {"1"}},
      {tensor + "keep_module_on_host " + tensor + "replace_with_kernel_inject " + tensor +
           "kernel_inject",
       {"false"},
       "Models are built by the caller, and split when the engine is made. Drop the key."},
      {tensor + "vocab_parallel_ce_backend",
       {"\"torch\""},
       "The loss has one implementation. Drop the key."},
      {tensor + "injection_policy_tuple",
       {},
       "Name them in partition_config, with \"partition_type\": \"row\"."},
      {tensor + "tp.tp_grain_size", {"1"}, "Every cut is even."},
      {tensor + "tp.mpu", {}, "Give it to initialize."},
      {tensor + "tp.tp_group", {}, "Give mpu to initialize."},
      {tensor + "partition_config.embedding_partition_dim",
       {"1"},
       "Write a spec for the embedding: \"row\" cuts the vocabulary, \"column\" the outputs."},
      {amp + "num_losses", {"1"}, "All losses share one loss scale."},
      {zero + "stage3_module_granularity_threshold", {"0"}},
      {zero + "mics_shard_size", {"-1"}},
      {zero + "stage3_model_persistence_threshold",
       {"9223372036854775807"},
       "Lower stage3_param_persistence_threshold."},
      {"seq_parallel_communication_data_type", {"\"fp32\""}},
      {"checkpoint.use_node_local_storage",
       {"false"},
       "Give all ranks one folder that they share."},
      {"checkpoint.writer", {}, "There is one writer. Drop the key."},
      {"comms_logger tensorboard wandb comet csv_monitor "
       "quantize_training compression_training curriculum_learning data_efficiency elasticity "
       "autotuning hybrid_engine pipeline sparse_attention expert_parallel nebula "
       "zero_optimization.zenflow zero_optimization.zeropp_loco_param",
       {}},
      {"activation_checkpointing", {}, "Checkpoint activations in the model."},
      {"datastates_ckpt", {}, "Ask save_checkpoint() for an asynchronous save."},
      {"compile compiled_autograd", {}, python},
      {"eigenvalue", {}, "Call equigrad::profile::eigenvalue."},
      {params + "max_grad_norm", {}, "Use the top-level \"gradient_clipping\"."},
      {amp + "min_loss_scale", {}, "The loss scale has no floor; drop the key."},
      {"amp.cast_model_type amp.cast_batchnorm", {}, "\"opt_level\" decides it; drop the key."},
      {amp + "cast_model_outputs", {}, "Cast the outputs where the model is called."},
      {"data_types.buffer_dtype", {}, "Buffers keep the model's own types."},
      {zero + "offload_optimizer.super_offload", {"false"}}};
  return all;
}

// Values that none of them accepts; of keys that are off, what is not off.
std::vector<std::string> never_accepted(const Absent& key) {
  if (key.accepted.empty())
    return {"true", "{\"enabled\":true}", "{\"a\":1}", "\"on\"", "{\"device\":\"cpu\"}", "0"};
  const auto& one = key.accepted.front();
  if (one == "true" || one == "false")
    return {one == "true" ? "false" : "true", "0", "1", "\"false\"", "[]", "{}"};
  return {"18446744073709551615", "true", "2", "\"fp16\"", "[]", "\"fp3\""};
}

void unsupported_keys(Play& play) {
  if (play.group()) {
    for (std::size_t turn = 0; turn < 6; ++turn) {
      auto text = with_keys(usual_keys("AdamW"), keys_of("amp.enabled=true "
                                                         "zero_optimization.stage=1 "
                                                         "zero_optimization.offload_optimizer."
                                                         "device=\"cpu\""));
      std::vector<std::string> problems;
      for (const auto& key : absent())
        for (const auto& path : words(key.keys)) {
          const auto value = never_accepted(key)[turn];
          text.push_back({path, value});
          problems.push_back(path + ": expected " +
                             (key.accepted.empty() ? "it to be off" : key.accepted.front()) +
                             ", got " + value + kUnsupported + key.remedy);
        }
      check_problems(play, text_of_keys(text), problems);
    }
  }
  train_along(play);
}

std::string nested(int levels) {
  std::string text = "{";
  for (int level = 2; level <= levels; ++level) text += "\"aio\": {";
  return text + std::string(static_cast<std::size_t>(levels), '}');
}

void check_syntax(Play& play) {
  const auto starts = [&](const std::string& text, const std::vector<std::string>& parts) {
    const auto problems = problems_of(text, play.context().world);
    bool holds = problems.size() == 1 && !play.fault();
    for (const auto& part : parts)
      holds = holds && problems.front().find(part) != std::string::npos;
    play.check(text.substr(0, 60) + " is refused: " + parts.front() +
                   "; it is: " + (problems.empty() ? "not" : problems.front()),
               holds);
  };
  const std::string rest = R"(, "train_batch_size": 60, "optimizer": {"type": "SGD"}})";
  starts(R"({"fp16": {"hysteresis": 1, "hysteresis": 1})" + rest,
         {"fp16.hysteresis: expected every key once, got it twice. Drop one of them."});
  starts(R"({"aio": [{"a": 1, "b": 0}, {"b": {"a": 1}, "b": 0}])" + rest,
         {"aio.b: expected every key once, got it twice."});
  starts(R"({"bf16": {"enabled": false}, "bf16": {})" + rest, {"bf16: expected every key once"});
  starts(R"({"fp16": {"loss_scale": 1e999})" + rest,
         {"fp16.loss_scale: expected a number that fits a double, got ", "1e999",
          ". Give a finite number."});
  starts(R"({"fp16": {"loss_scale": NaN})" + rest,
         {"fp16.loss_scale: expected JSON, got a ", "line 1, column 25",
          "Correct the syntax there; JSON has no NaN and no infinity."});
  starts("{", {"the file: expected JSON, got a parse error"});
  starts("[1]", {"the path of a readable file, got \"[1]\". Check the path."});
  starts("", {"expected a JSON text that begins with { or the path of a readable file, got \"\""});
  starts("/", {"the path of a readable file, got \"/\""});
  play.refuse("[config] the file: expected a JSON object, got array. Begin it with {.",
              [&] { parse_config("[1]", play.context().world); });
  play.refuse("the file: expected a JSON object, got number.",
              [&] { parse_config(" 3", play.context().world); });
  const auto deep = [&](int levels) {
    auto text = nested(levels);
    return text.substr(0, text.size() - 1) + rest;
  };
  std::string path = "aio";
  for (int level = 3; level <= 33; ++level) path += ".aio";
  starts(deep(33), {path + ": expected at most 32 levels, got more. Flatten the file."});
  check_problems(play, deep(32), {});
  const std::string long_text(70, 'a');
  starts(R"({"reduction": [")" + long_text + "\"]" + rest,
         {"expected a text in quotes, got [\"" + std::string(58, 'a') + ".... Write"});
}

void check_comments(Play& play) {
  const auto plain = R"({"train_batch_size": 60, "optimizer": {"type": "SGD"}})";
  const auto with =
      "\n\t {// of the batch\n\"train_batch_size\": /* \"a\": 1, */ 60, \"optimizer\": "
      "{\"type\": \"SGD\"}, \"bf16\": null /*}*/} // end";
  const int world = play.context().world;
  play.check("comments and null change nothing",
             parse_config(with, world) == parse_config(plain, world) &&
                 load_config(with, world) == parse_config(plain, world));
  const auto problems = problems_of(R"({"bf16": 3, "lr": 1, "optimizer": {"type": "x"}})", world);
  bool holds = problems.size() == 4;
  std::string numbered = "[config] ";
  for (std::size_t i = 0; i < problems.size(); ++i)
    numbered += (i == 0 ? "" : "\n") + problems[i] + " (" + std::to_string(i + 1) + " of " +
                std::to_string(problems.size()) + " problems)";
  try {
    (void)parse_config(R"({"bf16": 3, "lr": 1, "optimizer": {"type": "x"}})", world);
  } catch (const std::exception& error) {
    holds = holds && error.what() == numbered;
  }
  play.check("several problems are numbered, in the order of the table", holds);
}

// By the definition, without a table.
std::size_t changes(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  const auto of = [](const std::string& text, std::size_t less) {
    return text.substr(0, text.size() - less);
  };
  std::size_t least = changes(of(a, 1), of(b, 1)) + (a.back() == b.back() ? 0 : 1);
  least = std::min({least, changes(of(a, 1), b) + 1, changes(a, of(b, 1)) + 1});
  if (a.size() > 1 && b.size() > 1 && a.back() == b[b.size() - 2] && b.back() == a[a.size() - 2])
    least = std::min(least, changes(of(a, 2), of(b, 2)) + 1);
  return least;
}

void check_suggestions(Play& play) {
  std::mt19937_64 random(play.context().seed);
  const auto word = [&](std::size_t most) {
    std::string text;
    for (std::size_t size = random() % (most + 1); size > 0; --size)
      text += static_cast<char>('a' + random() % 3);
    return text;
  };
  bool holds = true;
  for (int i = 0; i < 60; ++i) {
    const auto a = word(5), b = word(5);
    holds = holds && edit_distance(a, b) == changes(a, b);
  }
  play.check("an edit distance is the least number of changes", holds);
  const auto nearest = [&](const std::string& name, const std::vector<std::string>& of,
                           const std::string& want) {
    const auto got = nearest_name(name, of);
    play.check("nearest to " + name.substr(0, 20) + " is \"" + want + "\", it is \"" + got + "\"",
               got == want);
  };
  nearest("abcd", {"abXY", "abcX", "abXd"}, "abcX");
  nearest("abcd", {"aXYZ", "abXY"}, "abXY");
  nearest("abcd", {"aXYZ", "XYZd"}, "");
  nearest("abcdefghi", {"abcdefXYZ"}, "abcdefXYZ");
  nearest("abcdefgh", {"abcdeXYZ"}, "");
  nearest("abcdefghijkl", {"abcdefghWXYZ"}, "abcdefghWXYZ");
  nearest("abcdefghijk", {"abcdefgWXYZ"}, "");
  nearest("a", {"", "bc"}, "");
  nearest("a", {"bc", "abcdef"}, "bc");
  nearest("", {"a", ""}, "");
  nearest("pre", {"abcdefgh", "prefixes", "prefix"}, "prefixes");
  nearest("fix", {"prefixes"}, "");
  const std::string longest(256, 'a');
  nearest(longest, {longest + "b"}, longest + "b");
  nearest(longest + "a", {longest + "b"}, "");
  play.check("a suggestion is a question, or nothing",
             did_you_mean("ab", {"abc"}) == " Did you mean \"abc\"?" &&
                 did_you_mean("ab", {"xyzvw"}).empty());
}

void no_json(Play& play) {
  if (play.group()) {
    check_syntax(play);
    check_comments(play);
    check_suggestions(play);
  }
  train_along(play);
}

Case of(const std::string& name, const std::string& sentence, void (*program)(Play&)) {
  return case_beside({.section = "17",
                      .name = name,
                      .sentence = sentence,
                      .fault = "another problem is expected",
                      .program = program},
                     Plays::EveryWorld);
}

}  // namespace

std::vector<Case> refused_names() {
  return {
      of("names_of_keys_that_are_not_known",
         "a key that is misspelt, elsewhere, no section or a placeholder is refused with a hint",
         unknown_names),
      of("keys_that_are_not_supported",
         "a key of another engine is refused unless it says what holds here", unsupported_keys),
      of("texts_that_are_no_configuration",
         "a text that is no JSON is refused at its place; the nearest name is suggested", no_json)};
}

}  // namespace equigrad::conformance::contract
