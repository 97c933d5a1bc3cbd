#include "engine/core/saved_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "engine/core/training_engine.hpp"
#include "engine/core/whole_tensor.hpp"
#include "engine/kernels/data_types.hpp"

namespace equigrad::core {
namespace {

using checkpoint::ElementType;
using nlohmann::json;

constexpr std::pair<at::ScalarType, ElementType> kTypes[] = {
    {at::kBool, ElementType::Bool}, {at::kByte, ElementType::U8},
    {at::kChar, ElementType::I8},   {at::kShort, ElementType::I16},
    {at::kInt, ElementType::I32},   {at::kLong, ElementType::I64},
    {at::kHalf, ElementType::F16},  {at::kBFloat16, ElementType::BF16},
    {at::kFloat, ElementType::F32}, {at::kDouble, ElementType::F64},
};

constexpr const char* kClient = "client";  // an optimizer of the caller's

const char* name_of(OptimizerConfig::Kind kind) {
  switch (kind) {
    case OptimizerConfig::Kind::Sgd:
      return "sgd";
    case OptimizerConfig::Kind::Adam:
      return "adam";
    case OptimizerConfig::Kind::AdamW:
      break;
  }
  return "adamw";
}

OptimizerConfig::Kind kind_from(const std::string& name) {
  for (const auto kind :
       {OptimizerConfig::Kind::Sgd, OptimizerConfig::Kind::Adam, OptimizerConfig::Kind::AdamW})
    if (name == name_of(kind)) return kind;
  throw Error("load_checkpoint", "expected an optimizer that this version knows, got \"" + name +
                                     "\". Load it with the version that saved it.");
}

json json_of(const OptimizerConfig& group) {
  return {{"lr", group.lr},
          {"weight_decay", group.weight_decay},
          {"beta1", group.beta1},
          {"beta2", group.beta2},
          {"eps", group.eps},
          {"momentum", group.momentum},
          {"dampening", group.dampening},
          {"nesterov", group.nesterov}};
}

OptimizerConfig group_from(const json& group, OptimizerConfig::Kind kind) {
  return {.kind = kind,
          .lr = group.at("lr").get<double>(),
          .weight_decay = group.at("weight_decay").get<double>(),
          .beta1 = group.at("beta1").get<double>(),
          .beta2 = group.at("beta2").get<double>(),
          .eps = group.at("eps").get<double>(),
          .momentum = group.at("momentum").get<double>(),
          .dampening = group.at("dampening").get<double>(),
          .nesterov = group.at("nesterov").get<bool>()};
}

json json_of(const SavedParameter& parameter) {
  return {{"name", parameter.name},   {"aliases", parameter.aliases},
          {"shape", parameter.shape}, {"trainable", parameter.trainable},
          {"steps", parameter.steps}, {"group", parameter.group}};
}

SavedParameter parameter_from(const json& parameter) {
  return {.name = parameter.at("name").get<std::string>(),
          .aliases = parameter.at("aliases").get<std::vector<std::string>>(),
          .shape = parameter.at("shape").get<std::vector<int64_t>>(),
          .trainable = parameter.at("trainable").get<bool>(),
          .steps = parameter.at("steps").get<int64_t>(),
          .group = parameter.at("group").get<std::size_t>()};
}

json json_of(const loss::LossScaler::History& history, const std::string& policy) {
  return {{"policy", policy},
          {"scale", history.scale},
          {"stepped", history.stepped},
          {"overflow", history.overflow},
          {"steps", history.steps},
          {"last_overflow", history.last_overflow},
          {"hysteresis_left", history.hysteresis_left},
          {"good_steps", history.good_steps}};
}

loss::LossScaler::History history_from(const json& history) {
  return {.scale = history.at("scale").get<double>(),
          .stepped = history.at("stepped").get<bool>(),
          .overflow = history.at("overflow").get<bool>(),
          .steps = history.at("steps").get<int64_t>(),
          .last_overflow = history.at("last_overflow").get<int64_t>(),
          .hysteresis_left = history.at("hysteresis_left").get<int64_t>(),
          .good_steps = history.at("good_steps").get<int64_t>()};
}

json json_of(const SavedClient& client) {
  json parameters = json::array();
  for (const auto& [states, numbers] : client.parameters)
    parameters.push_back({{"states", states}, {"numbers", numbers}});
  return {{"kind", client.kind}, {"rates", client.rates}, {"parameters", parameters}};
}

SavedClient client_from(const json& from, std::size_t parameters) {
  SavedClient client{.kind = from.at("kind").get<std::string>(),
                     .rates = from.at("rates").get<std::vector<double>>(),
                     .parameters = {}};
  for (std::size_t i = 0; i < parameters; ++i) {
    const auto& parameter = from.at("parameters").at(i);
    client.parameters.push_back({parameter.at("states").get<std::vector<std::string>>(),
                                 parameter.at("numbers").get<std::string>()});
  }
  return client;
}

SavedClient saved_client(const Parts& parts, const optimizer::ClientState& state) {
  SavedClient client{
      .kind = state.optimizer().kind(), .rates = state.optimizer().lr(), .parameters = {}};
  for (std::size_t i = 0; i < parts.model.table.size(); ++i)
    client.parameters.push_back({state.names(i), state.numbers(i)});
  return client;
}

std::optional<comm::MeshSizes> mesh_from(const json& from) {
  if (!from.contains("mesh")) return {};
  const auto& mesh = from.at("mesh");
  return comm::MeshSizes{.data = mesh.at("data").get<int>(),
                         .sequence = mesh.at("sequence").get<int>(),
                         .tensor = mesh.at("tensor").get<int>()};
}

SavedEngine read(const json& from) {
  SavedEngine engine;
  engine.stage = from.at("stage").get<int>();
  engine.mesh = mesh_from(from);
  engine.param_type = from.at("param_type").get<std::string>();
  engine.master_type = from.at("master_type").get<std::string>();
  engine.optimizer = from.at("optimizer").get<std::string>();
  for (const auto& parameter : from.at("parameters"))
    engine.parameters.push_back(parameter_from(parameter));
  for (const auto& group : from.at("groups"))
    engine.groups.push_back(group_from(group, kind_from(engine.optimizer)));
  if (engine.optimizer == kClient)
    engine.client = client_from(from.at("client"), engine.parameters.size());
  const auto& counters = from.at("counters");
  engine.counters.micro_steps = counters.at("micro_steps").get<int64_t>();
  engine.counters.global_steps = counters.at("global_steps").get<int64_t>();
  engine.counters.skipped_steps = counters.at("skipped_steps").get<int64_t>();
  engine.applied = from.at("was_step_applied").get<bool>();
  if (!from.at("norm").is_null())  // text, for it may be NaN
    engine.norm = std::strtod(from.at("norm").get<std::string>().c_str(), nullptr);
  engine.loss_scale_policy = from.at("loss_scale").at("policy").get<std::string>();
  engine.loss_scale = history_from(from.at("loss_scale"));
  if (!from.at("schedule").is_null())
    engine.last_batch_iteration = from.at("schedule").at("last_batch_iteration").get<int64_t>();
  if (!from.at("layer_drop").is_null())
    engine.theta = from.at("layer_drop").at("theta").get<double>();
  return engine;
}

}  // namespace

const SavedParameter* SavedEngine::find(std::string_view name) const {
  const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const auto& one) {
    return one.name == name ||
           std::find(one.aliases.begin(), one.aliases.end(), name) != one.aliases.end();
  });
  return found == parameters.end() ? nullptr : &*found;
}

