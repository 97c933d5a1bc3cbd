// Plan models: lists of modules as those of known models, for the tests of the tensor plan.
//
// Invariants: sizes are small; two layers, unless a test says otherwise.
// Errors: error_of() gives the text of the error, empty if there is none.
// Depends on: engine/parallel/tensor_plan.hpp.
#pragma once

#include <string>
#include <vector>

#include "engine/config/pattern.hpp"
#include "engine/error.hpp"
#include "engine/parallel/tensor_plan.hpp"

namespace equigrad::parallel {

using Sizes = std::vector<std::int64_t>;

struct Model {
  ModelFacts facts;
  std::vector<Candidate> modules;

  Model& linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias = false) {
    modules.push_back({name, ModuleKind::Linear, {out, in}, bias, nullptr});
    return *this;
  }
  Model& conv1d(const std::string& name, std::int64_t in, std::int64_t out) {
    modules.push_back({name, ModuleKind::Conv1D, {in, out}, true, nullptr});
    return *this;
  }
  Model& embedding(const std::string& name, std::int64_t entries, std::int64_t out) {
    modules.push_back({name, ModuleKind::Embedding, {entries, out}, false, nullptr});
    return *this;
  }
  Model& other(const std::string& name, const Sizes& shape) {
    modules.push_back({name, ModuleKind::Other, shape, false, nullptr});
    return *this;
  }
  Candidate& at(const std::string& name) {
    for (Candidate& one : modules)
      if (one.name == name) return one;
    throw Error("test", "no module " + name);
  }
  Model& share(const std::string& one, const std::string& other) {
    static const int kWeight = 0;
    at(one).weight = at(other).weight = &kWeight;
    return *this;
  }
};

// 8 heads of 4, 4 of keys and values; embedding 64 x 32.
inline Model llama(const std::string& type = "llama", int layers = 2) {
  Model model{{type, 8, 4}, {}};
  model.embedding("model.embed_tokens", 64, 32);
  for (int i = 0; i < layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    model.linear(layer + "self_attn.q_proj", 32, 32, true)
        .linear(layer + "self_attn.k_proj", 16, 32, true)
        .linear(layer + "self_attn.v_proj", 16, 32, true)
        .linear(layer + "self_attn.o_proj", 32, 32, true)
        .linear(layer + "mlp.gate_proj", 48, 32)
        .linear(layer + "mlp.up_proj", 48, 32)
        .linear(layer + "mlp.down_proj", 32, 48)
        .other(layer + "input_layernorm", {32});
  }
  return model.other("model.norm", {32}).linear("lm_head", 64, 32);
}

// Queries, keys and values in one weight of `packed` outputs, and a plain feed-forward.
inline Model packed(const std::string& type, const std::string& attention, const std::string& qkv,
                    const std::string& dense, std::int64_t outputs, std::int64_t heads,
                    std::int64_t keys) {
  Model model{{type, heads, keys}, {}};
  const std::string layer = "transformer.h.0.", of_attention = layer + attention + ".";
  return model.linear(of_attention + qkv, outputs, 32, true)
      .linear(of_attention + dense, 32, 32, true)
      .linear(layer + "mlp.dense_h_to_4h", 128, 32, true)
      .linear(layer + "mlp.dense_4h_to_h", 32, 128, true);
}

inline TensorParallelConfig by_names(std::int64_t size = 2) {
  TensorParallelConfig config;
  config.autotp_size = size;
  return config;
}

inline TensorParallelConfig by_preset(const std::string& preset, std::int64_t size = 2) {
  TensorParallelConfig config = by_names(size);
  config.preset_model = preset;
  return config;
}

inline TensorParallelConfig by_specs(const std::vector<LayerSpec>& specs, std::int64_t size = 2) {
  TensorParallelConfig config = by_names(size);
  config.partition_config = PartitionConfig{};
  config.partition_config->layer_specs = specs;
  return config;
}

inline LayerSpec spec(const std::string& pattern, LayerSpec::Type type) {
  LayerSpec one;
  one.patterns = {pattern};
  one.type = type;
  return one;
}

inline LayerSpec column(const std::string& pattern) {
  return spec(pattern, LayerSpec::Type::Column);
}
inline LayerSpec row(const std::string& pattern) { return spec(pattern, LayerSpec::Type::Row); }
inline LayerSpec skip(const std::string& pattern) { return spec(pattern, LayerSpec::Type::Skip); }

inline TensorPlan plan(const TensorParallelConfig& config, const Model& model) {
  return plan_tensor_parallel(config, model.facts, model.modules);
}

inline std::string error_of(const TensorParallelConfig& config, const Model& model) {
  try {
    (void)plan(config, model);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline Placement placed(const TensorPlan& plan, const std::string& name) {
  return plan.modules.at(name).placement;
}

inline Sizes segments(const TensorPlan& plan, const std::string& name) {
  const auto& weight = plan.modules.at(name).weight;
  return weight ? weight->segments : Sizes{};
}

}  // namespace equigrad::parallel
