// Tensor plan: which modules of a model are split over a tensor group, and how, by the
// configuration's specs, by the preset of a model family, or by the modules' names.
//
// Rules, first to last:
//   1. `partition_config.layer_specs`; of two that name one parameter and disagree, none wins: it
//      is an error. Those whose model_types leave the model out do not count.
//   2. The preset's specs, where `preset_model` is given and `use_default_specs` is not false.
//   3. Neither given: the heuristics; where they split nothing, what the model says of itself
//      (transformers' base_model_tp_plan). Within repeated blocks (their names have a number, as in
//      "layers.0") the linears whose output is summed are rows, the others columns; all else stays
//      replicated. Blocks without such a row, and blocks with a convolution, are left alone.
// What no rule names stays replicated; but a head and an embedding of one weight follow each other.
//
// Invariants: a split is even: the tensor size divides every segment, and the number of heads of
// what has heads. Modules that share a weight have the same cut. A block has both columns and rows,
// or neither, unless a spec of the caller's is in it.
// Shapes: a weight of Linear [out, in]; of Conv1D [in, out], transposed; of Embedding [entries,
// out]. A column is cut along out, a row along in, a vocabulary along entries.
// Errors: equigrad::Error that names modules, patterns, sizes and the remedy.
// Depends on: engine/config/config.hpp, engine/parallel/split.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/parallel/split.hpp"

namespace equigrad::parallel {

// Conv1D: of GPT-2, a linear with a transposed weight. Other: whatever else has a weight, such as
// norms and convolutions, which are candidates too; it can stay replicated only.
enum class ModuleKind { Linear, Conv1D, Embedding, Other };

struct Candidate {
  std::string name;  // "model.layers.0.self_attn.q_proj"; its weight is NAME.weight
  ModuleKind kind = ModuleKind::Other;
  std::vector<std::int64_t> shape;  // of the weight, as it is stored
  bool has_bias = false;
  const void* weight = nullptr;  // identity: of modules that share it, the same; null is nobody's
};

// What is known of the model but for its modules.
struct ModelFacts {
  std::string type;                  // model.config.model_type, in any case; empty: not known
  std::int64_t heads = 0;            // 0: not known
  std::int64_t key_value_heads = 0;  // 0: as `heads`
  // Patterns of modules, "layers.*.mlp.up_proj", and the style of each, "colwise": a pattern names
  // the modules whose names end so, from a dot on, * being anything.
  std::vector<std::pair<std::string, std::string>> plan = {};
};

enum class Placement { Replicated, Column, Row, Vocabulary };

struct ModulePlan {
  Placement placement = Placement::Replicated;
  std::optional<Split> weight;  // nothing: whole on every rank
  bool has_bias =
      false;  // a column's is cut by bias_split(weight), a row's is whole and added once
  bool gathers_output = false;  // Column: every rank gets the whole output, in the whole's packing
  bool takes_whole_input = false;  // Row: each rank takes its part of an input that all have
  bool sums_gradient = false;      // Replicated: used on split heads, so each rank has a part of it
  std::string reason;              // "layer_specs[1]", "preset llama", "heuristics: o_proj"
  bool is_split() const { return weight.has_value(); }
};

struct TensorPlan {
  std::int64_t size = 1;
  std::map<std::string, ModulePlan> modules;  // every candidate, by its name
  std::vector<std::string> split_modules() const;
};

// `candidates` in the order of registration. At size 1 everything is replicated.
TensorPlan plan_tensor_parallel(const TensorParallelConfig& config, const ModelFacts& model,
                                const std::vector<Candidate>& candidates);

// A line for each module: name, placement, segments, reason.
std::string describe(const TensorPlan& plan);

}  // namespace equigrad::parallel
