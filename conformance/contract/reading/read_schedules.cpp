// 15. What the schedules of a configuration are read as, keys without effect, the whole table, and
// the page and the schema of all keys.
#include <algorithm>
#include <functional>
#include <utility>

#include "conformance/contract/programs/beside.hpp"
#include "conformance/contract/reading/reading_cases.hpp"
#include "conformance/contract/reading/texts.hpp"
#include "engine/config/documents.hpp"

namespace equigrad::conformance::contract {
namespace {

using ScheduleKind = SchedulerConfig::Kind;

struct ScheduleRead {
  std::string optimizer;
  std::string keys;                // after scheduler.type; those of scheduler.params by their name
  std::vector<std::string> lines;  // as well, those of params without "scheduler.params."
  bool uses_lr = false;
  SchedulerConfig want;
};

std::vector<ScheduleRead> of_warm_up() {
  const SchedulerConfig usual;
  SchedulerConfig all, decay = usual, cosine = usual, cosine_all;
  all = {.warmup_min_lr = {0.125},
         .warmup_max_lr = {0.25, 0.5},
         .warmup_num_steps = 7,
         .warmup_type = SchedulerConfig::WarmupType::Linear};
  all.last_batch_iteration = 9;
  decay.kind = ScheduleKind::WarmupDecayLr;
  decay.warmup_max_lr = {0.001};
  decay.total_num_steps = 2000;
  cosine.kind = cosine_all.kind = ScheduleKind::WarmupCosineLr;
  cosine.total_num_steps = cosine_all.total_num_steps = 3000;
  cosine_all.warmup_num_steps = 4;
  cosine_all.warmup_min_ratio = 0.25;
  cosine_all.cos_min_ratio = 0.5;
  const std::string begin = "warmup_min_lr = 0.0 (default)",
                    steps = "warmup_num_steps = 1000 (default)",
                    type = "warmup_type = \"log\" (default)",
                    last = "last_batch_iteration = -1 (default)";
  return {
      {"SGD",
       "WarmupLR",
       {begin, "warmup_max_lr = null (derived) each parameter group's own lr", steps, type, last},
       true,
       usual},
      {"SGD",
       "WarmupLR warmup_min_lr=0.125 warmup_max_lr=[0.25,0.5] warmup_num_steps=7 "
       "warmup_type=\"linear\" last_batch_iteration=9",
       {"warmup_min_lr = 0.125 (file)", "warmup_max_lr = [0.25,0.5] (file)",
        "warmup_num_steps = 7 (file)", "warmup_type = \"linear\" (file)",
        "last_batch_iteration = 9 (file)"},
       false,
       all},
      {"SGD",
       "WarmupDecayLR total_num_steps=2000",
       {begin, "warmup_max_lr = 0.001 (default)", steps, type, last,
        "total_num_steps = 2000 (file)"},
       false,
       decay},
      {"SGD",
       "WarmupCosineLR total_num_steps=3000",
       {"warmup_min_ratio = 0.0 (default)", "cos_min_ratio = 0.0001 (default)", steps, type, last,
        "total_num_steps = 3000 (file)"},
       true,
       cosine},
      {"SGD",
       "WarmupCosineLR total_num_steps=3000 warmup_num_steps=4 warmup_min_ratio=0.25 "
       "cos_min_ratio=0.5",
       {"warmup_min_ratio = 0.25 (file)", "cos_min_ratio = 0.5 (file)",
        "warmup_num_steps = 4 (file)", type, last, "total_num_steps = 3000 (file)"},
       true,
       cosine_all}};
}

SchedulerConfig one_cycle() {
  SchedulerConfig cycle;
  cycle.kind = ScheduleKind::OneCycle;
  cycle.cycle_min_lr = {0.25};
  cycle.cycle_max_lr = {0.5};
  cycle.cycle_second_step_size = 2000;
  cycle.cycle_second_stair_count = 0;
  return cycle;
}

std::vector<ScheduleRead> of_cycles() {
  SchedulerConfig plain = one_cycle(), all = one_cycle();
  plain.cycle_momentum = false;
  plain.decay_lr_rate = 0.5;
  all = {.cycle_min_lr = {0.25},
         .cycle_max_lr = {0.5},
         .decay_lr_rate = 0.0625,
         .cycle_first_step_size = 3,
         .cycle_second_step_size = 4,
         .cycle_first_stair_count = 5,
         .cycle_second_stair_count = 6,
         .decay_step_size = 8,
         .cycle_min_mom = {0.125},
         .cycle_max_mom = {0.375, 0.75},
         .decay_mom_rate = 0.03125};
  all.kind = ScheduleKind::OneCycle;
  SchedulerConfig derived = one_cycle();
  derived.cycle_first_step_size = 3;
  derived.cycle_second_step_size = 3;
  derived.cycle_first_stair_count = 5;
  derived.cycle_second_stair_count = 5;
  const std::string rates = "OneCycle cycle_min_lr=0.25 cycle_max_lr=0.5",
                    none = "decay_step_size is 0", off = "cycle_momentum is false",
                    as_step = "(derived) as cycle_first_step_size",
                    as_stair = "(derived) as cycle_first_stair_count",
                    last = "last_batch_iteration = -1 (default)",
                    low = "cycle_min_lr = 0.25 (file)", high = "cycle_max_lr = 0.5 (file)",
                    no_decay = "decay_step_size = 0 (default)";
  return {{"SGD",
           rates + " decay_lr_rate=0.5",
           {low, high, "cycle_first_step_size = 2000 (default)",
            "cycle_second_step_size = 2000 " + as_step, "cycle_first_stair_count = 0 (default)",
            "cycle_second_stair_count = 0 " + as_stair, no_decay,
            "decay_lr_rate = 0.5 (no effect) " + none, "decay_mom_rate = 0.0 (default) " + off,
            "cycle_momentum = false (derived) SGD keeps its momentum, as in DeepSpeed",
            "cycle_min_mom = 0.8 (default) " + off, "cycle_max_mom = 0.9 (default) " + off, last},
           false,
           plain},
          {"AdamW",
           rates + " cycle_first_step_size=3 cycle_first_stair_count=5",
           {low, high, "cycle_first_step_size = 3 (file)", "cycle_second_step_size = 3 " + as_step,
            "cycle_first_stair_count = 5 (file)", "cycle_second_stair_count = 5 " + as_stair,
            no_decay, "decay_lr_rate = 0.0 (default) " + none,
            "decay_mom_rate = 0.0 (default) " + none, "cycle_momentum = true (default)",
            "cycle_min_mom = 0.8 (default)", "cycle_max_mom = 0.9 (default)", last},
           false,
           derived},
          {"AdamW",
           rates + " cycle_first_step_size=3 cycle_second_step_size=4 cycle_first_stair_count=5 "
                   "cycle_second_stair_count=6 decay_step_size=8 decay_lr_rate=0.0625 "
                   "decay_mom_rate=0.03125 cycle_momentum=true cycle_min_mom=0.125 "
                   "cycle_max_mom=[0.375,0.75]",
           {low, high, "cycle_first_step_size = 3 (file)", "cycle_second_step_size = 4 (file)",
            "cycle_first_stair_count = 5 (file)", "cycle_second_stair_count = 6 (file)",
            "decay_step_size = 8 (file)", "decay_lr_rate = 0.0625 (file)",
            "decay_mom_rate = 0.03125 (file)", "cycle_momentum = true (file)",
            "cycle_min_mom = 0.125 (file)", "cycle_max_mom = [0.375,0.75] (file)", last},
           false,
           all}};
}

std::vector<ScheduleRead> of_range_tests() {
  SchedulerConfig usual, all;
  usual.kind = all.kind = ScheduleKind::LrRangeTest;
  all.lr_range_test_min_lr = {0.25};
  all.lr_range_test_step_size = 3;
  all.lr_range_test_step_rate = 4;
  all.lr_range_test_staircase = true;
  const std::string name = "lr_range_test_", last = "last_batch_iteration = -1 (default)";
  return {{"SGD",
           "LRRangeTest",
           {name + "min_lr = 0.001 (default)", name + "step_size = 2000 (default)",
            name + "step_rate = 1.0 (default)", name + "staircase = false (default)", last},
           false,
           usual},
          {"SGD",
           "LRRangeTest lr_range_test_min_lr=0.25 lr_range_test_step_size=3 "
           "lr_range_test_step_rate=4 lr_range_test_staircase=true",
           {name + "min_lr = 0.25 (file)", name + "step_size = 3 (file)",
            name + "step_rate = 4.0 (file)", name + "staircase = true (file)", last},
           false,
           all}};
}

void check_schedules(Play& play, const std::vector<ScheduleRead>& all) {
  for (const auto& one : all) {
    auto named = words(one.keys);
    Told told{"scheduler.type=\"" + named.front() + "\"", {}, {}};
    for (std::size_t i = 1; i < named.size(); ++i) told.keys += " scheduler.params." + named[i];
    told.lines = {"scheduler.type = \"" + named.front() + "\" (file)"};
    for (const auto& line : one.lines) told.lines.push_back("scheduler.params." + line);
    if (!one.uses_lr)
      told.lines.push_back("optimizer.params.lr = 0.001 (default) " + named.front() +
                           " sets the learning rate");
    told.make = [&one](EngineConfig& config) { config.scheduler = one.want; };
    check_told(play, usual_keys(one.optimizer), told);
    play.check("a schedule's name is its type's", name_of(one.want.kind) == named.front());
  }
}

// Keys that change nothing, and why; each with any value.
void check_no_effect(Play& play) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {"it only changes what DeepSpeed prints",
       "steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level "
       "zero_optimization.log_trace_cache_warnings"},
      {"nothing is offloaded to a disk", "aio"},
      {"DeepSpeed reads it beside zero_optimization = true alone; it changes no bits",
       "allgather_size"},
      {"nothing here reads it", "vocabulary_size"},
      {"every optimizer accepted here is tested", "zero_allow_untested_optimizer"},
      {"the update rule has one implementation",
       "zero_force_ds_cpu_optimizer optimizer.params.foreach optimizer.params.fused "
       "optimizer.params.capturable"},
      {"it changes when parameters are sent, not their bits",
       "zero_optimization.stage3_use_all_reduce_for_fetch_params "
       "zero_optimization.stage3_allgather_sequential zero_optimization.allgather_partitions"},
      {"gradients are always copied into contiguous buckets",
       "zero_optimization.contiguous_gradients"},
      {"the order of every sum is the engine's own",
       "zero_optimization.reduce_scatter zero_optimization.use_multi_rank_bucket_allreduce"},
      {"every parameter is spread over all ranks already",
       "zero_optimization.round_robin_gradients"},
      {"the update is elementwise, so grouping cannot change it",
       "zero_optimization.sub_group_size"},
      {"every checkpoint may", "zero_optimization.elastic_checkpoint"},
      {"a rank reads nothing but what it needs", "zero_optimization.pipeline_loading_checkpoint"},
      {"every checkpoint may be loaded by another number of ranks", "checkpoint.load_universal"},
      {"every rank writes an equal part", "checkpoint.parallel_write.pipeline_stage"},
      {"master weights are the model's weights before they are rounded",
       "zero_optimization.load_from_fp32_weights"},
      {"functions of the framework are never replaced",
       "zero_optimization.memory_efficient_linear zero_optimization.override_module_apply"},
      {"the checks are always on", "zero_optimization.enable_sanity_checks"},
      {"it changes when sums are sent, not their bits", "tensor_parallel.tp_overlap_comm"},
      {"only offloading to a disk uses it",
       "zero_optimization.offload_param.nvme_path zero_optimization.offload_param.buffer_count "
       "zero_optimization.offload_param.buffer_size zero_optimization.offload_param.max_in_cpu "
       "zero_optimization.offload_optimizer.nvme_path "
       "zero_optimization.offload_optimizer.buffer_count "
       "zero_optimization.offload_optimizer.pipeline "
       "zero_optimization.offload_optimizer.pipeline_read "
       "zero_optimization.offload_optimizer.pipeline_write "
       "zero_optimization.offload_optimizer.fast_init"},
      {"a gradient is widened to the same bits on both",
       "zero_optimization.offload_optimizer.convert_grad_on_cpu"},
      {"only super_offload uses it", "zero_optimization.offload_optimizer.cpuadam_cores_perc"},
      {"it only changes what apex prints", "amp.verbosity"},
      {"gradients are always added as they become ready", "bf16.immediate_grad_update"}};
  for (const std::string value : {"3", "{\"a\":[true]}", "\"x\"", "false"}) {
    Told told{"", {}, [](EngineConfig&) {}};
    for (const auto& [why, keys] : all)
      for (const auto& key : words(keys)) {
        told.keys += " " + key + "=" + value;
        told.lines.push_back(key + " = " + value + " (no effect) " + why);
      }
    check_told(play, usual_keys("SGD"), told);
  }
}

