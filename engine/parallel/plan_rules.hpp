// Plan rules: what is known of modules by their names, as tables: the presets of model families and
// the heuristics.
//
// An ending is the last parts of a name, "self_attn.o_proj"; a part that is # is any number.
//
// Invariants: a table's first rule that names a module counts.
// Errors: none.
// Depends on: engine/parallel/tensor_plan.hpp.
#pragma once

#include <span>
#include <string>

#include "engine/parallel/tensor_plan.hpp"

namespace equigrad::parallel {

// How several matrices are packed along the dimension that is cut.
//   GateUp         two of one size, one after the other
//   QueryKeyValue  all queries, all keys, all values; of keys and values there may be fewer
//   Interleaved    head by head (or group by group) its queries, keys and values: cut as it is
//   CodeGenInput   four blocks, each as QueryKeyValue;  CodeGenOutput: what follows it, four blocks
//   Unknown        packed in a way that is not known for this model
enum class Packing {
  Plain,
  GateUp,
  QueryKeyValue,
  Interleaved,
  CodeGenInput,
  CodeGenOutput,
  Unknown
};

struct Rule {
  const char* ending;
  Placement placement;
  Packing packing = Packing::Plain;
};

bool has_ending(const std::string& name, const std::string& ending);

// Empty: no preset of that name, in lower case.
std::span<const Rule> preset_rules(const std::string& preset);

// Of linears and embeddings within repeated blocks; null: none. Model type in lower case.
const Rule* heuristic_rule(const std::string& name, const std::string& model_type);

// How a module that holds queries, keys and values is packed in models of a type.
Packing packing_of_heads(const std::string& model_type);
bool holds_queries_keys_values(const std::string& name);

// Whether its outputs are heads of attention, so that a cut must not go through one.
bool has_heads(const std::string& name);

// A norm on the output of a projection beside it.
struct NormRule {
  const char* ending;
  const char* projection;
  bool is_one_for_each_head = false;
};

// Null: a norm of this name is on no projection.
const NormRule* norm_rule(const std::string& name);

// "model.layers.0.self_attn." of "model.layers.0.self_attn.q_norm" with the ending "q_norm".
std::string before_ending(const std::string& name, const std::string& ending);

// A style of transformers' plans.
struct Style {
  const char* name;
  Placement placement;
  bool gathers_output = false, takes_whole_input = false, sums_gradient = false;
};

// In any case; null: one that is not known.
const Style* style_of(const std::string& name);
std::string known_styles();

// Whether `name` ends as a pattern says, from a dot on; * is anything.
bool is_named_by(const std::string& pattern, const std::string& name);

// Why the heuristics are not for models of a type; null: they are.
const char* why_not_by_names(const std::string& model_type);

}  // namespace equigrad::parallel
