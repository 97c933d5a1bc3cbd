// Parameters that are not contiguous: their strides at all times, and the bits of the model's own.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "conformance/testing/small_run.hpp"
#include "engine/engine.hpp"
#include "engine/layout/parameter_table.hpp"
#include "reference/optimizer.hpp"
#include "reference/sum.hpp"

namespace equigrad {
namespace {

using conformance::at_every_stage;
using conformance::config_of;
using conformance::error_of;
using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;
using testing::AllOf;
using testing::HasSubstr;

using Tensors = std::map<std::string, at::Tensor>;
using Strides = std::map<std::string, std::vector<int64_t>>;

constexpr int64_t kWide = 384;  // its square goes alone, and in place where it is contiguous
static_assert(kWide * kWide >= layout::kAloneNumel && kWide % 6 == 0);

at::Tensor values(at::IntArrayRef shape, uint64_t seed) {
  return (sample(c10::multiply_integers(shape), seed).tanh() * 0.25).view(shape);
}

// Fresh parameters, as a model registers them.
Tensors model() {
  return {{"linear", values({5, 6}, 1).t()},
          {"bias", values({6}, 2)},
          {"tied", values({6, 6}, 3).t()},
          {"wide", values({kWide, kWide}, 4).t()},
          {"block.conv2d", values({4, 3, 3, 3}, 5).contiguous(at::MemoryFormat::ChannelsLast)},
          {"block.conv3d", values({4, 3, 2, 2, 2}, 6).contiguous(at::MemoryFormat::ChannelsLast3d)},
          {"frozen", values({6, 4}, 7).t()}};
}

// One pass of one rank.
at::Tensor loss_of(const Tensors& p, int64_t pass, int rank) {
  const auto dtype = p.at("bias").scalar_type();
  const auto input = [&](at::IntArrayRef shape, uint64_t seed) {
    return values(shape, 1000 * seed + static_cast<uint64_t>(10 * pass + rank)).to(dtype);
  };
  auto x = at::linear(input({3, 5}, 1), p.at("linear"), p.at("bias")).tanh();
  x = at::linear(at::linear(x, p.at("tied")).tanh(), p.at("tied"));
  x = at::linear(x, p.at("frozen"));
  const auto wide = at::linear(input({2, kWide}, 2), p.at("wide"));
  const auto planes = at::conv2d(input({2, 3, 5, 5}, 3), p.at("block.conv2d"));
  const auto volumes = at::conv3d(input({2, 3, 3, 3, 3}, 4), p.at("block.conv3d"));
  at::Tensor sum = at::zeros({});
  for (const auto& part : {x, wide, planes, volumes})
    sum = sum + part.to(at::kFloat).square().mean();
  return sum;
}

struct Kind {
  bool bf16 = false, adam = false, persistent = false, offload = false;
};

EngineConfig config_of(const Kind& kind, int stage, int world) {
  auto config = config_of({.stage = stage, .accumulation = 2, .momentum = !kind.adam}, world);
  if (kind.bf16) config.precision.param = config.precision.accumulate = DataType::Bf16;
  if (kind.persistent) config.zero.stage3_param_persistence_threshold = 1000;
  if (kind.offload && stage > 0) config.offload_optimizer.to_cpu = true;
  if (kind.offload && stage == 3) config.zero.offload_param.to_cpu = true;
  config.zero.leaf_module.names =
      stage == 3 ? std::vector<std::string>{"block"} : std::vector<std::string>{};
  return config;
}

// All ranks on one device, on parameters with the same strides, by torch's autograd.
struct Plain {
  Tensors parameters, masters;
  std::map<std::string, std::vector<at::Tensor>> states;
  reference::OptimizerSpec spec;
  int64_t updates = 0;

  explicit Plain(const EngineConfig& config) : parameters(model()) {
    const bool adam = config.optimizer.kind == OptimizerConfig::Kind::AdamW;
    spec = {.rule = adam ? reference::Rule::AdamW : reference::Rule::Sgd,
            .lr = config.optimizer.lr,
            .weight_decay = config.optimizer.weight_decay,
            .momentum = config.optimizer.momentum};
    for (auto& [name, parameter] : parameters) {
      masters[name] = parameter.contiguous().clone();
      parameter = parameter.to(torch_dtype(config.precision.param));
      if (name == "frozen") continue;
      parameter.requires_grad_();
      for (std::size_t i = 0; i < state_names(spec).size(); ++i)
        states[name].push_back(at::zeros_like(masters[name]));
    }
  }

