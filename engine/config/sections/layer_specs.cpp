#include "engine/config/sections/layer_specs.hpp"

#include <algorithm>

#include "engine/config/pattern.hpp"
#include "engine/config/suggest.hpp"

namespace equigrad {
namespace {

constexpr const char* kTypes[] = {"column", "row", "skip"};  // in the order of LayerSpec::Type
constexpr Choice kType{.names = kTypes, .any_case = true};

constexpr Row kRows[] = {
    key("patterns", {.type = ValueType::Names, .is_required = true}, "null",
        "Regular expressions for names of parameters, such as `.*\\.o_proj\\.weight$`.",
        "Matched from the beginning; each must match a parameter."),
    key("partition_type", one_of(kType), "\"column\"",
        "What is cut: the outputs, the inputs, or nothing.",
        "Of an embedding `row` cuts the vocabulary."),
    key("shape", of_type(ValueType::Shape), "null",
        "The weight seen as packed: `[2, -1]` is two equal matrices along partition_dim, "
        "`[[q, kv, kv], -1]` three of these sizes.",
        "Each is cut by itself, evenly."),
    key("partition_dim", at_least(0), "null",
        "The dimension that is cut; by default that of the outputs or of the inputs.",
        "Must be one of the outputs (column) or of the inputs (row)."),
    key("model_types", of_type(ValueType::Names), "null",
        "The spec is for models of these types, `model.config.model_type`.",
        "In any case; null is all models."),
    key("gather_output", boolean(), "false", "Of `column`: every rank gets the whole output."),
    key("grad_allreduce", boolean(), "false",
        "Of `skip`: gradients are added over the tensor group, as of a norm of split heads."),
};

ShapeEntry entry_of(const Json& value) {
  if (value.is_array()) return {.size = -1, .segments = value.get<std::vector<std::int64_t>>()};
  return {.size = value.get<std::int64_t>(), .segments = {}};
}

Json json_of_shape(const std::vector<ShapeEntry>& shape) {
  Json json = Json::array();
  for (const ShapeEntry& entry : shape)
    json.push_back(entry.segments.empty() ? Json(entry.size) : Json(entry.segments));
  return json;
}

// A spec's value, or its default.
Json value_of(const Row& row, ConfigReader& spec) {
  if (spec.has(row.path)) return read_value(row, spec);
  if (row.values.is_required)
    spec.problem(row.path, "expected a list of patterns, got none. Write [\".*\\\\.o_proj\"].");
  return default_of_row(row);
}

void refuse_unknown_keys(const Json& object, ConfigReader& spec) {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.path);
  for (const auto& item : object.items()) {
    if (std::find(names.begin(), names.end(), item.key()) != names.end()) continue;
    const std::string hint = did_you_mean(item.key(), names);
    spec.problem(item.key(), "expected a known key of a spec, got \"" + item.key() + "\"." +
                                 (hint.empty() ? " Drop it, or correct its name." : hint));
  }
}

LayerSpec read_spec(const Json& object, ConfigReader& reader) {
  LayerSpec spec;
  refuse_unknown_keys(object, reader);
  const auto take = [&](const char* name) {
    return value_of(*std::find_if(std::begin(kRows), std::end(kRows),
                                  [&](const Row& row) { return row.path == std::string(name); }),
                    reader);
  };
  const Json patterns = take("patterns"), shape = take("shape"), dimension = take("partition_dim"),
             types = take("model_types"), type = take("partition_type");
  spec.gather_output = take("gather_output");
  spec.grad_allreduce = take("grad_allreduce");
  if (!patterns.is_null()) spec.patterns = patterns.get<std::vector<std::string>>();
  spec.type = static_cast<LayerSpec::Type>(std::find(std::begin(kTypes), std::end(kTypes), type) -
                                           std::begin(kTypes));
  if (!dimension.is_null()) spec.partition_dim = dimension.get<std::int64_t>();
  if (!shape.is_null())
    for (const Json& entry : shape) spec.shape.push_back(entry_of(entry));
  if (!types.is_null())
    for (const Json& one : types) spec.model_types.push_back(lower(one.get<std::string>()));
  return spec;
}

std::string problem_of_shape(const LayerSpec& spec) {
  const std::int64_t cut = spec.partition_dim.value_or(spec.type == LayerSpec::Type::Row ? 1 : 0);
  const auto got = ", got " + json_of_shape(spec.shape).dump() + ". ";
  if (cut >= static_cast<std::int64_t>(spec.shape.size()))
    return "expected an entry for partition_dim " + std::to_string(cut) + got + "Write [2, -1].";
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    const ShapeEntry& entry = spec.shape[i];
    if (!entry.segments.empty() && static_cast<std::int64_t>(i) != cut)
      return "expected a list of sizes at partition_dim " + std::to_string(cut) + " only" + got +
             "Change one of the two.";
    for (const std::int64_t size : entry.segments)
      if (size < 1) return "expected sizes of at least 1" + got + "Write [[64, 16, 16], -1].";
    if (entry.segments.empty() && entry.size < 1 && entry.size != -1)
      return "expected sizes of at least 1, or -1 for what is left" + got + "Write [2, -1].";
  }
  return "";
}

}  // namespace

