// Saved engine: what a checkpoint says of an engine beside its tensors, as JSON.
//
//   {"stage": 2, "mesh": {"data", "sequence", "tensor"},
//    "param_type": "BF16", "master_type": "F32", "optimizer": "adamw",
//    "parameters": [{"name", "aliases", "shape", "trainable", "steps", "group"}],
//    "groups": [{"lr", "weight_decay", "beta1", ...}],
//    of an optimizer of the caller's, which is "client" and has no groups here,
//    "client": {"kind", "rates": [...], "parameters": [{"states": ["exp_avg", ...], "numbers"}]},
//    "counters": {"micro_steps", "global_steps", "skipped_steps"}, "was_step_applied", "norm",
//    "loss_scale": {"policy", "scale", "steps", ...},
//    "schedule": {"last_batch_iteration"} or null, "layer_drop": {"theta"} or null}
//
// Invariants: numbers keep every bit: they are written with as many digits as that takes.
// Shapes: those of whole parameters, as in engine/checkpoint/manifest.hpp.
// Errors: equigrad::Error for what is not there or of another kind.
// Depends on: engine/core/training_engine.hpp, checkpoint/safetensors, nlohmann-json.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/api/engine_types.hpp"
#include "engine/checkpoint/manifest.hpp"
#include "engine/checkpoint/safetensors.hpp"
#include "engine/comm/mesh.hpp"
#include "engine/config/config.hpp"
#include "engine/loss/loss_scaler.hpp"

namespace equigrad::core {

struct Parts;

struct SavedParameter {
  std::string name;
  std::vector<std::string> aliases;
  std::vector<int64_t> shape;
  bool trainable = true;
  int64_t steps = 0;
  std::size_t group = 0;
};

// Of an optimizer of the caller's.
struct SavedClient {
  struct OfParameter {
    std::vector<std::string> states;  // as large as the parameter, by name
    std::string numbers;
  };
  std::string kind;
  std::vector<double> rates;            // by group
  std::vector<OfParameter> parameters;  // in the order of SavedEngine's
};

struct SavedEngine {
  int stage = 0;
  std::optional<comm::MeshSizes> mesh;  // nothing: written before there were any, of data alone
  std::string param_type;
  std::string master_type;
  std::string optimizer;  // "sgd", "adam", "adamw", "client"
  std::vector<SavedParameter> parameters;
  std::vector<OptimizerConfig> groups;
  std::optional<SavedClient> client;
  Counters counters;
  bool applied = false;
  std::optional<double> norm;
  std::string loss_scale_policy;
  loss::LossScaler::History loss_scale;
  std::optional<int64_t> last_batch_iteration;
  std::optional<double> theta;

  const SavedParameter* find(std::string_view name) const;  // null if there is none
  const SavedClient::OfParameter& of_client(const SavedParameter& parameter) const;
};

SavedEngine saved_engine(Parts& parts);
nlohmann::json to_json(const SavedEngine& engine);
SavedEngine saved_engine_from(const nlohmann::json& json, const std::string& where);
std::string_view to_text(loss::LossScaler const& scaler);  // its policy

checkpoint::ElementType element_type_of(at::ScalarType type, const std::string& name);
at::ScalarType scalar_type_of(checkpoint::ElementType type);

// Names of tensors.
std::string master_name(const std::string& parameter);
std::string state_name(const std::string& state, const std::string& parameter);
// As the model computes with it: of one that is not trained; of a trained one where it has been
// written past the engine, and is not what its master says.
std::string parameter_name(const std::string& parameter);
std::string buffer_name(int rank, const std::string& buffer);
std::string rng_name(int rank, const std::string& device);
// Whether an optimizer's state of this name would look like one of the others.
bool is_reserved(const std::string& state);

}  // namespace equigrad::core
