// Parallel configuration: what the sections tensor_parallel and the key sequence_parallel_size say.
//
// Invariants: of a configuration that passed validate, patterns are ECMAScript regular expressions,
// names of model types and presets are in lower case, and shapes fit their partition_dim.
// Units: sizes count ranks; a shape's sizes count elements.
// Errors: none; the sections find them.
// Depends on: the C++ standard library only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace equigrad {

inline constexpr const char* kPresetModels[] = {"llama",       "bloom", "chatglm", "mixtral",
                                                "deepseek_v2", "qwen2", "phi3"};

// One entry of a spec's shape. At partition_dim `size` is a number of equal segments, or -1 for
// one; elsewhere it is the size of a dimension, or -1 for what is left.
struct ShapeEntry {
  std::int64_t size = -1;
  std::vector<std::int64_t> segments;  // their sizes, where they are listed
  bool operator==(const ShapeEntry&) const = default;
};

struct LayerSpec {
  enum class Type { Column, Row, Skip };
  std::vector<std::string> patterns;  // matched from the beginning of NAME.weight
  Type type = Type::Column;
  std::vector<ShapeEntry> shape;              // empty: the weight as it is
  std::optional<std::int64_t> partition_dim;  // nothing: of outputs (column), of inputs (row)
  std::vector<std::string> model_types;       // empty: all
  bool gather_output = false;                 // Column
  bool grad_allreduce = false;                // Skip
  bool operator==(const LayerSpec&) const = default;
};

struct PartitionConfig {
  bool use_default_specs = true;  // those of the preset go on after these
  bool strict_mode = false;       // a linear that no spec names is an error
  std::vector<LayerSpec> layer_specs;
  std::vector<std::string> lm_head_patterns{"lm_head", "embed_out"};  // last parts of names
  bool operator==(const PartitionConfig&) const = default;
};

struct TensorParallelConfig {
  std::int64_t autotp_size = 0;  // 0: off
  std::string preset_model;      // empty: none
  std::optional<PartitionConfig> partition_config;
  bool vocab_parallel_lm_head = false;
  std::int64_t size() const { return autotp_size > 1 ? autotp_size : 1; }
  bool operator==(const TensorParallelConfig&) const = default;
};

}  // namespace equigrad