// Keys of other engines that say what holds here.
void check_as_it_is(Play& play) {
  const std::string always = "this is how it always is here", off = "it is off",
                    null = "null stands for the default";
  const auto check = [&](const std::string& why, const std::string& keys) {
    Told told{keys, {}, [](EngineConfig&) {}};
    for (const auto& key : keys_of(keys))
      told.lines.push_back(key.path + " = " + key.value + " (no effect) " + why);
    check_told(play, usual_keys("AdamW"), told);
  };
  check(always,
        "disable_allgather=false tensor_parallel.tp.tp_grain_size=1 sparse_gradients=false "
        "seq_parallel_communication_data_type=\"FP32\" optimizer.params.bias_correction=true "
        "zero_optimization.mics_shard_size=-1 zero_optimization.zero_hpz_partition_size=1.0 "
        "zero_optimization.stage3_module_granularity_threshold=0 "
        "zero_optimization.ignore_unused_parameters=true graph_harvesting=false "
        "zero_optimization.stage3_model_persistence_threshold=9223372036854775807");
  check(off,
        "tensor_parallel.injection_policy_tuple=false compile={\"enabled\":false} elasticity={} "
        "wandb={\"a\":false} "
        "comet={\"a\":3,\"device\":\"none\"} pipeline={\"a\":null,\"b\":false} "
        "checkpoint.writer={\"device\":\"cpu\",\"enabled\":false} nebula={\"device\":null} "
        "zero_optimization.offload_optimizer.super_offload=true amp.num_losses=4 "
        "amp.cast_model_type=\"x\" amp.min_loss_scale=3");
  check(null,
        "tensor_parallel=null disable_allgather=null zero_optimization.zenflow=null "
        "steps_per_print=null amp.num_losses=null zero_optimization.mics_shard_size=null");
  const std::string nothing =
      "zero_optimization=null fp16={} bf16={\"enabled\":null} amp={} "
      "scheduler=null flops_profiler={\"enabled\":false} "
      "torch_autocast={} data_types={} optimizer.params={} "
      "gradient_clipping=null train_batch_size=null";
  const auto usual = explain_config(text_of_keys(usual_keys("SGD")), play.context().world),
             empty = explain_config(text_of_keys(with_keys(usual_keys("SGD"), keys_of(nothing))),
                                    play.context().world);
  play.check("an empty section is one that is not there", empty.config == usual.config);
}

