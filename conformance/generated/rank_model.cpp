#include "conformance/generated/rank_model.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>

#include "conformance/cases/model_groups.hpp"
#include "conformance/on_rank/backward.hpp"
#include "conformance/on_rank/caller_state.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

// An engine of its own on the same communicator, whose weights are known without a reference: SGD
// at rate 1 takes the sum of its gradients, small whole numbers, from zeros.
class Bystander {
 public:
  explicit Bystander(std::shared_ptr<comm::Communicator> group)
      : weight_(at::zeros({3}, at::kFloat).set_requires_grad(true)) {
    const auto config = parse_config(R"({"train_micro_batch_size_per_gpu": 1,
      "optimizer": {"type": "SGD", "params": {"lr": 1.0}}, "zero_optimization": {"stage": 1},
      "gradient_allreduce_op": "sum"})",
                                     group->world_size());
    ranks_ = group->world_size();
    engine_ = initialize({{.parameters = {{"weight", weight_}}}}, config, std::move(group));
  }

  void step() {
    const auto steps = at::arange(1, 4, at::kFloat);
    engine_->backward((weight_ * steps).sum());
    engine_->step();
    want_ = want_ - steps * ranks_;
    if (!engine_->full_parameter("weight").equal(want_))
      throw HarmlessEventFailed("another engine's weights are not what its own steps make them");
  }

 private:
  at::Tensor weight_;
  at::Tensor want_ = at::zeros({3}, at::kFloat);
  int ranks_ = 1;
  std::unique_ptr<Engine> engine_;
};

class GeneratedRankModel : public RankModel {
 public:
  GeneratedRankModel(const GeneratedCase& one, const PassTypes& types)
      : one_(one), types_(types), model_(std::make_shared<GeneratedModel>(one.workload, false)) {}

  std::vector<NamedTensors> groups() override { return model_->all_groups(); }
  std::unique_ptr<Engine> make_engine(const std::string& config,
                                      std::shared_ptr<comm::Communicator> group) override;
  at::Tensor run_pass(Engine& engine, const Pass& pass, CallerWatch& caller) override;
  void end() override { bystander_.reset(); }

 private:
  Style style_of(const Pass& pass, int use) const;
  at::Tensor forward(Engine& engine, const Pass& pass, const GeneratedModel::Watch& watch = {});
  void backward(Engine& engine, const at::Tensor& loss, Style style, bool retain_graph);
  void happen(Engine& engine, const std::string& what, const Pass& pass);
  void cancel(Engine& engine, const Pass& pass);
  void throw_midway(Engine& engine, const Pass& pass);
  void ask(Engine& engine, const Pass& pass);
  void read(Engine& engine);

  const GeneratedCase one_;
  const PassTypes types_;
  std::shared_ptr<GeneratedModel> model_;
  std::shared_ptr<comm::Communicator> group_;
  std::optional<Bystander> bystander_;
};

