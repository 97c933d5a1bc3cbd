// The engine's own account of its bytes against the closed formula: no byte of difference.
#include <ATen/ATen.h>

#include <chrono>

#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/engine.hpp"
#include "engine/memory/forecast.hpp"

namespace equigrad::conformance {
namespace {

using memory::Category;

struct Mode {
  std::string name;
  PrecisionConfig precision;
  bool offload = false;
  int least_stage = 0;
  bool is_exact = false;
  bool offload_param = false;
};

LossScaleConfig scale_of(LossScaleConfig::Policy policy) {
  LossScaleConfig scale;
  scale.policy = policy;
  scale.initial_scale_power = 4;
  return scale;
}

PrecisionConfig all_of(DataType param, DataType window, DataType master, DataType state) {
  PrecisionConfig precision;
  precision.param = param;
  precision.accumulate = window;
  precision.master = master;
  precision.optimizer_state = state;
  if (param == DataType::Fp16) precision.loss_scale = scale_of(LossScaleConfig::Policy::DeepSpeed);
  return precision;
}

PrecisionConfig under_autocast(PrecisionConfig precision, DataType dtype) {
  precision.autocast.enabled = true;
  precision.autocast.dtype = dtype;
  if (dtype == DataType::Fp16 && precision.param == DataType::Fp32)
    precision.loss_scale = scale_of(LossScaleConfig::Policy::GradScaler);
  return precision;
}

PrecisionConfig communicating_in(PrecisionConfig precision, DataType communication) {
  precision.communication = communication;
  return precision;
}

std::vector<Mode> all_modes() {
  const auto f32 = DataType::Fp32, b16 = DataType::Bf16, f16 = DataType::Fp16;
  const auto fp32 = all_of(f32, f32, f32, f32), bf16 = all_of(b16, b16, f32, f32);
  const auto fp16 = all_of(f16, f16, f32, f32), low = all_of(b16, b16, b16, b16);
  return {{"fp32", fp32},
          {"fp32, offload", fp32, true, 1},
          {"fp32, offload all", fp32, true, 3, false, true},
          {"bf16, offload parameters", bf16, false, 3, false, true},
          {"fp32, bf16 communication", communicating_in(fp32, b16)},
          {"bf16", bf16},
          {"bf16, offload", bf16, true, 1},
          {"bf16, fp32 window", all_of(b16, f32, f32, f32)},
          {"bf16, fp32 communication", communicating_in(bf16, f32)},
          {"bf16 masters and states", low, false, 1},
          {"bf16 masters", all_of(b16, b16, b16, f32), true, 1},
          {"fp16", fp16},
          {"fp16, fp32 window", all_of(f16, f32, f32, f32)},
          {"fp16 masters", all_of(f16, f16, f16, f32)},
          {"autocast bf16", under_autocast(fp32, b16)},
          {"autocast fp16", under_autocast(fp32, f16)},
          {"bf16, autocast", under_autocast(bf16, b16)},
          {"fp16, autocast", under_autocast(fp16, f16)},
          {"bf16 masters and states, autocast", under_autocast(low, b16), false, 1},
          {"fp32, exact", fp32, false, 0, true},
          {"fp32, bf16 communication, exact", communicating_in(fp32, b16), false, 0, true},
          {"bf16, exact", all_of(b16, f32, f32, f32), false, 0, true},
          {"bf16 masters and states, autocast, exact",
           under_autocast(all_of(b16, f32, b16, b16), b16), false, 1, true}};
}

EngineConfig config_of(const Mode& mode, int stage, int world, int64_t accumulation) {
  EngineConfig config;
  config.gradient_accumulation_steps = accumulation;
  config.train_batch_size = accumulation * world;
  config.precision = mode.precision;
  if (mode.is_exact) config.reduction = ReductionOrder::Exact;
  config.offload_optimizer.to_cpu = mode.offload;
  config.zero.offload_param.to_cpu = mode.offload_param;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 40;
  config.zero.allgather_bucket_size = 70;
  config.zero.stage3_param_persistence_threshold = 0;
  config.zero.overlap_comm = world != 3;
  config.optimizer.momentum = 0.9;
  config.communication_timeout_s = 30;
  return config;
}

// Odd sizes, one that is gathered alone, its shards of equal size on 2 ranks, not on 3, and what a
// pass never reaches.
class Net {
 public:
  Net() {
    const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes{
        {"unused", {7}}, {"w1", {256, 3}}, {"b1", {256}},   {"w2", {515, 256}},
        {"b2", {515}},   {"w3", {5, 515}}, {"frozen", {3}}, {"empty", {0}},
        {"w4", {3, 5}},  {"b4", {3}},      {"scalar", {}},  {"indices", {11}}};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const auto& [name, shape] = shapes[i];
      if (name == "indices") {  // integers keep their type in every precision
        parameters_.push_back({name, at::arange(11, at::kLong), "torch.nn.LayerNorm"});
        continue;
      }
      const auto values = sample(c10::multiply_integers(shape), i).tanh() / 16;
      const bool linear = name[0] == 'w' || name[0] == 'b';
      parameters_.push_back(
          {name, values.view(shape), linear ? "torch.nn.Linear" : "torch.nn.LayerNorm"});
      parameters_.back().tensor.requires_grad_(name != "frozen");
      if (name == "frozen") continue;
      parameters_.back().tensor.register_hook([this, i](const at::Tensor& gradient) {
        arrivals.push_back(i);
        return gradient;
      });
    }
  }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  at::Tensor loss(at::ScalarType dtype, int64_t seed) const {
    const auto* p = parameters_.data() + 1;  // all but the unused one
    auto x = sample(6, static_cast<uint64_t>(seed)).tanh().view({2, 3}).to(dtype);
    x = at::tanh(at::linear(x, p[0].tensor, p[1].tensor));
    x = at::tanh(at::linear(x, p[2].tensor, p[3].tensor));
    x = at::tanh(at::linear(x, p[4].tensor));
    x = at::linear(x, p[7].tensor, p[8].tensor) + p[5].tensor * p[9].tensor;
    return x.to(at::kFloat).square().mean();
  }