std::span<const Row> layer_spec_rows() { return kRows; }

std::string path_of_spec(std::size_t index) {
  return kLayerSpecs + ("[" + std::to_string(index) + "]");
}

std::vector<LayerSpec> read_layer_specs(const Json& list, ConfigReader& reader) {
  std::vector<LayerSpec> specs;
  for (std::size_t i = 0; i < list.size(); ++i) {
    ConfigReader of_spec(list[i]);
    specs.push_back(read_spec(list[i], of_spec));
    for (const std::string& problem : of_spec.problems()) {
      const std::size_t colon = problem.find(": ");
      reader.problem(path_of_spec(i) + "." + problem.substr(0, colon), problem.substr(colon + 2));
    }
  }
  return specs;
}

Json json_of_spec(const LayerSpec& spec) {
  Json json{{"patterns", spec.patterns}, {"partition_type", kTypes[static_cast<int>(spec.type)]}};
  if (!spec.shape.empty()) json["shape"] = json_of_shape(spec.shape);
  if (spec.partition_dim) json["partition_dim"] = *spec.partition_dim;
  if (!spec.model_types.empty()) json["model_types"] = spec.model_types;
  if (spec.gather_output) json["gather_output"] = true;
  if (spec.grad_allreduce) json["grad_allreduce"] = true;
  return json;
}

std::vector<std::pair<std::string, std::string>> problems_of_spec(const LayerSpec& spec) {
  std::vector<std::pair<std::string, std::string>> problems;
  const bool is_skip = spec.type == LayerSpec::Type::Skip;
  if (spec.patterns.empty())
    problems.emplace_back("patterns", "expected a pattern, got none. Write [\".*\\\\.o_proj\"].");
  for (std::size_t i = 0; i < spec.patterns.size(); ++i) {
    const std::string problem = problem_of_pattern(spec.patterns[i]);
    if (!problem.empty()) problems.emplace_back("patterns[" + std::to_string(i) + "]", problem);
  }
  if (spec.partition_dim && *spec.partition_dim < 0)
    problems.emplace_back("partition_dim", "expected at least 0, got " +
                                               std::to_string(*spec.partition_dim) +
                                               ". Give a larger whole number.");
  else if (!spec.shape.empty() && !is_skip && !problem_of_shape(spec).empty())
    problems.emplace_back("shape", problem_of_shape(spec));
  if (is_skip && (!spec.shape.empty() || spec.partition_dim))
    problems.emplace_back("partition_type",
                          "expected \"row\" or \"column\" beside shape and partition_dim, got "
                          "\"skip\", which cuts nothing. Drop them.");
  if (spec.gather_output && spec.type != LayerSpec::Type::Column)
    problems.emplace_back("gather_output",
                          "expected false but for \"column\", got true. Drop the key: the others' "
                          "outputs are whole.");
  if (spec.gather_output && !spec.shape.empty())
    problems.emplace_back("gather_output",
                          "expected false beside shape, got true. Drop one of the two.");
  if (spec.grad_allreduce && !is_skip)
    problems.emplace_back("grad_allreduce",
                          "expected false but for \"skip\", got true. Drop the key: gradients of "
                          "what is split are added where they have to be.");
  return problems;
}

}  // namespace equigrad