std::string_view to_text(const loss::LossScaler& scaler) {
  switch (scaler.policy()) {
    case LossScaleConfig::Policy::Static:
      return "static";
    case LossScaleConfig::Policy::DeepSpeed:
      return "deepspeed";
    case LossScaleConfig::Policy::GradScaler:
      return "grad_scaler";
    case LossScaleConfig::Policy::None:
      break;
  }
  return "none";
}

const SavedClient::OfParameter& SavedEngine::of_client(const SavedParameter& parameter) const {
  return client.value().parameters.at(static_cast<std::size_t>(&parameter - parameters.data()));
}

SavedEngine saved_engine(Parts& parts) {
  const auto& [counters, applied, norm] = parts.outcome;
  SavedEngine engine;
  engine.stage = parts.config.zero.stage;
  engine.mesh = parts.group.mesh.sizes();
  engine.param_type = to_text(element_type_of(torch_dtype(parts.config.precision.param), ""));
  engine.master_type = to_text(element_type_of(parts.optimizer.masters().scalar_type(), ""));
  engine.groups = parts.optimizer.hyper_parameters();
  if (const auto* client = client_of(parts.optimizer)) {
    engine.optimizer = kClient;
    engine.client = saved_client(parts, *client);
  } else {
    engine.optimizer = name_of(engine.groups.front().kind);
  }
  for (std::size_t i = 0; i < parts.model.table.size(); ++i) {
    const auto& entry = parts.model.table[i];
    engine.parameters.push_back({.name = entry.name,
                                 .aliases = entry.aliases,
                                 .shape = whole_tensor(parts, i).shape,
                                 .trainable = entry.trainable,
                                 .steps = parts.optimizer.steps()[i],
                                 .group = entry.group});
  }
  engine.counters = counters;
  engine.applied = applied;
  engine.norm = norm;
  engine.loss_scale_policy = to_text(*parts.loss.scaler);
  engine.loss_scale = parts.loss.scaler->history();
  if (parts.schedules.rates)
    engine.last_batch_iteration = parts.schedules.rates->last_batch_iteration();
  if (parts.schedules.layer_drop) engine.theta = parts.schedules.layer_drop->theta();
  return engine;
}

