// Groups of ranks that share samples: tensor_parallel, sequence_parallel_size, and the data ranks
// that remain.
#include <algorithm>
#include <iterator>

#include "engine/config/reading.hpp"
#include "engine/config/sections/layer_specs.hpp"
#include "engine/config/sections/sections.hpp"

namespace equigrad {
namespace {

using Tensor = TensorParallelConfig;
template <auto kMember>
constexpr Field tensor = field<&EngineConfig::tensor_parallel, kMember>;

// A function: g++ 12 breaks off at value_or() in a lambda of a variable template.
PartitionConfig specs_of(const EngineConfig& config) {
  return config.tensor_parallel.partition_config.value_or(PartitionConfig{});
}

// A field of the specs of the caller, which are there once a key of theirs is.
template <auto kMember>
constexpr Field specs{[](const EngineConfig& config) { return json_of(specs_of(config).*kMember); },
                      [](EngineConfig& config, const Json& value) {
                        auto& partition = config.tensor_parallel.partition_config;
                        assign((partition ? *partition : partition.emplace()).*kMember, value);
                      }};

constexpr Field kListOfSpecs{
    [](const EngineConfig& config) {
      Json list = Json::array();
      if (config.tensor_parallel.partition_config)
        for (const LayerSpec& spec : config.tensor_parallel.partition_config->layer_specs)
          list.push_back(json_of_spec(spec));
      return list;
    },
    nullptr};

constexpr Field kPreset{[](const EngineConfig& config) {
                          const std::string& name = config.tensor_parallel.preset_model;
                          return name.empty() ? Json() : Json(name);
                        },
                        [](EngineConfig& config, const Json& name) {
                          config.tensor_parallel.preset_model = name.is_null() ? "" : name;
                        }};

constexpr const char* kSection = "tensor_parallel.";
constexpr const char* kTensor = "tensor_parallel.autotp_size";
constexpr const char* kModel = "tensor_parallel.preset_model";
constexpr const char* kInner = "tensor_parallel.tp.tp_size";
constexpr const char* kOfSpecs = "tensor_parallel.partition_config.tp_size";
constexpr const char* kSequence = "sequence_parallel_size";
constexpr const char* kData = "data_parallel_size";
constexpr const char* kType = "tensor_parallel.dtype";
constexpr Choice kPresets{.names = kPresetModels, .any_case = true};
constexpr const char* kTraining =
    "Models are built by the caller, and split when the engine is made. Drop the key.";

constexpr Row kRows[] = {
    key(kSequence, at_least(1), field<&EngineConfig::sequence_parallel_size>,
        "Ranks that share a sequence."),
    key(kData,
        {.type = ValueType::Whole,
         .least = 1,
         .is_derived = true,
         .remedy = "Drop the key; it is derived."},
        "null", "Ranks with samples of their own.",
        "The number of ranks / (tensor x sequence); another one is an error."),
    section("tensor_parallel", "Ranks that share the matrices of a model."),
    key(".autotp_size", at_least(0), tensor<&Tensor::autotp_size>,
        "Ranks of a tensor group; 0 and 1 are off.",
        "Must divide the number of ranks, heads and sizes. Not at stage 3."),
    key(".preset_model", one_of(kPresets), kPreset, "The model family whose specs are taken.",
        "An unknown one is an error. Without it, and without specs, modules are split by their "
        "names."),
    key(".vocab_parallel_lm_head", boolean(), tensor<&Tensor::vocab_parallel_lm_head>,
        "The vocabulary is split: the head, and the embedding that shares its weight.",
        "A model that computes its loss from labels does so of parts of its logits "
        "(docs/parallel.md). null, which follows a plan of Hugging Face in DeepSpeed, is false."),
    key(".dtype", of_type(ValueType::DataType), "null", "The model's type.",
        "Must be the parameters' type; another one is an error."),
    no_effect(".tp_overlap_comm", "Input gradients are added while weight gradients are computed.",
              "it changes when sums are sent, not their bits"),
    unsupported(".vocab_parallel_ce_backend", "What computes the loss of a split vocabulary.",
                R"(["torch"])", "The loss has one implementation. Drop the key."),
    unsupported(".keep_module_on_host", "Weights stay on the host.", "[false]", kTraining),
    unsupported(".replace_with_kernel_inject", "Modules are replaced by kernels of inference.",
                "[false]", kTraining),
    unsupported(".kernel_inject", "Another name of replace_with_kernel_inject.", "[false]",
                kTraining),
    unsupported(".injection_policy_tuple", "Names of linears whose outputs are added.", "[]",
                "Name them in partition_config, with \"partition_type\": \"row\"."),
    section("tensor_parallel.tp", "The tensor group."),
    key(".tp_size", at_least(1), "1", "Its ranks.", "1, or as autotp_size."),
    unsupported(".tp_grain_size", "Sizes of parts are multiples of it, but for the last.", "[1]",
                "Every cut is even."),
    unsupported(".mpu", "An object that has the groups.", "[]", "Give it to initialize."),
    unsupported(".tp_group", "The group of processes.", "[]", "Give mpu to initialize."),
    section("tensor_parallel.partition_config", "Specs of the caller: what is split, and how."),
    key(".use_default_specs", boolean(), specs<&PartitionConfig::use_default_specs>,
        "Whether the preset's specs follow these.", "A parameter that both name is the caller's."),
    key(".strict_mode", boolean(), specs<&PartitionConfig::strict_mode>,
        "Whether a linear that no spec names is an error."),
    key(".layer_specs", of_type(ValueType::Specs), kListOfSpecs,
        "The specs; the keys of each are below.",
        "Two that name one parameter and disagree are an error, and so is a pattern that matches "
        "none."),
    key(".lm_head_patterns", of_type(ValueType::Names), specs<&PartitionConfig::lm_head_patterns>,
        "Last parts of the names of output heads."),
    key(".tp_size", at_least(1), "1", "The size of the tensor group.", "1, or as autotp_size."),
    unsupported(".embedding_partition_dim", "The dimension along which embeddings are cut.", "[1]",
                "Write a spec for the embedding: \"row\" cuts the vocabulary, \"column\" the "
                "outputs."),
};

std::string text_of_sizes(const EngineConfig& config) {
  return "tensor x sequence = " + std::to_string(config.tensor_parallel_size()) + " x " +
         std::to_string(config.sequence_parallel_size);
}

const char* path_of_sizes(const EngineConfig& config) {
  return config.tensor_parallel_size() > 1 ? kTensor : kSequence;
}

std::string problem_of_world(const EngineConfig& config, std::int64_t world_size) {
  const bool has_range_problem = config.sequence_parallel_size < 1;
  if (has_range_problem || divides_world(config, world_size)) return "";
  return "expected a number of ranks that is a multiple of " + text_of_sizes(config) + ", got " +
         std::to_string(world_size) + ". Start another number of ranks, or lower the sizes.";
}

// DeepSpeed's other keys for the size say 1, or the same.
void read_same_size(const char* path, Reading& reading) {
  const std::int64_t given = reading.take(path);
  const std::int64_t size = reading.config.tensor_parallel.autotp_size;
  const auto problems = range_problems(at_least(1), given);
  for (const std::string& problem : problems) reading.reader.problem(path, problem);
  if (!problems.empty() || !reading.has(path) || reading.reader.is_bad(kTensor)) return;
  if (given != 1 && given != size)
    reading.reader.problem(path, "expected the size of autotp_size, " + std::to_string(size) +
                                     ", got " + std::to_string(given) +
                                     ". Write the size at autotp_size, and drop this key.");
}

void read_data_size(Reading& reading) {
  const Json given = reading.take(kData);
  reading.note(kData).derived = "world / (tensor x sequence)";
  const EngineConfig& config = reading.config;
  reading.note(kData).is_hidden = !reading.has(kData) && config.tensor_parallel_size() == 1 &&
                                  config.sequence_parallel_size == 1;
  if (!divides_world(reading.config, reading.world_size)) return;
  const std::int64_t size = reading.config.data_parallel_size(reading.world_size);
  reading.note(kData).shown = size;
  if (given.is_null()) return;
  if (given != size)
    reading.reader.problem(kData, "expected world / (tensor x sequence) = " + std::to_string(size) +
                                      ", got " + given.dump() + ". Drop the key; it is derived.");
}

void read_type(Reading& reading) {
  const Json given = reading.take(kType);
  const std::string param = name_of(reading.config.precision.param);
  reading.note(kType).is_hidden = given.is_null();
  reading.note(kType).shown = param;
  if (!given.is_null() && given != param)
    reading.reader.problem(kType, "expected the type that \"bf16\" and \"fp16\" choose, " + param +
                                      ", got " + shown(*reading.reader.find(kType)) +
                                      ". Drop the key, or change those sections.");
}

// What is written beside a size that switches it off, or a preset that specs take the place of.
void note_idle_keys(Reading& reading) {
  const Tensor& config = reading.config.tensor_parallel;
  if (config.partition_config && !config.partition_config->use_default_specs)
    reading.note(kModel).without_effect = "use_default_specs is false";
  if (config.size() > 1) return;
  for (const Row& row : schema().rows()) {
    const std::string path = row.path;
    if (path.starts_with(kSection) && path != kTensor && row.treatment == KeyTreatment::Read)
      reading.note(path).without_effect = "it is off";
  }
}

void read(Reading& reading) {
  reading.store(kModel);
  reading.store("tensor_parallel.vocab_parallel_lm_head");
  reading.store("tensor_parallel.partition_config.");
  const Json list = reading.take(kLayerSpecs);
  if (reading.has(kLayerSpecs)) {
    const auto all = read_layer_specs(list, reading.reader);
    auto& partition = reading.config.tensor_parallel.partition_config;
    (partition ? *partition : partition.emplace()).layer_specs = all;
    reading.note(kLayerSpecs).shown = kListOfSpecs.get(reading.config);
  }
  read_same_size(kInner, reading);
  read_same_size(kOfSpecs, reading);
  read_type(reading);
  note_idle_keys(reading);
}

// Specs that were read have no other problem; those that were not, say so.
void check_specs(const Tensor& config, Checks& checks) {
  if (!config.partition_config) return;
  const PartitionConfig& partition = *config.partition_config;
  for (std::size_t i = 0; i < partition.layer_specs.size(); ++i)
    for (const auto& [key, problem] : problems_of_spec(partition.layer_specs[i]))
      checks.problem(path_of_spec(i) + "." + key, problem);
  const bool has_preset = partition.use_default_specs && !config.preset_model.empty();
  if (config.size() > 1 && partition.layer_specs.empty() && !has_preset)
    checks.problem(kLayerSpecs,
                   "expected a spec, or preset_model beside use_default_specs, got neither. Add "
                   "one, or drop partition_config to have modules split by their names.");
}

void check(const EngineConfig& config, Checks& checks) {
  const Tensor& parallel = config.tensor_parallel;
  checks.problem(path_of_sizes(config), problem_of_world(config, checks.world_size));
  if (parallel.size() > 1 && config.zero.stage == 3)
    checks.problem(kTensor,
                   "expected ZeRO stage 0, 1 or 2 beside it, got stage 3: pages of a "
                   "split parameter are not built. Lower zero_optimization.stage, or "
                   "drop tensor_parallel.");
  const std::string& preset = parallel.preset_model;
  const auto is_preset = [&](const char* one) { return lower(preset) == one; };
  if (!preset.empty() &&
      std::none_of(std::begin(kPresetModels), std::end(kPresetModels), is_preset))
    checks.problem(kModel, "expected " + joined(kPresetModels, "\"") + ", got \"" + preset +
                               "\". Write specs in partition_config.");
  check_specs(parallel, checks);
}

}  // namespace

void read_group_sizes(Reading& reading) {
  reading.store(kTensor);
  reading.store(kSequence);
  read_data_size(reading);
}

bool divides_world(const EngineConfig& config, std::int64_t world_size) {
  const std::int64_t tensor = config.tensor_parallel_size(),
                     sequence = config.sequence_parallel_size;
  return tensor >= 1 && sequence >= 1 && tensor <= world_size && sequence <= world_size &&
         world_size % (tensor * sequence) == 0;
}

Section parallel_section() { return {kRows, read, check}; }

}  // namespace equigrad
