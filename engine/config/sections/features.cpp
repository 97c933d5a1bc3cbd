// Everything else: layer drop, the profiler, communication, what DeepSpeed prints, and features
// that are not here.
#include "engine/config/reading.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

using Drop = ProgressiveLayerDropConfig;
using Flops = FlopsProfilerConfig;
template <auto kMember>
constexpr Field drop = field<&EngineConfig::progressive_layer_drop, kMember>;
template <auto kMember>
constexpr Field flops = field<&EngineConfig::flops_profiler, kMember>;

// Empty stands for standard output, and is shown as null.
constexpr Field kOutputFile{
    [](const EngineConfig& config) {
      const std::string& file = config.flops_profiler.output_file;
      return file.empty() ? Json() : Json(file);
    },
    [](EngineConfig& config, const Json& file) { config.flops_profiler.output_file = file; }};

constexpr const char* kTagModes[] = {"Ignore", "Warn", "Fail"};
constexpr Choice kTagValidation{.names = kTagModes, .any_case = true};

constexpr const char* kPrints = "it only changes what DeepSpeed prints";
constexpr const char* kPython =
    "It is a Python facility; the C++ autograd graph needs no compilation. Drop the key.";

constexpr Row kRows[] = {
    // Waits are counted in whole milliseconds; 1e9 s in ns still fits in 64 bits.
    key("communication_timeout_s",
        between(1e-3, 1e9).saying("seconds from 0.001 to 1e9", "Write 1800 for half an hour."),
        field<&EngineConfig::communication_timeout_s>,
        "Our own: seconds that a rank waits for the others before it gives up."),
    section("progressive_layer_drop", "Layers are left out more and more often."),
    key(".enabled", boolean(), drop<&Drop::enabled>, "Whether it is on."),
    key(".theta", between(0.0, 1.0).saying("a probability from 0 to 1", "Write 0.5."),
        drop<&Drop::theta>, "What the probability that a layer stays falls to.",
        "Has a default here; DeepSpeed fails without it."),
    key(".gamma", not_negative(), drop<&Drop::gamma>, "How fast it falls, for each step.",
        "Has a default here; DeepSpeed fails without it."),
    section("flops_profiler", "Counts floating-point operations of one step, module by module."),
    key(".enabled", boolean(), flops<&Flops::enabled>, "Whether it is on."),
    key(".profile_step", at_least(1), flops<&Flops::profile_step>, "The step that is profiled."),
    key(".module_depth", at_least(-1), flops<&Flops::module_depth>,
        "The depth of modules that are listed; -1 is the innermost."),
    key(".top_modules", at_least(1), flops<&Flops::top_modules>,
        "How many modules are listed at every depth."),
    key(".detailed", boolean(), flops<&Flops::detailed>, "Whether every module is printed."),
    key(".output_file", of_type(ValueType::Text), kOutputFile,
        "The file that it writes; null is standard output."),
    key(".recompute_fwd_factor", not_negative(), flops<&Flops::recompute_fwd_factor>,
        "Forward passes that activation checkpointing repeats."),
    unsupported("disable_allgather", "Weights are not gathered after an update.", "[false]"),
    no_effect("steps_per_print", "Steps between two lines of progress.", kPrints),
    no_effect("wall_clock_breakdown", "Prints how long phases take.", kPrints),
    no_effect("memory_breakdown", "Prints how much memory is in use.", kPrints),
    no_effect("dump_state", "Prints the engine's state at the start.", kPrints),
    no_effect("log_level", "How much is logged.", kPrints),
    key("dataloader_drop_last", boolean(), field<&EngineConfig::dataloader_drop_last>,
        "Whether a last batch that is too small is left out.",
        "By the loader that Python's initialize(training_data=...) makes. In C++ nothing is "
        "loaded."),
    no_effect("aio", "Asynchronous reads and writes of a disk.", "nothing is offloaded to a disk"),
    unsupported("activation_checkpointing", "Activations are computed again in backward.", "[]",
                "Checkpoint activations in the model."),
    section("checkpoint", "How checkpoints are written and loaded."),
    key(".tag_validation", one_of(kTagValidation), "\"Warn\"",
        "What ranks that give different tags are told.",
        "An error, whatever it says: nothing could load what they would save."),
    no_effect(".load_universal", "What is loaded was converted, for another number of ranks.",
              "every checkpoint may be loaded by another number of ranks"),
    unsupported(".use_node_local_storage", "Every node has a folder of its own.", "[false]",
                "Give all ranks one folder that they share."),
    unsupported(".writer", "How files are written.", "[]", "There is one writer. Drop the key."),
    section("checkpoint.parallel_write", "How ranks share the writing."),
    no_effect(".pipeline_stage", "The ranks of a pipeline stage share it.",
              "every rank writes an equal part"),
    unsupported("compile", "torch.compile of the model.", "[]", kPython),
    unsupported("compiled_autograd", "torch.compile of backward.", "[]", kPython),
    unsupported("comms_logger", "Logs every collective."),
    unsupported("tensorboard", "Writes for TensorBoard."),
    unsupported("wandb", "Writes to Weights & Biases."),
    unsupported("comet", "Writes to Comet."),
    unsupported("csv_monitor", "Writes CSV files."),
    unsupported("eigenvalue", "Eigenvalues of the loss's second derivatives.", "[]",
                "Call equigrad::profile::eigenvalue."),
    unsupported("quantize_training", "Training with quantized weights."),
    unsupported("compression_training", "Pruning and distillation."),
    unsupported("curriculum_learning", "Sequences grow during training."),
    unsupported("data_efficiency", "Sampling and routing of data."),
    unsupported("elasticity", "The number of ranks changes during training."),
    unsupported("autotuning", "Searches for a configuration."),
    unsupported("hybrid_engine", "Training and generation take turns."),
    unsupported("pipeline", "Layers are spread over ranks."),
    unsupported("sparse_attention", "Attention to a part of the sequence."),
    unsupported("use_data_before_expert_parallelism", "The order of groups of ranks.", "[false]"),
    unsupported("expert_parallel", "Experts are spread over ranks."),
    unsupported("graph_harvesting", "Captures steps in CUDA graphs.", "[false]"),
    unsupported("datastates_ckpt", "Checkpoints that DataStates writes in the background.", "[]",
                "Ask save_checkpoint() for an asynchronous save."),
    unsupported("nebula", "Azure's service for checkpoints."),
    no_effect("vocabulary_size", "The size of the vocabulary.", "nothing here reads it"),
};

void read(Reading& reading) {
  reading.store("communication_timeout_s");
  reading.store("dataloader_drop_last");
  reading.store("progressive_layer_drop.");
  reading.store("flops_profiler.");
  reading.take("checkpoint.tag_validation");
  reading.note("checkpoint.tag_validation").without_effect = "different tags are always an error";
}

}  // namespace

Section features_section() { return {kRows, read, nullptr}; }

}  // namespace equigrad