std::unique_ptr<Engine> GeneratedRankModel::make_engine(const std::string& config,
                                                        std::shared_ptr<comm::Communicator> group) {
  group_ = group;
  if (one_.execution.way_in == "module") return initialize(*model_, config, std::move(group));
  const auto types = module_types(*model_);
  const auto& specs = model_->groups();
  std::vector<ParameterGroup> groups;
  for (const auto& tensors : model_->all_groups()) {
    const auto& spec = specs.at(groups.size());
    groups.push_back({.parameters = {}, .lr = spec.lr, .weight_decay = spec.weight_decay});
    for (const auto& [name, tensor] : tensors)
      groups.back().parameters.push_back({name, tensor, *types.at(name).begin()});
  }
  return initialize(std::move(groups), parse_config(config, group->world_size()), std::move(group));
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

// The forward pass alone runs code that may draw, of torch's.
at::Tensor GeneratedRankModel::run_pass(Engine& engine, const Pass& pass, CallerWatch& caller) {
  for (const auto& event : one_.execution.events)
    if (event.step == pass.step && event.micro_batch == pass.micro_batch)
      caller.around(event.what, {Share::Generator, Share::Callback},
                    [&] { happen(engine, event.what, pass); });
  for (const auto& rate : one_.workload.rates)
    if (rate.step == pass.step && pass.micro_batch == 0) {
      caller.around("set_lr()", {}, [&] { engine.set_lr(rate.lr); });
      types_.rates->assign(one_.workload.groups.size(), rate.lr);
    }
  const auto loss =
      caller.around("a forward pass and its autocast()", {}, [&] { return forward(engine, pass); });
  const auto uses = uses_of(one_.workload, pass);
  for (int use = 1; use <= uses; ++use)
    caller.around("a backward pass", {Share::Callback}, [&] {
      if (is_undivided(one_.workload, pass))
        engine.backward(loss, use < uses, /*scale_wrt_gas=*/false);
      else
        backward(engine, loss, style_of(pass, use), use < uses);
    });
  return Forward{loss}.loss();
}

void GeneratedRankModel::happen(Engine& engine, const std::string& what, const Pass& pass) {
  if (what == "cancelled") return cancel(engine, pass);
  if (what == "thrown") return throw_midway(engine, pass);
  if (what == "asked") return ask(engine, pass);
  if (what == "read") return read(engine);
  if (what == "evaluated") {
    const at::NoGradGuard no_grad;
    forward(engine, {pass.step, pass.rank, pass.micro_batch + 1000});
  } else if (what == "bystander") {
    if (!bystander_) bystander_.emplace(group_);
    bystander_->step();
  } else {
    throw Error("generated case",
                "expected cancelled, evaluated, thrown, asked, read or "
                "bystander, got \"" +
                    what + "\". Take a file of this version.");
  }
}

// Its window was empty.
void GeneratedRankModel::cancel(Engine& engine, const Pass& pass) {
  engine.backward(forward(engine, {pass.step, pass.rank, pass.micro_batch + 1000}));
  engine.zero_grad();
}

void GeneratedRankModel::throw_midway(Engine& engine, const Pass& pass) {
  const Pass other{pass.step, pass.rank, pass.micro_batch + 2000};
  const auto throws = [](const at::Tensor& sum) {
    sum.register_hook([](const at::Tensor&) -> at::Tensor {
      throw std::runtime_error("planted by a generated case");
    });
  };
  // At the first term, which comes last, or before all of them.
  const bool is_late = reference::hash(one_.execution.seed) % 2 == 0;
  bool is_planted = false;
  const auto loss = forward(engine, other, [&](const at::Tensor& sum) {
    if (!is_late || is_planted || !sum.requires_grad()) return;
    throws(sum);
    is_planted = true;
  });
  if (!is_planted) throws(loss);
  try {
    engine.backward(loss);
  } catch (const std::exception& error) {
    // A rank that is told of another's first does not come to its own.
    const std::string text = error.what();
    if (text.find("planted by a generated case") != std::string::npos) return;
    if (text.find("got an exception on rank") != std::string::npos) return;
    throw;
  }
  throw HarmlessEventFailed("a pass whose hook throws ended without its exception");
}

void GeneratedRankModel::ask(Engine& engine, const Pass& pass) {
  const auto probe = at::full({}, 2.0, at::kFloat).set_requires_grad(true);
  const auto loss = forward(engine, {pass.step, pass.rank, pass.micro_batch + 3000});
  const auto given = torch::autograd::grad({loss * probe}, {probe});
  if (!given.at(0).equal(loss.detach()) && !loss.isnan().item<bool>())
    throw HarmlessEventFailed("autograd::grad of the loss by its factor is not the loss");
}

// Of one parameter of each group.
void GeneratedRankModel::read(Engine& engine) {
  auto& access = engine.access();
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return (a == b).logical_or(a.isnan().logical_and(b.isnan())).all().item<bool>();
  };
  const auto shards = engine.local_shards();
  for (const auto& group : model_->groups()) {
    const auto& name = group.names.at(0);
    engine.full_parameter(name);
    access.full_gradient(name);
    const auto found = std::find_if(shards.begin(), shards.end(),
                                    [&](const LocalShard& one) { return one.name == name; });
    if (found == shards.end()) continue;  // no element of it is anywhere
    const auto whole = access.full_master(name).flatten();
    if (!same(whole.slice(0, found->begin, found->end), found->master.flatten()))
      throw HarmlessEventFailed("a slice of full_master is not the local one: " + name);
  }
  engine.get_lr();
  engine.hyper_parameters();
}

}  // namespace

std::unique_ptr<RankModel> generated_rank_model(const GeneratedCase& one, const PassTypes& types) {
  return std::make_unique<GeneratedRankModel>(one, types);
}

}  // namespace equigrad::conformance
