// The engine's getters, setters, the length of its window and its checkpoints, as a program asks
// for them.
#include <ATen/ATen.h>

#include <limits>

#include "conformance/contract/players/engine_play.hpp"
#include "engine/api/access.hpp"

namespace equigrad::conformance::contract {
namespace {

constexpr uint64_t kOtherWeights = 1000;

// A getter gives a copy: what is written to it reaches nothing of the engine's.
at::Tensor taken(const at::Tensor& value) {
  if (!value.defined()) return value;
  auto mine = value.clone();
  value.fill_(std::numeric_limits<float>::quiet_NaN());
  return mine;
}

// full_gradient("head.weight"), set_local_optimizer_state("head.weight", "exp_avg", value)
std::string access_call(const std::string& verb, const std::string& what, const std::string& name) {
  const bool is_state = what != "gradient" && what != "master";
  const std::string value = verb.starts_with("set_") ? ", value" : "";
  return "access()." + verb + "_" + (is_state ? "optimizer_state" : what) + "(\"" + name + "\"" +
         (is_state ? ", \"" + what + "\"" : "") + value + ")";
}

}  // namespace

void EnginePlay::set_boundary(std::optional<bool> is_boundary) {
  enter("set_gradient_accumulation_boundary()");
  for (auto& one : trained_) one.engine->set_gradient_accumulation_boundary(is_boundary);
}

void EnginePlay::set_accumulation(int64_t steps) {
  context_.accumulation = steps;
  enter("set_train_batch_size()");
  for (auto& one : trained_) one.engine->set_train_batch_size(steps * context_.world);
}

at::Tensor EnginePlay::full(const std::string& what, const std::string& name) {
  enter(access_call("full", what, name), name, what);
  auto& access = trained_[0].engine->access();
  if (what == "gradient") return taken(access.full_gradient(name));
  if (what == "master") return taken(access.full_master(name));
  return taken(access.full_optimizer_state(name, what));
}

at::Tensor EnginePlay::local(const std::string& what, const std::string& name) {
  enter(access_call("local", what, name), name, what);
  auto& access = trained_[0].engine->access();
  if (what == "gradient") return taken(access.local_gradient(name));
  if (what == "master") return taken(access.local_master(name));
  return taken(access.local_optimizer_state(name, what));
}

void EnginePlay::set_full(const std::string& what, const std::string& name,
                          const at::Tensor& value) {
  enter(access_call("set_full", what, name), name, what);
  auto& access = trained_[0].engine->access();
  if (what == "gradient") return access.set_full_gradient(name, value);
  if (what == "master") return access.set_full_master(name, value);
  access.set_full_optimizer_state(name, what, value);
}

void EnginePlay::set_local(const std::string& what, const std::string& name,
                           const at::Tensor& whole) {
  enter(access_call("set_local", what, name), name, what);
  auto& access = trained_[0].engine->access();
  for (const auto& shard : trained_[0].engine->local_shards()) {
    if (shard.name != name) continue;
    const auto mine = whole.flatten().slice(0, shard.begin, shard.end).clone();
    if (what == "gradient") return access.set_local_gradient(name, mine);
    if (what == "master") return access.set_local_master(name, mine);
    return access.set_local_optimizer_state(name, what, mine);
  }
  check("a shard of " + name, false);
}

// Several engines save into one folder, each under a tag of its own.
void EnginePlay::save() {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    enter_of(i, "save_checkpoint()");
    trained_[i].engine->save_checkpoint(folder_, "engine" + std::to_string(i));
  }
}

void EnginePlay::load(const LoadOptions& options) {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    enter_of(i, "load_checkpoint()");
    const auto loaded =
        trained_[i].engine->load_checkpoint(folder_, "engine" + std::to_string(i), options);
    check("a checkpoint is loaded", loaded.has_value());
  }
}

void EnginePlay::restart(const Restart& how) {
  save();
  for (auto& one : trained_) one.engine.reset();
  enter("initialize()");
  for (std::size_t i = 0; i < trained_.size(); ++i)
    make(i, kOtherWeights + static_cast<uint64_t>(context_.window), how.stage);
  load(how.load);
}

void EnginePlay::detour(const Call& away) {
  save();
  away();
  for (auto& one : trained_) one.stepped.clear();
  if (!fault()) load({});
}

}  // namespace equigrad::conformance::contract