json to_json(const SavedEngine& engine) {
  json parameters = json::array(), groups = json::array();
  for (const auto& parameter : engine.parameters) parameters.push_back(json_of(parameter));
  for (const auto& group : engine.groups) groups.push_back(json_of(group));
  const json schedule = engine.last_batch_iteration
                            ? json{{"last_batch_iteration", *engine.last_batch_iteration}}
                            : json();
  json all = {{"stage", engine.stage},
              {"param_type", engine.param_type},
              {"master_type", engine.master_type},
              {"optimizer", engine.optimizer},
              {"parameters", parameters},
              {"groups", groups},
              {"counters",
               {{"micro_steps", engine.counters.micro_steps},
                {"global_steps", engine.counters.global_steps},
                {"skipped_steps", engine.counters.skipped_steps}}},
              {"was_step_applied", engine.applied},
              {"norm", engine.norm ? json(fmt::format("{}", *engine.norm)) : json()},
              {"loss_scale", json_of(engine.loss_scale, engine.loss_scale_policy)},
              {"schedule", schedule},
              {"layer_drop", engine.theta ? json{{"theta", *engine.theta}} : json()}};
  if (engine.mesh)
    all["mesh"] = {{"data", engine.mesh->data},
                   {"sequence", engine.mesh->sequence},
                   {"tensor", engine.mesh->tensor}};
  if (engine.client) all["client"] = json_of(*engine.client);
  return all;
}

SavedEngine saved_engine_from(const json& from, const std::string& where) {
  try {
    return read(from);
  } catch (const json::exception& error) {
    throw Error("load_checkpoint", "expected what an engine says of itself in " + where +
                                       ", got something else: " + error.what() +
                                       ". Load another tag.");
  }
}

ElementType element_type_of(at::ScalarType type, const std::string& name) {
  for (const auto& [torch, ours] : kTypes)
    if (torch == type) return ours;
  throw Error("save_checkpoint", "expected a type that safetensors has for \"" + name + "\", got " +
                                     c10::toString(type) + ". Convert the buffer.");
}

at::ScalarType scalar_type_of(ElementType type) {
  for (const auto& [torch, ours] : kTypes)
    if (ours == type) return torch;
  throw_broken_invariant("checkpoint.types", "every type of a file is one of torch's");
}

std::string master_name(const std::string& parameter) { return "master/" + parameter; }
std::string state_name(const std::string& state, const std::string& parameter) {
  return state + "/" + parameter;
}
std::string parameter_name(const std::string& parameter) { return "parameter/" + parameter; }
std::string buffer_name(int rank, const std::string& buffer) {
  return fmt::format("rank{}/buffer/{}", rank, buffer);
}
bool is_reserved(const std::string& state) {
  return state.empty() || state.find('/') != std::string::npos || state.starts_with("rank") ||
         state == "master" || state == "parameter";
}
std::string rng_name(int rank, const std::string& device) {
  return fmt::format("rank{}/rng/{}", rank, device);
}

}  // namespace equigrad::core
