// zero_optimization: what is partitioned, in which pieces it is sent, and which modules are leaves.
#include "engine/config/reading.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

using Zero = ZeroConfig;
using Leaves = LeafModuleConfig;
template <auto kMember>
constexpr Field kept = field<&EngineConfig::zero, kMember>;
template <auto kMember>
constexpr Field leaves = field<&EngineConfig::zero, &Zero::leaf_module, kMember>;

constexpr const char* kSameSum = "the order of every sum is the engine's own";
constexpr const char* kWhole = "parameters are whole below stage 3";
constexpr const char* kPaging = "it changes when parameters are sent, not their bits";
constexpr const char* kNoReplacement = "functions of the framework are never replaced";

constexpr Row kRows[] = {
    section("zero_optimization", "ZeRO. `true` is stage 1, and `false` 0: DeepSpeed's old form.",
            "[true, false]"),
    key(".stage",
        between(0, 3, ValueType::Whole).saying("0, 1, 2 or 3", "Use 0 for plain data parallelism."),
        kept<&Zero::stage>,
        "What is partitioned: 1 optimizer state, 2 gradients too, 3 parameters too."),
    key(".overlap_comm", boolean(), kept<&Zero::overlap_comm>,
        "Whether communication goes on while operators run.",
        "At stages 0 and 1 only where a step has one pass."),
    key(".reduce_bucket_size", at_least(1), kept<&Zero::reduce_bucket_size>,
        "Elements of a bucket of gradients, at most.",
        "Stages 2 and 3 cut smaller ones; large parameters have their own."),
    key(".allgather_bucket_size", at_least(1), kept<&Zero::allgather_bucket_size>,
        "Elements of the weights that one gather copies out after an update, at most.",
        "Large parameters go alone."),
    key(".stage3_prefetch_bucket_size", at_least(0), kept<&Zero::stage3_prefetch_bucket_size>,
        "Elements that are gathered ahead of their operators, at most.",
        "By the trace of the step before."),
    key(".stage3_param_persistence_threshold", at_least(0),
        kept<&Zero::stage3_param_persistence_threshold>,
        "Parameters of up to so many elements stay whole."),
    key(".stage3_max_live_parameters", at_least(0), kept<&Zero::stage3_max_live_parameters>,
        "Elements that are whole at a time, at most.", "Those that stay whole are counted."),
    key(".stage3_max_reuse_distance", at_least(0), kept<&Zero::stage3_max_reuse_distance>,
        "A parameter is kept if its next use is at most so many elements of other uses away.",
        "Uses of what stays whole do not count."),
    unsupported(".stage3_model_persistence_threshold", "Elements that stay whole, at most, in all.",
                "[9223372036854775807]", "Lower stage3_param_persistence_threshold."),
    key(".stage3_gather_16bit_weights_on_model_save", boolean(),
        kept<&Zero::stage3_gather_16bit_weights_on_model_save>,
        "Whether `save_16bit_model()` gathers the weights, or saves nothing and returns False.",
        "Of Python. `save_checkpoint()` saves them anyway."),
    key(".stage3_gather_fp16_weights_on_model_save", boolean(), "false",
        "The old name of stage3_gather_16bit_weights_on_model_save."),
    unsupported(".stage3_module_granularity_threshold",
                "Modules of fewer elements are gathered whole.", "[0]"),
    no_effect(".stage3_use_all_reduce_for_fetch_params", "Parameters are fetched by an all-reduce.",
              kPaging),
    no_effect(".stage3_allgather_sequential", "Parameters are fetched one by one.", kPaging),
    no_effect(".contiguous_gradients", "Gradients are copied into one buffer as they become ready.",
              "gradients are always copied into contiguous buckets"),
    no_effect(".reduce_scatter", "Reduce-scatter instead of all-reduce.", kSameSum),
    no_effect(".use_multi_rank_bucket_allreduce", "One all-reduce for the shards of several ranks.",
              kSameSum),
    no_effect(".allgather_partitions", "All-gather instead of broadcasts after an update.",
              kPaging),
    no_effect(".round_robin_gradients", "Gradients are dealt out to ranks one by one.",
              "every parameter is spread over all ranks already"),
    no_effect(".sub_group_size", "Elements that one call of the optimizer updates, at most.",
              "the update is elementwise, so grouping cannot change it"),
    no_effect(".load_from_fp32_weights",
              "A checkpoint's fp32 masters are loaded, and not its 16-bit weights.",
              "master weights are the model's weights before they are rounded"),
    no_effect(".memory_efficient_linear",
              "torch.nn.functional.linear is replaced by one that keeps less.", kNoReplacement),
    no_effect(".override_module_apply", "torch.nn.Module.apply is replaced.", kNoReplacement),
    no_effect(".log_trace_cache_warnings", "Says when the trace of stage 3 is thrown away.",
              "it only changes what DeepSpeed prints"),
    no_effect(".enable_sanity_checks", "Checks what a step relies on.", "the checks are always on"),
    unsupported(".ignore_unused_parameters", "A parameter without a gradient is no error.",
                "[true]", "Unused parameters are left untouched."),
    no_effect(".elastic_checkpoint", "A checkpoint may be loaded by another number of ranks.",
              "every checkpoint may"),
    unsupported(".legacy_stage1", "The old implementation of stage 1.", "[false]"),
    no_effect(".pipeline_loading_checkpoint", "Ranks load a checkpoint one after the other.",
              "a rank reads nothing but what it needs"),
    unsupported(".zenflow", "Offloading that updates important gradients first."),
    unsupported(".zero_hpz_partition_size", "ZeRO++: ranks of a secondary partition of parameters.",
                "[1]"),
    unsupported(".zero_quantized_weights", "ZeRO++: weights are sent quantized.", "[false]"),
    unsupported(".zero_quantized_nontrainable_weights",
                "ZeRO++: frozen weights are sent quantized.", "[false]"),
    unsupported(".zero_quantized_gradients", "ZeRO++: gradients are sent quantized.", "[false]"),
    unsupported(".zeropp_loco_param", "ZeRO++: compensation for errors of quantized gradients."),
    unsupported(".mics_shard_size", "MiCS: ranks that share one partition.", "[-1]"),
    unsupported(".mics_hierarchical_params_gather", "MiCS: parameters are gathered in two steps.",
                "[false]"),
    section("zero_optimization.leaf_module",
            "Modules whose parameters come and go together at stage 3."),
    key(".classes", of_type(ValueType::Names), leaves<&Leaves::classes>, "Names of their classes.",
        "A class of that name in any namespace; but for the default, each must match a module.")
        .noting("those that the model has"),
    key(".names", of_type(ValueType::Names), leaves<&Leaves::names>, "Names of the modules.",
        "Each must match a module."),
    key(".name_suffixes", of_type(ValueType::Names), leaves<&Leaves::name_suffixes>,
        "Ends of the modules' names.", "Each must match a module."),
    unsupported("zero_optimization.save_muon_momentum_buffer_in_memory",
                "Muon's momentum is kept in memory.", "[false]"),
    no_effect("allgather_size", "The old name of zero_optimization.allgather_bucket_size.",
              "DeepSpeed reads it beside zero_optimization = true alone; it changes no bits"),
    no_effect("zero_allow_untested_optimizer", "Lets ZeRO run with any optimizer.",
              "every optimizer accepted here is tested"),
    no_effect("zero_force_ds_cpu_optimizer", "Insists on DeepSpeed's optimizer on the CPU.",
              "the update rule has one implementation"),
};