// The whole table of a text, by hand.
void check_table_of_text(Play& play) {
  const EffectiveConfig two{{},
                            {{"a.long", "1", Setting::Origin::File, ""},
                             {"b", "[1,2,3]", Setting::Origin::NoEffect, "why"},
                             {"c", "", Setting::Origin::Derived, "from a"},
                             {"d", "x", Setting::Origin::Default, ""}}};
  play.check("columns are as wide as their widest, two apart, and no line ends in blanks",
             describe(two) ==
                 "a.long  1        file\n"
                 "b       [1,2,3]  no effect here  why\n"
                 "c                derived         from a\n"
                 "d       x        default\n");
  play.check("a table without lines is empty", describe({}).empty());
  const std::string order =
      "train_batch_size optimizer.type zero_optimization.stage "
      "zero_optimization.offload_param.device gradient_clipping amp.enabled fp16.enabled "
      "bf16.enabled torch_autocast.enabled data_types.param_dtype scheduler.type "
      "communication_timeout_s flops_profiler.enabled";
  const auto table =
      describe(explain_config(text_of_keys(usual_keys("SGD")), play.context().world));
  std::size_t at = 0;
  bool holds = !play.fault();
  for (const auto& key : words(order)) {
    const auto found = table.find(key + " ", at);
    holds = holds && found != std::string::npos;
    at = found == std::string::npos ? at : found;
  }
  play.check("the table is in the order of the page", holds);
}

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count_of = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count_of;
  return count_of;
}

