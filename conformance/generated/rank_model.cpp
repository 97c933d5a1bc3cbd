#include "conformance/generated/rank_model.hpp"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <optional>
#include <utility>

#include "conformance/cases/model_groups.hpp"
#include "conformance/generated/core.hpp"
#include "conformance/generated/harmless_events.hpp"
#include "conformance/generated/user_hooks.hpp"
#include "conformance/on_rank/backward.hpp"
#include "conformance/on_rank/caller_state.hpp"
#include "conformance/on_rank/split_model.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

// A parameter of each group that has one.
std::vector<std::string> first_names(GeneratedModel& model) {
  std::vector<std::string> names;
  for (const auto& group : model.groups())
    if (!group.names.empty()) names.push_back(group.names.front());
  return names;
}

std::vector<at::Tensor> empty_like(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> made;
  for (const auto& tensor : tensors) made.push_back(at::empty_like(tensor.detach()));
  return made;
}

class GeneratedRankModel : public RankModel {
 public:
  GeneratedRankModel(const GeneratedCase& one, const PassTypes& types) : one_(one), types_(types) {
    take(std::make_shared<GeneratedModel>(one.workload, false));
  }

  void join(const comm::Mesh& ranks) override {
    const auto& workload = one_.workload;
    if (!workload.core) return;
    take(std::make_shared<GeneratedModel>(
        workload, false,
        split_model(sizes_of(*workload.core), workload.seed, ranks.tensor(), ranks.sequence())));
  }
  std::vector<NamedTensors> groups() override { return model_->all_groups(); }
  std::unique_ptr<Engine> make_engine(const std::string& config, comm::Mesh ranks) override;
  at::Tensor run_pass(Engine& engine, const Pass& pass, CallerWatch& caller) override;
  void renew() override;
  void end() override { events_->end(); }
  // At stage 3 its parameters have no values then.
  void without_engine() override { hooks_->judge_without_engine(one_.execution.stage < 3); }

 private:
  void take(std::shared_ptr<GeneratedModel> model);
  Style style_of(const Pass& pass, int use) const;
  at::Tensor forward(Engine& engine, const Pass& pass, const GeneratedModel::Watch& watch = {});
  void backward(Engine& engine, const at::Tensor& loss, Style style, bool retain_graph);
  void before(Engine& engine, const Pass& pass, CallerWatch& caller);

  const GeneratedCase one_;
  const PassTypes types_;
  std::shared_ptr<GeneratedModel> model_;
  std::vector<at::Tensor> parameters_, as_made_;  // the latter their types, sizes and strides
  std::optional<UserHooks> hooks_;
  std::optional<HarmlessEvents> events_;
};

void GeneratedRankModel::take(std::shared_ptr<GeneratedModel> model) {
  model_ = std::move(model);
  parameters_.clear();
  for (const auto& [name, tensor] : reference::unique_parameters(*model_))
    parameters_.push_back(tensor);
  as_made_ = empty_like(parameters_);
  hooks_.emplace(one_.workload, *model_);
  events_.emplace(one_, first_names(*model_), types_.is_scaled,
                  [this](Engine& engine, const Pass& pass, const GeneratedModel::Watch& watch) {
                    return forward(engine, pass, watch);
                  });
}

std::unique_ptr<Engine> GeneratedRankModel::make_engine(const std::string& config,
                                                        comm::Mesh ranks) {
  events_->begin(ranks.zero());  // engines under one loss have one group
  if (one_.execution.way_in == "module") return initialize(*model_, config, std::move(ranks));
  const auto types = module_types(*model_);
  const auto& specs = model_->groups();
  std::vector<ParameterGroup> groups;
  for (const auto& tensors : model_->all_groups()) {
    const auto& spec = specs.at(groups.size());
    groups.push_back({.parameters = {}, .lr = spec.lr, .weight_decay = spec.weight_decay});
    for (const auto& [name, tensor] : tensors)
      groups.back().parameters.push_back({name, tensor, *types.at(name).begin()});
  }
  const int world = ranks.sizes().world_size();
  return initialize(std::move(groups), parse_config(config, world), std::move(ranks));
}

