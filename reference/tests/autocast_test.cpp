// Autocast: what the forward computes in, what the guard leaves behind, whose weights are rounded.
#include "reference/autocast.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference/tests/same_bits.hpp"
#include "reference/trainer.hpp"

namespace equigrad::reference {
namespace {

namespace autocast = at::autocast;
namespace nn = torch::nn;

using conformance::same_bits;

bool enabled() { return autocast::is_autocast_enabled(at::kCPU); }

std::optional<AutocastSpec> spec_of(at::ScalarType dtype) { return AutocastSpec{.dtype = dtype}; }

at::Tensor uneven(at::IntArrayRef shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return (at::arange(1, numel + 1, at::kFloat) * 0.37).sin().view(shape);
}

TEST(Autocast, ComputesInItsDtypeWhileItLives) {
  const at::Tensor x = uneven({3, 4}), weight = uneven({5, 4});
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    {
      const AutocastGuard guard(spec_of(dtype), at::kCPU);
      EXPECT_TRUE(same_bits(at::linear(x, weight), at::linear(x.to(dtype), weight.to(dtype))));
    }
    EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kFloat);
  }
  const AutocastGuard none(std::nullopt, at::kCPU);
  EXPECT_FALSE(enabled());
}

TEST(Autocast, LeavesEverythingAsItWas) {
  const at::ScalarType before = autocast::get_autocast_dtype(at::kCPU);
  const auto throws = [] {
    const AutocastGuard guard(spec_of(at::kHalf), at::kCPU);
    throw std::runtime_error("planted");
  };
  EXPECT_THROW(throws(), std::runtime_error);
  EXPECT_FALSE(enabled());
  EXPECT_EQ(autocast::get_autocast_dtype(at::kCPU), before);
  {
    const AutocastGuard outer(spec_of(at::kBFloat16), at::kCPU);
    { const AutocastGuard inner(spec_of(at::kHalf), at::kCPU); }
    EXPECT_TRUE(enabled());
    EXPECT_EQ(autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
  }
  EXPECT_EQ(autocast::increment_nesting(), 1) << "as deep as before";
  autocast::decrement_nesting();
}

TEST(Autocast, KeepsNoCastFromBeforeAndLeavesNone) {
  const at::Tensor x = at::ones({1, 1});
  const at::Tensor leaf = at::full({1, 1}, 2.0F).requires_grad_();
  const auto value = [&] { return at::linear(x, leaf).item().toDouble(); };
  const auto set = [&](double number) {
    const at::NoGradGuard no_grad;
    leaf.fill_(number);
  };
  {
    const AutocastGuard guard(spec_of(at::kBFloat16), at::kCPU);
    EXPECT_EQ(value(), 2);
    set(3);
    EXPECT_EQ(value(), 2) << "a leaf is cast once";
  }
  // A user's own scope, around and after.
  autocast::increment_nesting();
  autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_EQ(value(), 3) << "no cast outlives the guard";
  set(4);
  {
    const AutocastGuard guard(spec_of(at::kBFloat16), at::kCPU);
    EXPECT_EQ(value(), 4) << "no cast from before is used";
  }
  autocast::set_autocast_enabled(at::kCPU, false);
  autocast::decrement_nesting();
  autocast::clear_cache();
}

class Wider : public nn::LinearImpl {
 public:
  using nn::LinearImpl::LinearImpl;
};

// Safe: first, conv. Not: a class of its own, a bare parameter, a norm.
class Mixed : public Model {
 public:
  Mixed()
      : first(register_module("first", nn::Linear(4, 4))),
        conv(register_module("conv", nn::Conv1d(1, 1, 1))),
        own(register_module("own", std::make_shared<Wider>(4, 4))),
        bare(register_parameter("bare", at::empty({4}))) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.copy_(uneven(parameter.sizes()));
  }
  at::Tensor output(const Batch& batch) override {
    if (fails) throw std::runtime_error("planted");
    return own->forward(conv(first(batch.input).unsqueeze(1)).squeeze(1)) * bare;
  }
  at::Tensor criterion(const at::Tensor& output, const Batch&) override {
    return output.to(at::kFloat).square().mean();
  }
  nn::Linear first;
  nn::Conv1d conv;
  std::shared_ptr<Wider> own;
  at::Tensor bare;
  bool fails = false;
};

TEST(Autocast, SafeAreTheParametersOfExactlyTheseClasses) {
  const Mixed model;
  const auto held = [&](const std::vector<std::string>& classes) {
    std::vector<std::string> names;
    const auto safe = safe_parameters(model, classes);
    for (const auto& [name, parameter] : unique_parameters(model)) {
      if (safe.contains(parameter.unsafeGetTensorImpl())) names.push_back(name);
    }
    return names;
  };
  EXPECT_EQ(held({"Linear"}), (std::vector<std::string>{"first.weight", "first.bias"}));
  EXPECT_EQ(held({"Conv1d"}), (std::vector<std::string>{"conv.weight", "conv.bias"}));
  EXPECT_TRUE(held({"Conv2d", "Conv3d"}).empty());
  EXPECT_THROW(held({"Lineer"}), c10::Error);
}

TEST(Autocast, ATiedWeightIsSafeIfAllOfItsOwnersAre) {
  struct Tied : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 3));
    torch::nn::Linear again = register_module("again", torch::nn::Linear(3, 3));
    torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(3, 3));
  };
  Tied model;
  model.again->weight = model.again->register_parameter("tied", model.first->weight);
  EXPECT_EQ(safe_parameters(model, {"Linear"}).count(model.first->weight.unsafeGetTensorImpl()),
            1U);
  model.embedding->register_parameter("tied", model.first->weight);
  EXPECT_EQ(safe_parameters(model, {"Linear"}).count(model.first->weight.unsafeGetTensorImpl()),
            0U);
}

