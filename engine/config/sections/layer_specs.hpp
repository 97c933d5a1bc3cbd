// Layer specs: the list tensor_parallel.partition_config.layer_specs, an object for each spec.
//
// Invariants: the rows name every key of a spec once; the page and the JSON Schema come from them.
// Errors: none; problems go to the reader, or are returned.
// Depends on: engine/config/schema.hpp. For the sources of the configuration only.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/schema.hpp"

namespace equigrad {

inline constexpr const char* kLayerSpecs = "tensor_parallel.partition_config.layer_specs";

std::span<const Row> layer_spec_rows();

// A list of objects; problems have the path of their spec, "...layer_specs[1].shape".
std::vector<LayerSpec> read_layer_specs(const Json& list, ConfigReader& reader);

// What differs from the default, as JSON.
Json json_of_spec(const LayerSpec& spec);

// What is wrong with the values of one spec: key, problem.
std::vector<std::pair<std::string, std::string>> problems_of_spec(const LayerSpec& spec);

// "layer_specs[1]".
std::string path_of_spec(std::size_t index);

}  // namespace equigrad
