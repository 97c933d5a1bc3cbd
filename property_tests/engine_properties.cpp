// Relations 24 and 31, and the exact lane on networks that nobody chose: the engine is its twin bit
// for bit, stages agree, and options that only schedule change nothing.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "conformance/cases/recipe.hpp"
#include "conformance/oracle/bits.hpp"
#include "conformance/oracle/digest.hpp"
#include "engine/engine.hpp"
#include "property_tests/numbers.hpp"
#include "property_tests/ranks_of_cases.hpp"
#include "property_tests/zero_settings.hpp"
#include "reference/trainer.hpp"

namespace equigrad::property_tests {
namespace {

using conformance::oracle::compare;
using conformance::oracle::describe;
using torch::nn::Linear;

constexpr int kSteps = 3;

// A tanh network of any widths: the first square layer may be used twice, one branch is for some
// batches only, one for none, and one parameter may be frozen.
class Mlp : public reference::Model {
 public:
  explicit Mlp(const json& one) : twice_(one.at("twice")) {
    const auto widths = one.at("widths").get<std::vector<int64_t>>();
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      const auto options =
          torch::nn::LinearOptions(widths[i], widths[i + 1]).bias(one.at("bias").get<bool>());
      layers_.push_back(register_module("layer" + std::to_string(i), Linear(options)));
    }
    sometimes_ = register_module("sometimes", Linear(widths.back(), widths.back()));
    register_module("never", Linear(2, 3));
    const at::NoGradGuard no_grad;
    uint64_t stream = 0;
    for (auto& [name, parameter] : reference::unique_parameters(*this))
      parameter.copy_(
          uniform(one.at("seed"), ++stream, parameter.numel(), 0.7F).view_as(parameter));
    // Of one layer alone, nothing would be left to train.
    if (one.at("frozen") && layers_.size() > 1) layers_.front()->weight.set_requires_grad(false);
  }

  at::Tensor output(const reference::Batch& batch) override {
    auto x = batch.input;
    for (auto& layer : layers_) {
      const bool square = layer->options.in_features() == layer->options.out_features();
      x = at::tanh(layer(x));
      if (square && twice_) x = at::tanh(layer(x));
    }
    const bool some = batch.input[0][0].item<float>() > 0;
    return some ? sometimes_(x) : x;
  }
  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override {
    return (output.to(at::kFloat) - batch.target.to(at::kFloat)).square().mean();
  }