// One line of the page for each sort of value.
void check_page(Play& play) {
  const auto page = markdown_page();
  for (const std::string line :
       {"# Configuration\n\n",
        "\n## `zero_optimization.offload_param`\n\nWhere a rank's",
        "\n| key | values | default | meaning | here |\n| --- | --- | --- | --- | --- |\n| `train_",
        "\n| `train_batch_size` | whole number, at least 1 | derived | Samples of one optimizer",
        "\n| `managed_gradient_accumulation` | true, false | `true` | Whether",
        "\n| `initial_scale_power` | whole number, at least 0, at most 126 | `16` | A dynamic",
        "\n| `gradient_clipping` | number, at least 0 | `0.0` (off; DeepSpeed 0.19.3 and later: "
        "1.0) | The norm",
        "\n| `gradient_norm_type` | `2`, `\"inf\"` | `2` | ",
        "\n| `gradient_allreduce_op` | `\"mean\"`, `\"sum\"` | `\"mean\"` | ",
        "\n| `stage` | 0, 1, 2 or 3 | `0` | ",
        "\n| `betas` | two numbers, at least 0, below 1 | `[0.9,0.999]` | ",
        "\n| `type` | `\"SGD\"`, `\"Adam\"`, `\"AdamW\"` | must be given | ",
        "\n| `warmup_max_lr` | number, or one for each parameter group, at least 0 | `null` | ",
        "\n| `cycle_max_lr` | number, or one for each parameter group, at least 0 | must be given "
        "| OneCycle",
        "\n| `warmup_num_steps` | whole number, at least 1, at most 2^53 | `1000` | ",
        "\n| `names` | list of names | `[]` | Names of the modules. | Each must match a module. |",
        "\n| `loss_scale` | number, `\"dynamic\"` | `\"dynamic\"` (torch's gradient scaler) | ",
        "\n| `output_file` | text | `null` | ",
        "\n| `dtype` | `\"fp32\"`, `\"bf16\"`, `\"fp16\"` | `\"bf16\"` | ",
        "\n| `aio` | anything |  | Asynchronous reads and writes of a disk. | No effect: nothing "
        "is offloaded to a disk. |",
        "\n| `nebula` | off |  | Azure's service for checkpoints. | Not supported. |",
        "\n| `compile` | off |  | torch.compile of the model. | Not supported. It is a Python",
        "\n| `mics_shard_size` | `-1` |  | MiCS"})
    play.check("the page has " + line, times(page, line) == 1);
  play.check("the page has every key and section once", times(page, "\n| `") == 238 &&
                                                            times(page, "\n## `") == 21 &&
                                                            times(page, "| key | values") == 23);
}

