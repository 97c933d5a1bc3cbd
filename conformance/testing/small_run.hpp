// SmallRun: an engine on a small network of plain tensors, for the tests of the engine's own calls.
//
//   w1 [5, 4]  b1 [5]  w2 [3, 5]  b2 [3]   and beside them: unused [4], frozen [3], empty [0]
//
// Invariants: a batch depends on (micro_step, rank) only, so two runs of the same calls are equal.
// Shapes: output [2, 3], scalar loss.   Errors: those of initialize.
// Depends on: engine/engine.hpp, conformance/ranks, conformance/testing/sample.hpp.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/engine.hpp"
#include "engine/kernels/data_types.hpp"

namespace equigrad::conformance {

struct SmallOptions {
  int stage = 0;
  int64_t accumulation = 1;
  bool bf16 = false;
  double clipping = 0;
  bool momentum = false;  // SGD with momentum instead of AdamW
  std::optional<SchedulerConfig> scheduler = {};
  ProgressiveLayerDropConfig layer_drop = {};
  std::optional<PrecisionConfig> precision = {};  // instead of bf16 or fp32
  ReductionOrder reduction = ReductionOrder::Pinned;
  bool managed = true;                   // managed_gradient_accumulation
  std::optional<int64_t> max_live = {};  // stage3_max_live_parameters
};

// fp16 with a scale of 2^power that doubles after every clean step and halves after every other.
inline PrecisionConfig fp16_of(int64_t power) {
  PrecisionConfig precision;
  precision.param = precision.accumulate = DataType::Fp16;
  precision.loss_scale.policy = LossScaleConfig::Policy::DeepSpeed;
  precision.loss_scale.initial_scale_power = power;
  precision.loss_scale.loss_scale_window = 1;
  precision.loss_scale.hysteresis = 1;
  return precision;
}

inline EngineConfig config_of(const SmallOptions& options, int world) {
  EngineConfig config;
  config.gradient_accumulation_steps = options.accumulation;
  config.managed_gradient_accumulation = options.managed;
  config.train_batch_size = options.accumulation * world;
  config.zero.stage = options.stage;
  config.zero.reduce_bucket_size = 20;
  config.zero.stage3_param_persistence_threshold = 0;
  if (options.max_live) config.zero.stage3_max_live_parameters = *options.max_live;
  config.gradient_clipping = options.clipping;
  config.reduction = options.reduction;
  if (options.bf16) config.precision.param = config.precision.accumulate = DataType::Bf16;
  if (options.precision) config.precision = *options.precision;
  config.optimizer.lr = 0.01;
  config.optimizer.weight_decay = 0.1;
  if (options.momentum) {
    config.optimizer.kind = OptimizerConfig::Kind::Sgd;
    config.optimizer.momentum = 0.9;
  }
  config.scheduler = options.scheduler;
  config.progressive_layer_drop = options.layer_drop;
  config.communication_timeout_s = 30;
  return config;
}

struct SmallRun {
  std::shared_ptr<comm::Communicator> group;
  int rank;
  at::ScalarType dtype;
  std::vector<NamedParameter> parameters;
  std::unique_ptr<Engine> engine;

  SmallRun(ranks::RankContext& context, const SmallOptions& options,
           std::shared_ptr<comm::Communicator> communicator = nullptr)
      : group(communicator ? std::move(communicator) : context.group()),
        rank(context.rank()),
        dtype(torch_dtype(config_of(options, 1).precision.param)) {
    const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes{
        {"w1", {5, 4}},  {"b1", {5}},     {"w2", {3, 5}}, {"b2", {3}},
        {"unused", {4}}, {"frozen", {3}}, {"empty", {0}}};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const auto& [name, shape] = shapes[i];
      const auto numel = c10::multiply_integers(shape);
      parameters.push_back({name, at::sin(at::arange(numel) + static_cast<double>(i)).view(shape)});
      parameters.back().tensor.requires_grad_(name != "frozen");
    }
    engine = initialize({ParameterGroup{parameters, {}, {}}},
                        config_of(options, context.world_size()), group);
  }

  const at::Tensor& operator[](const std::string& name) const {
    for (const auto& parameter : parameters) {
      if (parameter.name == name) return parameter.tensor;
    }
    throw Error("test", "no parameter " + name);
  }
  at::Tensor output(int64_t micro_step, double scale = 1) const {
    const auto seed = static_cast<double>(10 * micro_step + rank);
    const auto input = (at::cos(at::arange(8) + seed) * scale).view({2, 4}).to(dtype);
    const auto hidden = at::tanh(at::linear(input, (*this)["w1"], (*this)["b1"]));
    return at::linear(hidden, (*this)["w2"], (*this)["b2"]) + (*this)["frozen"];
  }
  static at::Tensor loss_of(const at::Tensor& output) {
    return output.to(at::kFloat).square().mean();
  }
  at::Tensor loss(int64_t micro_step) const { return loss_of(output(micro_step)); }
  void train(int64_t micro_step) {
    engine->backward(loss(micro_step));
    engine->step();
  }

  // Everything that a step may write. Collective at stage 3.
  std::map<std::string, at::Tensor> all() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& parameter : parameters) {
      if (parameter.name != "empty") all[parameter.name] = engine->full_parameter(parameter.name);
    }
    for (const auto& shard : engine->local_shards()) {
      if (shard.master.numel() == 0) continue;
      all[shard.name + " master"] = shard.master.clone();
      for (const auto& [name, state] : shard.state) all[shard.name + " " + name] = state.clone();
    }
    return all;
  }
};

inline void expect_equal(const std::map<std::string, at::Tensor>& got,
                         const std::map<std::string, at::Tensor>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, tensor] : want) {
    EXPECT_THAT(got.at(name), oracle::HasTheBitsOf(tensor)) << name << ", " << what;
  }
}

// on_ranks at every stage, for runs that say their stage when they fail.
template <class Fn>
void at_every_stage(int world, Fn fn) {
  EXPECT_EQ(ranks::on_ranks(world,
                            [fn](ranks::RankContext& context) {
                              for (const int stage : {0, 1, 2, 3}) {
                                context.note("stage " + std::to_string(stage));
                                SCOPED_TRACE("stage " + std::to_string(stage));
                                fn(context, stage);
                              }
                            }),
            "");
}

}  // namespace equigrad::conformance