  // The average of these passes, in the documented order of sums.
  Tensors averages(const EngineConfig& config, const std::vector<int64_t>& passes, int world) {
    std::map<std::string, reference::Contributions> given;
    for (const auto pass : passes) {
      for (auto& [name, state] : states) given[name].emplace_back();
      for (int rank = 0; rank < world; ++rank) {
        const auto loss = loss_of(parameters, pass, rank);
        for (auto& [name, rows] : given)
          rows.back().push_back(torch::autograd::grad({loss}, {parameters.at(name)}, {},
                                                      /*retain_graph=*/true)
                                    .front());
      }
    }
    const double factor = 1.0 / static_cast<double>(passes.size() * static_cast<size_t>(world));
    Tensors averages;
    for (const auto& [name, rows] : given) {
      const auto order = config.zero.stage >= 2 ? reference::SumOrder::ReduceThenAdd
                                                : reference::SumOrder::AddThenReduce;
      const auto sum =
          sum_contributions(rows, order, torch_dtype(config.precision.accumulate)).to(at::kFloat);
      averages[name] = at::mul(sum, at::full({}, factor, at::kFloat)).contiguous();
    }
    return averages;
  }

  void update(const Tensors& averages) {
    const at::NoGradGuard no_grad;
    ++updates;
    for (const auto& [name, average] : averages) {
      std::vector<float*> pointers;
      for (const auto& state : states.at(name)) pointers.push_back(state.mutable_data_ptr<float>());
      reference::update(spec, updates, average.numel(), masters.at(name).mutable_data_ptr<float>(),
                        pointers, average.const_data_ptr<float>());
      parameters.at(name).copy_(masters.at(name));
    }
  }
};

struct Strided {
  Tensors parameters = model();
  Strides before;
  std::unique_ptr<Engine> engine;

  Strided(RankContext& context, const EngineConfig& config) {
    ParameterGroup group;
    for (auto& [name, parameter] : parameters) {
      before[name] = parameter.strides().vec();
      parameter.requires_grad_(name != "frozen");
      group.parameters.push_back({name, parameter});
    }
    group.parameters.push_back({"tied_again", parameters.at("tied")});
    engine = initialize(std::vector<ParameterGroup>{group}, config, context.group());
    expect_strides("after initialize()");
  }

