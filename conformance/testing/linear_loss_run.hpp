// LinearLossRun: an engine on parameters whose gradients a test knows: the loss is their dot
// product with given numbers. So an average can be computed by hand.
//
// Invariants: what a parameter gets depends on (parameter, pass, rank) only; almost all sums round.
// "lone" is used by the last rank only, "unused" by none, "frozen" is not trained.
// Shapes: sizes that no number of ranks divides; a scalar, one element, an empty [0, 3].
// Errors: those of initialize.
// Depends on: engine/engine.hpp, conformance/testing/small_run.hpp.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/testing/small_run.hpp"

namespace equigrad::conformance {

struct LinearLossOptions {
  int stage = 0;
  bool bf16 = false;
  int64_t accumulation = 3;
  OptimizerConfig::Kind kind = OptimizerConfig::Kind::AdamW;
  double momentum = 0;  // of SGD, whose rate is 1: a step subtracts the gradient itself
  int64_t persistent_numel = 0;
};

struct LinearLossRun {
  LinearLossOptions options;
  int rank, world;
  at::ScalarType dtype;
  std::vector<NamedParameter> parameters;
  std::unique_ptr<Engine> engine;
  std::map<std::string, at::Tensor> of_last_step;  // this rank's gradients

  // `over`: the rank's own group unless another communicator is given.
  LinearLossRun(ranks::RankContext& context, const LinearLossOptions& with,
                std::shared_ptr<comm::Communicator> over = nullptr)
      : options(with),
        rank(context.rank()),
        world(context.world_size()),
        dtype(with.bf16 ? at::kBFloat16 : at::kFloat) {
    const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes{
        {"seven", {7}}, {"grid", {5, 4}},  {"scalar", {}},  {"one", {1}},
        {"lone", {3}},  {"empty", {0, 3}}, {"unused", {5}}, {"frozen", {3}}};
    for (const auto& [name, shape] : shapes) {
      const auto numel = c10::multiply_integers(shape);
      parameters.push_back({name, sample(numel, 70 + parameters.size()).view(shape)});
      parameters.back().tensor.requires_grad_(name != "frozen");
    }
    auto config = config_of({.stage = with.stage, .accumulation = with.accumulation}, world);
    if (with.bf16) config.precision.param = config.precision.accumulate = DataType::Bf16;
    config.zero.stage3_param_persistence_threshold = with.persistent_numel;
    config.optimizer.kind = with.kind;
    if (with.kind == OptimizerConfig::Kind::Sgd) {
      config.optimizer.lr = 1;
      config.optimizer.weight_decay = 0;
      config.optimizer.momentum = with.momentum;
    }
    engine = initialize({ParameterGroup{parameters, {}, {}}}, config,
                        over ? std::move(over) : context.group());
    engine->on_step([this](const std::vector<LocalShard>& shards) {
      of_last_step.clear();
      for (const auto& shard : shards) {
        if (shard.gradient.defined()) of_last_step[shard.name] = shard.gradient.clone();
      }
    });
  }

  const at::Tensor& operator[](const std::string& name) const {
    for (const auto& parameter : parameters)
      if (parameter.name == name) return parameter.tensor;
    throw Error("test", "no parameter " + name);
  }
  static std::vector<std::string> trained() {
    return {"seven", "grid", "scalar", "one", "lone", "unused"};
  }
  bool uses(const std::string& name, int on_rank) const {
    return name != "unused" && name != "frozen" && (name != "lone" || on_rank == world - 1);
  }
  // The gradient of one pass on one rank; zeros where it is not used.
  at::Tensor contribution(const std::string& name, int64_t pass, int on_rank) const {
    const auto& tensor = (*this)[name];
    const auto seed = static_cast<uint64_t>(100 * pass + 7 * on_rank + tensor.numel());
    const auto whole = sample(tensor.numel(), seed, dtype).view(tensor.sizes());
    return uses(name, on_rank) ? whole : at::zeros_like(whole);
  }
  at::Tensor loss(int64_t pass) const {
    auto sum = at::zeros({});
    for (const auto& [name, tensor, type] : parameters) {
      if (uses(name, rank)) sum = sum + (tensor * contribution(name, pass, rank)).sum();
    }
    return sum;
  }
  void backward(int64_t pass) { engine->backward(loss(pass)); }
  void train(int64_t pass) {
    backward(pass);
    engine->step();
  }
  // The average of these passes, in the documented order of sums.
  at::Tensor average(const std::string& name, const std::vector<int64_t>& passes) const {
    const auto rounded = [&](const at::Tensor& x) { return x.to(dtype).to(at::kFloat); };
    std::vector<at::Tensor> rows;
    at::Tensor sum;
    const auto add = [&](at::Tensor& to, const at::Tensor& more) {
      to = rounded(to.defined() ? at::add(to, more.to(at::kFloat)) : more);
    };
    for (const auto pass : passes) {
      std::vector<at::Tensor> of_pass;
      for (int on_rank = 0; on_rank < world; ++on_rank) {
        of_pass.push_back(contribution(name, pass, on_rank));
        if (pass == passes.front())
          rows.push_back(of_pass.back().to(at::kFloat));
        else
          add(rows[static_cast<std::size_t>(on_rank)], of_pass.back());
      }
      if (options.stage >= 2) add(sum, sum_of_tree(of_pass));
    }
    if (options.stage < 2) sum = rounded(sum_of_tree(rows));
    const double factor = 1.0 / static_cast<double>(options.accumulation * world);
    return at::mul(sum, at::full({}, factor, at::kFloat));
  }
  // This rank's elements of a whole, flat.
  at::Tensor mine(const at::Tensor& whole) const {
    const int64_t shards = options.stage == 0 ? 1 : world;
    const int64_t slice = (whole.numel() + shards - 1) / shards;
    const int64_t begin = options.stage == 0 ? 0 : std::min(whole.numel(), rank * slice);
    return whole.reshape({-1}).slice(0, begin, std::min(whole.numel(), begin + slice));
  }
};

// As HasTheBitsOf, but slices may be empty.
inline void expect_same(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_TRUE(got.defined()) << what;
  EXPECT_TRUE(oracle::compare(got, want).equal())
      << what << ": " << oracle::describe(oracle::compare(got, want));
}

}  // namespace equigrad::conformance