void read_gather_on_save(Reading& reading) {
  const std::string path = "zero_optimization.stage3_gather_16bit_weights_on_model_save";
  const std::string old = "zero_optimization.stage3_gather_fp16_weights_on_model_save";
  const bool by_old_name = reading.take(old);
  const bool is_below = reading.config.zero.stage < 3;
  if (is_by_old_name(old, path, "stage3_gather_16bit_weights_on_model_save", reading)) {
    reading.config.zero.stage3_gather_16bit_weights_on_model_save = by_old_name;
    reading.note(path).derived = "as stage3_gather_fp16_weights_on_model_save, its old name";
    if (is_below) reading.note(old).without_effect = kWhole;
  }
  if (is_below) reading.note(path).without_effect = kWhole;
}

// As read_zero_config_deprecated of DeepSpeed's runtime/zero/config.py does.
void read_old_form(Reading& reading) {
  const Json* whole = reading.reader.find("zero_optimization");
  if (whole == nullptr || !whole->is_boolean()) return;
  reading.config.zero.stage = whole->get<bool>() ? 1 : 0;
  reading.note("zero_optimization.stage").derived =
      "\"zero_optimization\": " + whole->dump() + " is DeepSpeed's old form of it";
}

void read(Reading& reading) {
  reading.store("zero_optimization.");
  read_old_form(reading);
  read_gather_on_save(reading);
  if (reading.config.zero.stage == 3) return;
  for (const char* key : {"classes", "names", "name_suffixes"})
    reading.note(std::string("zero_optimization.leaf_module.") + key).without_effect = kWhole;
}

}  // namespace

Section zero_section() { return {kRows, read, nullptr}; }

}  // namespace equigrad