// Parts of the schema, without white space.
void check_schema(Play& play) {
  auto schema = json_schema();
  schema.erase(
      std::remove_if(schema.begin(), schema.end(), [](char c) { return c == ' ' || c == '\n'; }),
      schema.end());
  const std::string null = R"(,{"type":"null"}])";
  for (const std::string& part :
       {std::string(R"("anyOf":[{"required":["train_batch_size"]},)"
                    R"({"required":["train_micro_batch_size_per_gpu"]}])"),
        R"("last_batch_iteration":{"anyOf":[{"maximum":9007199254740992,"minimum":-1,)" +
            std::string(R"("type":"integer"})") + null + R"(,"default":-1)",
        R"("reduce_bucket_size":{"anyOf":[{"maximum":9223372036854775807,"minimum":1,)" +
            std::string(R"("type":"integer"})") + null,
        R"("theta":{"anyOf":[{"maximum":1.0,"minimum":0.0,"type":"number"})" + null,
        R"("gamma":{"anyOf":[{"exclusiveMaximum":3.4028235677973366e+38,)" +
            std::string(R"("exclusiveMinimum":-3.4028235677973366e+38,"minimum":0.0)"),
        R"("betas":{"anyOf":[{"items":{"exclusiveMaximum":1.0,"minimum":0.0,"type":"number"},)" +
            std::string(R"("maxItems":2,"minItems":2,"type":"array"})") + null,
        std::string(R"("gradient_norm_type":{"anyOf":[{"enum":[2,"inf"]})") + null,
        std::string(R"("pattern":"^([sS][gG][dD]|[aA][dD][aA][mM]|[aA][dD][aA][mM][wW])$")"),
        std::string(R"({"enum":["pinned","native","exact"]})"),
        std::string(R"([tT][oO][rR][cC][hH]\\.[fF][lL][oO][aA][tT]16)"),
        std::string(R"("mics_shard_size":{"description":"MiCS)"),
        std::string(R"("enum":[-1,null])"), std::string(R"("$ref":"#/$defs/off")"),
        std::string(R"("required":["type"])"), std::string(R"("required":["optimizer"])"),
        std::string(R"([dD][aA][mM][wW])$","type":"string"})"),
        std::string(R"("minItems":1,"type":"array"}],"description":"OneCycle:therateinthemiddle)"),
        std::string(R"("minItems":1,"type":"array"}]},{"type":"null"}],"description":"Warm-up)")})
    play.check("the schema has " + part, schema.find(part) != std::string::npos);
}

void schedules_one_by_one(Play& play) {
  if (play.group()) {
    check_schedules(play, of_warm_up());
    check_schedules(play, of_cycles());
    check_schedules(play, of_range_tests());
  }
  train_along(play);
}

void keys_without_effect(Play& play) {
  if (play.group()) {
    check_no_effect(play);
    check_as_it_is(play);
    check_table_of_text(play);
    check_page(play);
    check_schema(play);
  }
  train_along(play);
}

Case of_reading(const std::string& name, const std::string& sentence, void (*program)(Play&)) {
  return case_beside({.section = "15",
                      .name = name,
                      .sentence = sentence,
                      .fault = "another line is expected",
                      .program = program},
                     Plays::Once);
}

}  // namespace

std::vector<Case> read_schedules() {
  return {of_reading("schedules_one_by_one", "so is every key of every schedule, and no other's",
                     schedules_one_by_one),
          of_reading("keys_without_effect",
                     "keys without effect say why, and the table, page and schema of all keys are "
                     "right",
                     keys_without_effect)};
}

}  // namespace equigrad::conformance::contract