  std::vector<std::size_t> arrivals;

 private:
  std::vector<NamedParameter> parameters_;
};

layout::ParameterTable table_of(const Net& net, const EngineConfig& config) {
  std::vector<layout::Registration> registrations;
  for (const auto& parameter : net.parameters()) {
    const bool safe =
        config.precision.autocast.enabled && parameter.module_type == "torch.nn.Linear";
    registrations.push_back({parameter.name, parameter.tensor.unsafeGetTensorImpl(),
                             parameter.tensor.sizes().vec(), parameter.tensor.requires_grad(), 0,
                             safe, parameter.name == "indices" ? 8 : 0});
  }
  return layout::ParameterTable(registrations);
}

void expect_idle(const memory::Ledger& ledger, const MemoryForecast& want, const char* when) {
  for (int i = 0; i < memory::kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    EXPECT_EQ(ledger.bytes(category), want.of(category).idle)
        << memory::kCategoryNames[static_cast<std::size_t>(i)] << " " << when;
  }
  EXPECT_EQ(ledger.total_bytes(), want.idle_bytes()) << when;
}

void expect_peaks(const memory::Ledger& ledger, const MemoryForecast& want) {
  for (int i = 0; i < memory::kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    const auto& held = want.of(category);
    const auto got = ledger.peak_bytes(category);
    const char* name = memory::kCategoryNames[static_cast<std::size_t>(i)];
    if (held.is_exact) {
      EXPECT_EQ(got, held.peak) << name << " at the peak";
    } else {
      EXPECT_GE(got, held.peak) << name << " at the peak";
    }
    EXPECT_LE(got, held.most) << name << " at the most";
  }
  EXPECT_LE(ledger.total_peak_bytes(), want.most_bytes());
}

// Three steps: pages are fetched by the trace of earlier passes in the later ones.
void check(ranks::RankContext& context, const EngineConfig& config) {
  Net net;
  const auto table = table_of(net, config);
  const auto engine =
      initialize({ParameterGroup{net.parameters(), {}, {}}}, config, context.group());
  const MemoryOptions options{context.world_size(), false, {}};
  expect_idle(engine->ledger(), forecast(table, config, options), "when new");
  const auto dtype = net.parameters()[0].tensor.scalar_type();
  std::vector<std::size_t> arrivals;
  for (int64_t pass = 0; pass < 3 * config.gradient_accumulation_steps; ++pass) {
    net.arrivals.clear();
    const auto guard = engine->autocast();
    engine->backward(net.loss(dtype, 10 * pass + context.rank()));
    if (pass == 0) arrivals = net.arrivals;
    EXPECT_EQ(net.arrivals, arrivals);
    const bool boundary = engine->is_gradient_accumulation_boundary();
    engine->step();
    if (boundary) expect_idle(engine->ledger(), forecast(table, config, options), "after a step");
  }
  EXPECT_EQ(arrivals.size(), 8u);  // of 12 two are frozen, one empty, one not used
  MemoryOptions in_order = options;
  in_order.arrivals = arrivals;
  expect_peaks(engine->ledger(), forecast(table, config, in_order));
}

class EngineMemory : public ::testing::TestWithParam<int> {};

TEST_P(EngineMemory, IsTheFormulasToTheByteInEveryMode) {
  const int world = GetParam();
  const auto on_rank = [world](ranks::RankContext& context) {
    for (const auto& mode : all_modes()) {
      for (int stage = mode.least_stage; stage <= 3; ++stage) {
        for (const int64_t accumulation : {1, 3}) {
          const auto what = mode.name + ", stage " + std::to_string(stage) + ", accumulation " +
                            std::to_string(accumulation);
          context.note(what);
          SCOPED_TRACE(what);
          check(context, config_of(mode, stage, world, accumulation));
        }
      }
    }
  };
  EXPECT_EQ(ranks::on_ranks(world, on_rank, {.timeout = std::chrono::minutes(5)}), "");
}

TEST_P(EngineMemory, OfPagesThatStayWholeIsExact) {
  const int world = GetParam();
  const auto on_rank = [world](ranks::RankContext& context) {
    for (const auto& mode : all_modes()) {
      for (const int64_t threshold : {10, 300, 1'000'000}) {
        context.note(mode.name);
        SCOPED_TRACE(mode.name + ", threshold " + std::to_string(threshold));
        auto config = config_of(mode, 3, world, 1);
        config.zero.stage3_param_persistence_threshold = threshold;
        check(context, config);
      }
    }
  };
  EXPECT_EQ(ranks::on_ranks(world, on_rank, {.timeout = std::chrono::minutes(5)}), "");
}

TEST_P(EngineMemory, FollowsTheRuleAndTheSizesOfBuckets) {
  const int world = GetParam();
  const auto on_rank = [world](ranks::RankContext& context) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int64_t size : {1, 300, 70'000, 1'000'000}) {
        for (const double momentum : {0.0, 0.9}) {
          SCOPED_TRACE("stage " + std::to_string(stage) + ", size " + std::to_string(size));
          auto config = config_of(all_modes()[0], stage, world, 2);
          config.optimizer.kind = OptimizerConfig::Kind::Sgd;
          config.optimizer.momentum = momentum;
          config.zero.reduce_bucket_size = config.zero.allgather_bucket_size = size;
          config.zero.stage3_max_live_parameters = size;
          config.zero.stage3_prefetch_bucket_size = size;
          check(context, config);
        }
      }
    }
  };
  EXPECT_EQ(ranks::on_ranks(world, on_rank, {.timeout = std::chrono::minutes(5)}), "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineMemory, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace equigrad::conformance