Recipe recipe_with(const AutocastSpec& spec) {
  Recipe recipe;
  recipe.order = SumOrder::ReduceThenAdd;
  recipe.optimizer.lr = 0.01;
  recipe.precision.autocast = spec;
  return recipe;
}

Trainer trainer_of(const Recipe& recipe, const std::shared_ptr<Mixed>& model) {
  return {recipe, model, [](int64_t, int64_t, int64_t) { return Batch{uneven({3, 4}), {}}; }};
}

TEST(Autocast, TheModelSeesSafeWeightsAsTheyTravel) {
  for (const auto communication_dtype :
       {std::optional<at::ScalarType>(), std::optional(at::kHalf)}) {
    Recipe recipe = recipe_with({.dtype = at::kBFloat16, .safe_modules = {"Linear"}});
    recipe.precision.communication_dtype = communication_dtype;
    const auto sent = at::kBFloat16;  // the communication dtype is that of gradients
    const auto model = std::make_shared<Mixed>();
    const auto given = unique_parameters(*std::make_shared<Mixed>());
    Trainer trainer = trainer_of(recipe, model);
    EXPECT_TRUE(same_bits(model->first->weight, model->first->weight.to(sent).to(at::kFloat)));
    for (int step = 0; step < 3; ++step) {
      const StepRecord record = trainer.train_step();
      for (const auto& [name, master] : record.masters) {
        const bool safe = name.starts_with("first");
        const at::Tensor& seen = record.parameters.at(name);
        EXPECT_TRUE(same_bits(seen, safe ? master.to(sent).to(at::kFloat) : master)) << name;
        EXPECT_EQ(static_cast<bool>(same_bits(seen, master)), !safe) << name;
      }
    }
    recipe.optimizer = {.rule = Rule::Sgd, .lr = 0};
    const StepRecord still = trainer_of(recipe, std::make_shared<Mixed>()).train_step();
    for (const auto& [name, parameter] : given) {
      EXPECT_TRUE(same_bits(still.masters.at(name), parameter.detach())) << name << ": unrounded";
    }
  }
}

// The same forward with every cast written out.
TensorMap by_hand(at::ScalarType dtype) {
  const auto model = std::make_shared<Mixed>();
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& one : model->first->parameters()) one.copy_(one.to(dtype));
  }
  const at::Tensor x = uneven({3, 4}).to(dtype);
  at::Tensor y = at::linear(x, model->first->weight.to(dtype), model->first->bias.to(dtype));
  y = at::conv1d(y.unsqueeze(1), model->conv->weight.to(dtype), model->conv->bias.to(dtype));
  y = at::linear(y.squeeze(1), model->own->weight.to(dtype), model->own->bias.to(dtype));
  (y * model->bare).to(at::kFloat).square().mean().backward();
  TensorMap gradients;
  for (const auto& [name, parameter] : unique_parameters(*model)) {
    gradients[name] = name.starts_with("first") ? parameter.grad().to(dtype).to(at::kFloat)  // T
                                                : parameter.grad();
  }
  return gradients;
}

TEST(Autocast, TheTrainersForwardIsUnderIt) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Recipe recipe = recipe_with({.dtype = dtype, .safe_modules = {"Linear"}});
    const StepRecord record = trainer_of(recipe, std::make_shared<Mixed>()).train_step();
    EXPECT_TRUE(same_bits(record.gradients, by_hand(dtype)));
    EXPECT_EQ(record.losses[0].scalar_type(), at::kFloat);
  }
}

TEST(Autocast, GradientsOfSafeModulesTravelInItsDtype) {
  Recipe recipe = recipe_with({.dtype = at::kBFloat16, .safe_modules = {"Linear"}});
  recipe.order = SumOrder::AddThenReduce;
  recipe.accumulation_steps = 2;  // a window in fp32 is no longer exact in bf16
  const auto batches = [](int64_t, int64_t, int64_t micro_batch) {
    return Batch{uneven({3, 4}) * static_cast<double>(1 + micro_batch), {}};
  };
  const auto is_sent_in = [](const StepRecord& record, const char* name, at::ScalarType dtype) {
    const at::Tensor& gradient = record.gradients.at(name);  // halved, which is exact
    return static_cast<bool>(same_bits(gradient.to(dtype).to(at::kFloat), gradient));
  };
  const StepRecord cast = Trainer(recipe, std::make_shared<Mixed>(), batches).train_step();
  EXPECT_TRUE(is_sent_in(cast, "first.weight", at::kBFloat16));
  EXPECT_FALSE(is_sent_in(cast, "own.weight", at::kBFloat16));
  recipe.precision.communication_dtype = at::kFloat;
  const StepRecord wide = Trainer(recipe, std::make_shared<Mixed>(), batches).train_step();
  EXPECT_FALSE(is_sent_in(wide, "first.weight", at::kBFloat16));
}

TEST(Autocast, AForwardThatThrowsLeavesTheTrainerUsable) {
  const Recipe recipe = recipe_with({.dtype = at::kBFloat16});
  const auto model = std::make_shared<Mixed>();
  Trainer trainer = trainer_of(recipe, model);
  model->fails = true;
  EXPECT_THROW(trainer.train_step(), std::runtime_error);
  EXPECT_FALSE(enabled());
  model->fails = false;
  EXPECT_TRUE(same_bits(trainer.train_step().gradients,
                        trainer_of(recipe, std::make_shared<Mixed>()).train_step().gradients));
}

}  // namespace
}  // namespace equigrad::reference