// Buffers stay: no engine has taken their values.
void GeneratedRankModel::renew() {
  for (std::size_t i = 0; i < as_made_.size(); ++i)
    parameters_[i].set_data(at::empty_like(as_made_[i]).fill_(3));
}

Style GeneratedRankModel::style_of(const Pass& pass, int use) const {
  if (is_undivided(one_.workload, pass)) return Style::EngineBackward;
  uint64_t throws = one_.execution.seed;
  for (const int part : {pass.step, pass.micro_batch, use})
    throws = reference::hash(throws ^ static_cast<uint64_t>(part));
  return static_cast<Style>(throws % 4);
}

at::Tensor GeneratedRankModel::forward(Engine& engine, const Pass& pass,
                                       const GeneratedModel::Watch& watch) {
  const auto guard = engine.autocast();
  return model_->loss_of(pass, types_.dtype, watch);
}

void GeneratedRankModel::backward(Engine& engine, const at::Tensor& loss, Style style,
                                  bool retain_graph) {
  switch (style) {
    case Style::EngineBackward:
      engine.backward(loss, retain_graph);
      break;
    case Style::ScaleBackward:
      engine.scale(loss).backward({}, retain_graph);
      break;
    case Style::LossBackward:
      if (types_.is_scaled) require_refusal(loss);
      (types_.is_scaled ? engine.scale(loss) : loss).backward({}, retain_graph);
      break;
    case Style::TensorBackward: {
      const auto scaled = engine.scale(loss);
      scaled.backward(at::ones_like(scaled), retain_graph);
      break;
    }
  }
}

void GeneratedRankModel::before(Engine& engine, const Pass& pass, CallerWatch& caller) {
  for (const auto& event : events_->of(pass))
    caller.around(event, {Share::Generator, Share::Callback},
                  [&] { events_->happen(engine, event, pass); });
  for (const auto& rate : one_.workload.rates)
    if (rate.step == pass.step && pass.micro_batch == 0) {
      caller.around("set_lr()", {}, [&] { engine.set_lr(rate.lr); });
      types_.rates->assign(one_.workload.groups.size(), rate.lr);
    }
  hooks_->judge_kept();
}

// The forward pass alone runs code that may draw, of torch's. Another engine's term comes first on
// odd data ranks, so that ranks reach the engines in different orders; those that share a core
// reach it in one.
at::Tensor GeneratedRankModel::run_pass(Engine& engine, const Pass& pass, CallerWatch& caller) {
  before(engine, pass, caller);
  const bool is_odd = data_rank_of(one_.workload, pass) % 2 == 1;
  auto other = is_odd ? events_->beside(pass) : at::Tensor();
  const auto loss =
      caller.around("a forward pass and its autocast()", {}, [&] { return forward(engine, pass); });
  if (!is_odd) other = events_->beside(pass);
  const auto whole = other.defined() ? loss + other : loss;
  const auto uses = uses_of(one_.workload, pass);
  for (int use = 1; use <= uses; ++use)
    caller.around("a backward pass", {Share::Callback}, [&] {
      if (is_undivided(one_.workload, pass))
        engine.backward(whole, use < uses, /*scale_wrt_gas=*/false);
      else
        backward(engine, whole, style_of(pass, use), use < uses);
    });
  if (other.defined()) caller.around("another engine's step", {}, [&] { events_->taken(uses); });
  hooks_->judge_kept();
  return Forward{loss}.loss();
}

}  // namespace

std::unique_ptr<RankModel> generated_rank_model(const GeneratedCase& one, const PassTypes& types) {
  return std::make_unique<GeneratedRankModel>(one, types);
}

}  // namespace equigrad::conformance