  void expect_strides(const std::string& when) {
    for (const auto& [name, parameter] : parameters) {
      EXPECT_EQ(parameter.strides(), before.at(name)) << name << " " << when;
      EXPECT_EQ(engine->full_parameter(name).strides(), before.at(name)) << name << " " << when;
    }
  }
};

void train_beside(RankContext& context, const Kind& kind, int stage) {
  const int world = context.world_size();
  const auto config = config_of(kind, stage, world);
  Strided run(context, config);
  Plain plain(config);
  for (int64_t step = 0; step < 3; ++step) {
    const std::string when = "in step " + std::to_string(step);
    const std::vector<int64_t> passes{2 * step, 2 * step + 1};
    for (const auto pass : passes) {
      if (pass % 2 == 1) run.engine->step();  // no boundary
      const auto loss = loss_of(run.parameters, pass, context.rank());
      EXPECT_THAT(loss.detach(),
                  HasTheBitsOf(loss_of(plain.parameters, pass, context.rank()).detach()))
          << when;
      run.engine->backward(loss);
    }
    const auto averages = plain.averages(config, passes, world);
    for (const auto& [name, average] : averages)
      EXPECT_THAT(run.engine->access().full_gradient(name), HasTheBitsOf(average))
          << name << " " << when;
    run.expect_strides(when);
    run.engine->step();
    plain.update(averages);
    for (const auto& [name, parameter] : plain.parameters)
      EXPECT_THAT(run.engine->full_parameter(name), HasTheBitsOf(parameter.detach()))
          << name << " " << when;
    run.expect_strides("after step " + std::to_string(step));
  }
}

TEST(Strides, StayAndTheBitsAreThoseOfTheModelsOwn) {
  for (const int world : {1, 2, 3}) {
    at_every_stage(world, [](RankContext& context, int stage) {
      for (const Kind& kind : {Kind{}, Kind{.bf16 = true, .adam = true}, Kind{.adam = true}}) {
        SCOPED_TRACE((kind.bf16 ? "bf16 " : "fp32 ") + std::string(kind.adam ? "AdamW" : "SGD"));
        train_beside(context, kind, stage);
      }
    });
  }
}

TEST(Strides, StayWithPersistentPagesAndOffload) {
  at_every_stage(2, [](RankContext& context, int stage) {
    for (const Kind& kind : {Kind{.adam = true, .persistent = true},
                             Kind{.bf16 = true, .persistent = true, .offload = true},
                             Kind{.adam = true, .offload = true}})
      train_beside(context, kind, stage);
  });
}

TEST(Strides, GettersAndSettersSpeakInTheOrderOfTheShape) {
  at_every_stage(3, [](RankContext& context, int stage) {
    for (const Kind& kind : {Kind{.adam = true}, Kind{.bf16 = true, .adam = true}}) {
      Strided run(context, config_of(kind, stage, 3));
      auto& access = run.engine->access();
      const auto dtype = torch_dtype(run.engine->config().precision.param);
      run.engine->backward(loss_of(run.parameters, 0, context.rank()));
      for (const std::string name : {"linear", "tied", "block.conv2d", "block.conv3d"}) {
        SCOPED_TRACE(name);
        EXPECT_THAT(access.full_master(name), HasTheBitsOf(model().at(name).contiguous()));
        const auto value = values(run.parameters.at(name).sizes(), 40 + name.size());
        // Of strides of its own as well.
        access.set_full_master(name, value.transpose(0, 1).contiguous().transpose(0, 1));
        EXPECT_THAT(access.full_master(name), HasTheBitsOf(value));
        EXPECT_THAT(run.engine->full_parameter(name), HasTheBitsOf(value.to(dtype)));
        access.set_full_gradient(name, value);
        EXPECT_THAT(access.full_gradient(name), HasTheBitsOf(value));
        access.set_full_optimizer_state(name, "exp_avg", value);
        EXPECT_THAT(access.full_optimizer_state(name, "exp_avg"), HasTheBitsOf(value));
        for (const auto& shard : run.engine->local_shards()) {
          if (shard.name != name) continue;
          const auto mine = value.reshape({-1}).slice(0, shard.begin, shard.end);
          EXPECT_THAT(shard.master, HasTheBitsOf(mine));
          EXPECT_THAT(access.local_master(name), HasTheBitsOf(mine));
          EXPECT_THAT(access.local_gradient(name), HasTheBitsOf(mine));
          EXPECT_THAT(access.local_optimizer_state(name, "exp_avg"), HasTheBitsOf(mine));
          access.set_local_master(name, mine * 2);
        }
        EXPECT_THAT(access.full_master(name), HasTheBitsOf(value * 2));
        EXPECT_THAT(run.engine->full_parameter(name), HasTheBitsOf((value * 2).to(dtype)));
      }
      run.expect_strides("after setters");
    }
  });
}

TEST(Strides, StayInGatheredParameters) {
  at_every_stage(2, [](RankContext& context, int stage) {
    Strided run(context, config_of(Kind{.bf16 = stage % 2 == 1}, stage, 2));
    const auto dtype = torch_dtype(run.engine->config().precision.param);
    for (const std::string name : {"linear", "frozen", "block.conv2d"}) {
      const auto tensor = run.parameters.at(name);
      const auto value = (values(tensor.sizes(), 50) / 2).to(dtype);  // other bits everywhere
      {
        const auto whole = run.engine->gather({tensor}, /*modifier_rank=*/0);
        EXPECT_EQ(tensor.strides(), run.before.at(name));
        EXPECT_THAT(tensor.detach().clone(), HasTheBitsOf(model().at(name).to(dtype)));
        const at::NoGradGuard no_grad;
        if (context.rank() == 0) tensor.copy_(value);
      }
      EXPECT_THAT(run.engine->full_parameter(name), HasTheBitsOf(value)) << name;
      run.expect_strides("after gather()");
      if (name == "frozen") continue;
      EXPECT_THAT(run.engine->access().full_master(name), HasTheBitsOf(value.to(at::kFloat)));
    }
  });
}

TEST(Strides, OfWhatIsNotDenseAreThoseOfEmptyLike) {
  at_every_stage(2, [](RankContext& context, int stage) {
    const auto base = values({8, 6}, 9);
    std::vector<NamedParameter> parameters{{"rows", base.slice(0, 0, 8, 2)},
                                           {"columns", values({8, 6}, 10).t().slice(1, 0, 3)}};
    Tensors want;
    Strides strides;
    for (auto& one : parameters) {
      want[one.name] = one.tensor.contiguous();
      strides[one.name] = at::empty_like(one.tensor).strides().vec();
      one.tensor.requires_grad_();
    }
    EXPECT_EQ(strides.at("columns"), (std::vector<int64_t>{1, 6}));
    const auto engine = initialize({ParameterGroup{parameters, {}, {}}},
                                   config_of({.stage = stage}, 2), context.group());
    for (const auto& [name, tensor, type] : parameters) {
      EXPECT_EQ(tensor.strides(), strides.at(name)) << name;
      EXPECT_THAT(engine->full_parameter(name), HasTheBitsOf(want.at(name))) << name;
    }
  });
}

TEST(Strides, AParameterThatOverlapsItselfIsRefusedByName) {
  at_every_stage(1, [](RankContext& context, int stage) {
    auto tensor = at::ones({3, 1}).expand({3, 4}).requires_grad_();
    EXPECT_THAT(error_of([&] {
                  initialize({ParameterGroup{{{"wide", tensor}}, {}, {}}},
                             config_of({.stage = stage}, 1), context.group());
                }),
                AllOf(HasSubstr("[initialize]"), HasSubstr("\"wide\""),
                      HasSubstr("overlaps itself"), HasSubstr("contiguous() copy")));
  });
}

}  // namespace
}  // namespace equigrad