 private:
  bool twice_;
  std::vector<Linear> layers_;
  Linear sometimes_{nullptr};
};

reference::Batch batch_of(const json& one, int64_t step, int64_t rank, int64_t micro_batch) {
  const int64_t size = one.at("micro"), first = one.at("widths").front();
  const int64_t last = one.at("widths").back();
  const auto stream = static_cast<uint64_t>(1000 + step * 10'000 + rank * 1000 + micro_batch);
  return {uniform(one.at("seed"), stream * 2, size * first, 1).view({size, first}),
          uniform(one.at("seed"), stream * 2 + 1, size * last, 1).view({size, last})};
}

EngineConfig config_of(const json& one) {
  EngineConfig config;
  config.gradient_accumulation_steps = one.at("accumulation");
  config.train_micro_batch_size_per_gpu = one.at("micro");
  config.train_batch_size = config.gradient_accumulation_steps *
                            config.train_micro_batch_size_per_gpu * one.at("world").get<int>();
  if (one.at("bf16")) config.precision.param = DataType::Bf16;
  if (one.at("bf16_sums")) config.precision.accumulate = DataType::Bf16;
  config.gradient_clipping = one.at("clip");
  config.optimizer.kind = static_cast<OptimizerConfig::Kind>(one.at("rule").get<int>());
  config.optimizer.lr = 0.02;
  config.optimizer.weight_decay = one.at("weight_decay");
  config.optimizer.momentum = one.at("momentum");
  config.zero = property_tests::zero_of(one);
  return config;
}

// One engine through kSteps, and what a twin beside it (if wanted) has to say.
class Run {
 public:
  Run(const json& one, RankContext& context)
      : one_(one), context_(context), config_(config_of(one)), model_(std::make_shared<Mlp>(one)) {
    ParameterGroup all;
    for (const auto& [name, tensor] : reference::unique_parameters(*model_))
      all.parameters.push_back({name, tensor});
    engine_ = initialize({all}, config_, context.group());
    if (!one.at("twin").get<bool>()) return;
    const auto recipe = conformance::recipe_of(config_, context.world_size(), one.at("seed"));
    twin_ = std::make_unique<reference::Trainer>(recipe, std::make_shared<Mlp>(one),
                                                 [this](int64_t step, int64_t rank, int64_t micro) {
                                                   return batch_of(one_, step, rank, micro);
                                                 });
  }

  Verdict verdict() {
    for (int64_t step = 0; step < kSteps && wrong_.empty(); ++step) {
      if (twin_) record_ = twin_->train_step();
      where_ = "step " + std::to_string(step + 1) + " ";
      engine_->on_step([&](const std::vector<LocalShard>& shards) {
        for (const auto& shard : shards) check_gradient(step, shard);
      });
      for (int64_t micro = 0; micro < config_.gradient_accumulation_steps; ++micro)
        micro_batch(step, micro);
      check_norm();
      for (const auto& shard : engine_->local_shards()) check_shard(step, shard);
      for (const auto& [name, parameter] : reference::unique_parameters(*model_))
        check("parameter", step, {name, 0, parameter.numel(), {}, {}, {}},
              engine_->full_parameter(name).flatten(), record_.parameters, context_.rank() == 0);
    }
    return {wrong_, digest_};
  }

 private:
  void micro_batch(int64_t step, int64_t micro) {
    const auto dtype = config_.precision.param == DataType::Bf16 ? at::kBFloat16 : at::kFloat;
    const auto loss =
        model_->loss(reference::to_dtype(batch_of(one_, step, context_.rank(), micro), dtype));
    const int style = one_.at("style");
    if (style == 0) engine_->backward(loss);
    if (style == 1) engine_->scale(loss).backward();
    if (style == 2) loss.backward();
    engine_->step();
  }

  void note(const std::string& what) {
    if (wrong_.empty()) wrong_ = where_ + what;
  }

  void check_gradient(int64_t step, const LocalShard& shard) {
    if (twin_ && shard.gradient.defined() != (record_.gradients.count(shard.name) == 1))
      note("gradient " + shard.name + ": present on one side only");
    else if (shard.gradient.defined())
      check("gradient", step, shard, shard.gradient, record_.gradients, speaks());
  }

  void check_shard(int64_t step, const LocalShard& shard) {
    check("master", step, shard, shard.master, record_.masters, speaks());
    for (const auto& [name, state] : shard.state)
      check(name, step, shard, state, record_.state[name], speaks());
  }

  void check(const std::string& what, int64_t step, const LocalShard& shard, const at::Tensor& got,
             const reference::TensorMap& twins, bool count) {
    if (count) digest_ += conformance::oracle::digest(what + shard.name, step, shard.begin, got);
    if (!twin_) return;
    const auto want = twins.find(shard.name);
    if (want == twins.end()) return note(what + " " + shard.name + ": the twin has none");
    const auto report = compare(got, want->second.flatten().slice(0, shard.begin, shard.end));
    if (!report.equal()) note(what + " " + shard.name + ": " + describe(report));
  }

  void check_norm() {
    const double norm = engine_->get_global_grad_norm().value_or(-1);
    if (twin_ && norm != record_.grad_norm) note("the norm differs");
    if (context_.rank() == 0)
      digest_ += conformance::oracle::digest("norm", 0, 0, at::full({1}, norm, at::kDouble));
  }

  // At stage 0 every rank holds everything: rank 0 speaks for all.
  bool speaks() const { return config_.zero.stage > 0 || context_.rank() == 0; }

  const json& one_;
  RankContext& context_;
  EngineConfig config_;
  std::shared_ptr<Mlp> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<reference::Trainer> twin_;
  reference::StepRecord record_;
  std::string where_, wrong_;
  uint64_t digest_ = 0;
};

RanksOfCases& ranks() {
  static RanksOfCases all(
      4,
      {{"run", [](const json& one, RankContext& context) { return Run(one, context).verdict(); }}});
  return all;
}

// Bucket sizes, prefetch, persistence, live limit, reuse distance: all the options that only say
// when something moves.
json any_schedule() {
  const auto size =
      rc::gen::oneOf(rc::gen::inRange<int64_t>(1, 60), rc::gen::inRange<int64_t>(1, 2000));
  const auto or_none = rc::gen::oneOf(rc::gen::just<int64_t>(0), rc::gen::inRange<int64_t>(0, 500));
  return json::array({*size, *size, *or_none, *or_none, *or_none, *or_none});
}

json any_case() {
  const bool bf16 = *rc::gen::arbitrary<bool>();
  const int rule = *rc::gen::inRange(0, 3);
  const auto layers = static_cast<std::size_t>(*rc::gen::inRange(2, 6));
  return {{"check", "run"},
          {"twin", false},
          {"world", *rc::gen::inRange(1, 5)},
          {"stage", *rc::gen::inRange(0, 4)},
          {"accumulation", *rc::gen::inRange(1, 4)},
          {"micro", *rc::gen::inRange(1, 4)},
          {"style", *rc::gen::inRange(0, 3)},
          {"bf16", bf16},
          {"bf16_sums", bf16 && *rc::gen::arbitrary<bool>()},
          {"clip", *rc::gen::element(0.0, 0.05, 1e6)},
          {"rule", rule},
          {"weight_decay", *rc::gen::element(0.0, 0.1)},
          {"momentum", rule == 0 ? *rc::gen::element(0.0, 0.9) : 0.0},
          {"widths", *rc::gen::container<std::vector<int64_t>>(
                         layers, rc::gen::oneOf(rc::gen::just<int64_t>(5),
                                                rc::gen::inRange<int64_t>(1, 24)))},
          {"bias", *rc::gen::arbitrary<bool>()},
          {"twice", *rc::gen::arbitrary<bool>()},
          {"frozen", *rc::gen::arbitrary<bool>()},
          {"schedule", any_schedule()},
          {"seed", *rc::gen::noShrink(rc::gen::inRange(0, 1 << 30))}};
}

RC_GTEST_PROP(Engine, EveryStepIsTheTwins, ()) {
  json one = any_case();
  one["twin"] = true;
  RC_ASSERT(ranks().wrong(one) == "");
}

// Both run; empty if they hold the same bits.
std::string differ(const json& one, const json& other) {
  const auto first = ranks().run(one), second = ranks().run(other);
  if (!first.wrong.empty() || !second.wrong.empty()) return first.wrong + second.wrong;
  if (first.digest == second.digest) return "";
  return "different bits in " + one.dump() + " and " + other.dump();
}

RC_GTEST_PROP(Engine, OptionsThatOnlyScheduleChangeNothing, ()) {
  const json one = any_case();
  json other = one;
  other["schedule"] = any_schedule();
  RC_ASSERT(differ(one, other) == "");
}

RC_GTEST_PROP(Engine, StagesZeroAndOneAgreeAndSoDoTwoAndThree, ()) {
  json one = any_case(), other = one;
  const int pair = *rc::gen::element(0, 2);
  one["stage"] = pair;
  other["stage"] = pair + 1;
  RC_ASSERT(differ(one, other) == "");
}

RC_GTEST_PROP(Engine, AllStagesAgreeOnOneMicroBatch, ()) {
  json one = any_case(), other = one;
  one["accumulation"] = other["accumulation"] = 1;
  one["stage"] = *rc::gen::inRange(0, 2);
  other["stage"] = *rc::gen::inRange(2, 4);
  RC_ASSERT(differ(one, other) == "");
}

}  // namespace
}  // namespace equigrad::property_tests
