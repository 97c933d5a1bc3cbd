#include "conformance/contract/players/engine_play.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "conformance/contract/players/models.hpp"
#include "conformance/contract/players/settings.hpp"
#include "conformance/oracle/bits.hpp"
#include "engine/zero_init.hpp"

namespace equigrad::conformance::contract {
namespace {

std::map<std::string, LocalShard> copy_of(const std::vector<LocalShard>& shards) {
  std::map<std::string, LocalShard> copies;
  for (const auto& shard : shards) {
    auto& copy = copies[shard.name] = shard;
    if (shard.gradient.defined()) copy.gradient = shard.gradient.flatten().clone();
  }
  return copies;
}

// In zero::Init's scope rank 0's weights count, as ever; the wrong way has rank 1's.
std::shared_ptr<reference::Model> make_model(
    const Spec& spec, const ContractContext& context, std::size_t which,
    const std::shared_ptr<comm::Communicator>& communicator) {
  const uint64_t seed = context.seed + which;
  const auto& name = spec.of->models[which];
  if (!spec.of->has(Feature::WithinInit)) return make_contract_model(name, seed);
  zero::Init init(config_text(spec.of_model(which)), communicator);
  auto model = make_contract_model(name, context.rank == 0 && !context.fault ? seed : seed + 99);
  init.finish();
  return model;
}

at::Tensor number(double value) { return at::full({1}, value, at::kDouble); }

}  // namespace

EnginePlay::EnginePlay(const Spec& spec, const ContractContext& context,
                       ranks::RankContext& rank_context, const reference::Data& data,
                       const std::shared_ptr<comm::Communicator>& communicator)
    : Play(data), spec_(spec), rank_context_(rank_context), stepped_(spec.of->models.size()) {
  context_ = context;
  context_.window = -1;
  for (std::size_t i = 0; i < spec.of->models.size(); ++i) {
    models_.push_back(make_model(spec, context, i, communicator));
    engines_.push_back(make_engine(spec.of_model(i), *models_[i], communicator));
    engines_[i]->on_step([this, i](const std::vector<LocalShard>& shards) {
      stepped_[i].push_back(copy_of(shards));
    });
  }
}

std::string EnginePlay::at(const std::string& what) const {
  return "step " + std::to_string(context_.window + 1) + " " + what;
}

void EnginePlay::window(const std::vector<reference::StepRecord>& want, const Seen& seen) {
  ++context_.window;
  seen_.clear();
  for (auto& calls : stepped_) calls.clear();
  rank_context_.note(at("program"));
  spec_.of->program(*this);
  rank_context_.note(at("comparison"));
  check("as much is seen as by the reference", seen_.size() == seen.size());
  for (std::size_t i = 0; i < std::min(seen_.size(), seen.size()); ++i)
    if (seen_[i].second.defined() && seen[i].second.defined())
      compare(seen[i].first, 0, seen_[i].second, seen[i].second);
    else
      check(seen[i].first + " is defined on both sides or on none",
            seen_[i].second.defined() == seen[i].second.defined());
  for (std::size_t i = 0; i < models_.size(); ++i) compare_model(i, want[i]);
}

void EnginePlay::compare(const std::string& what, int64_t begin, const at::Tensor& got,
                         const at::Tensor& want) {
  tally_.add(at(what), begin, oracle::compare(got, want));
}

void EnginePlay::compare_model(std::size_t which, const reference::StepRecord& want) {
  const std::string of = models_.size() > 1 ? " of model " + std::to_string(which + 1) : "";
  auto& engine = *engines_[which];
  check("one update" + of, stepped_[which].size() == (want.skipped ? 0 : 1));
  const double norm = engine.get_global_grad_norm().value_or(-1);
  if (want.skipped)
    check("the norm is not a number" + of, std::isnan(norm));
  else
    compare("norm" + of, 0, number(norm), number(want.grad_norm));
  if (!want.skipped && !stepped_[which].empty())
    for (const auto& [name, shard] : stepped_[which].back())
      compare_gradient("gradient " + name + of, shard, want);
  for (const auto& shard : engine.local_shards()) {
    const auto part = [&](const at::Tensor& whole) {
      return whole.flatten().slice(0, shard.begin, shard.end);
    };
    compare("master " + shard.name + of, shard.begin, shard.master.flatten(),
            part(want.masters.at(shard.name)));
    check("states of " + shard.name + of, shard.state.size() == want.state.size());
    for (const auto& [name, state] : shard.state)
      compare(name + " " + shard.name + of, shard.begin, state.flatten(),
              part(want.state.at(name).at(shard.name)));
  }
  for (const auto& [name, parameter] : want.parameters)
    compare("parameter " + name + of, 0, engine.full_parameter(name), parameter);
}

void EnginePlay::compare_gradient(const std::string& where, const LocalShard& shard,
                                  const reference::StepRecord& want) {
  const auto found = want.gradients.find(shard.name);
  const bool used = found != want.gradients.end();
  check(where + (used ? " is there" : " is absent: no rank used it"),
        used == shard.gradient.defined());
  if (used && shard.gradient.defined())
    compare(where, shard.begin, shard.gradient,
            found->second.flatten().slice(0, shard.begin, shard.end));
}

at::Tensor EnginePlay::backward(const at::Tensor& loss, PassOptions options) {
  return engines_[options.engine]->backward(loss, options.retain_graph, options.scale_wrt_gas);
}

at::Tensor EnginePlay::scale(const at::Tensor& tensor, std::size_t which) {
  return engines_[which]->scale(tensor);
}

void EnginePlay::step() {
  for (auto& engine : engines_) engine->step();
}

void EnginePlay::zero_grad() {
  for (auto& engine : engines_) engine->zero_grad();
}

void EnginePlay::gather(const std::vector<std::string>& names, std::optional<int> modifier_rank,
                        const Call& inside) {
  const auto all = models_[0]->named_parameters();
  std::vector<at::Tensor> tensors;
  for (const auto& name : names) tensors.push_back(all[name]);
  auto whole = engines_[0]->gather(tensors, modifier_rank);
  inside();
  whole.end();
}

void EnginePlay::fail(const std::string& fragment, const Call& call) {
  const std::string expected = "expected an error with \"" + fragment + "\", got ";
  try {
    call();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const bool holds = text.find(fragment) != std::string::npos;
    return check(holds ? "an error with \"" + fragment + "\"" : expected + text.substr(0, 300),
                 holds);
  }
  check(expected + "none", false);
}

void EnginePlay::check(const std::string& what, bool holds) {
  if (!holds) return tally_.add_finding(at("check"), "does not hold: " + what);
  oracle::BitsReport one;
  one.compared = 1;
  tally_.add(at(what), 0, one);
}

void EnginePlay::see(const std::string& what, const at::Tensor& value) {
  seen_.emplace_back(what, value.defined() ? value.detach().clone() : value);
}

}  // namespace equigrad::conformance::contract
