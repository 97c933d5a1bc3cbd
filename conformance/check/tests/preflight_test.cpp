// What makes a comparison meaningless is refused before it, by name.
#include "conformance/check/preflight.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "conformance/check/check.hpp"
#include "conformance/check/tests/other_models.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What a check of one small case is refused for; empty: it is not refused.
template <class Factory, class Loss>
std::string refusal(Factory factory, Loss loss, CheckOptions options = {.stages = {1}}) {
  try {
    const auto report = equigrad::check(factory, loss, options);
    return report.held ? "" : report.text();
  } catch (const Error& error) {
    return error.what();
  }
}

std::shared_ptr<torch::nn::LinearImpl> linear() {
  return std::make_shared<torch::nn::LinearImpl>(5, 3);
}

at::Tensor linear_loss(torch::nn::LinearImpl& model, const Which& which) {
  return model.forward(drawn(which, {4, 5})).square().mean();
}

// Other values in every call, whatever the seed is.
at::Tensor noise(const at::Tensor& like) {
  auto values = at::empty_like(like);
  std::ifstream random("/dev/urandom", std::ios::binary);
  for (int64_t i = 0; i < values.numel(); ++i) {
    unsigned char byte = 0;
    random.read(reinterpret_cast<char*>(&byte), 1);
    values.mutable_data_ptr<float>()[i] = static_cast<float>(byte);
  }
  return values;
}

TEST(Preflight, AModelThatIsRightIsNotRefused) { EXPECT_EQ(refusal(linear, linear_loss), ""); }

TEST(Preflight, AModelThatDrawsFromElsewhereIsRefusedWithTheOperator) {
  const auto loss = [](torch::nn::LinearImpl& model, const Which& which) {
    const auto output = model.forward(drawn(which, {4, 5}));
    return at::mul(output, noise(output)).square().mean();
  };
  EXPECT_THAT(refusal(linear, loss),
              AllOf(HasSubstr("run twice under one seed"), HasSubstr("the loss in two ways"),
                    HasSubstr("aten::mul")));
}

TEST(Preflight, AModelThatCountsItsCallsIsRefusedWithTheOperator) {
  double calls = 1;
  const auto loss = [&calls](torch::nn::LinearImpl& model, const Which& which) {
    return (model.forward(drawn(which, {4, 5})) * (calls += 1)).matmul(at::ones({3, 2})).mean();
  };
  EXPECT_THAT(refusal(linear, loss), HasSubstr("another result is aten::mul."));
}

// The loss is the same, its gradient is not.
TEST(Preflight, AGradientThatIsNotDeterministicIsRefusedWithItsParameter) {
  struct Noisy : torch::autograd::Function<Noisy> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list gradients) {
      return {at::mul(gradients[0], noise(gradients[0]))};
    }
  };
  const auto loss = [](torch::nn::LinearImpl& model, const Which& which) {
    return Noisy::apply(model.forward(drawn(which, {4, 5}))).square().mean();
  };
  EXPECT_THAT(refusal(linear, loss),
              AllOf(HasSubstr("the gradient of bias in two ways"), HasSubstr("aten::mul")));
}

TEST(Preflight, ALossThatIsNotScalarIsRefused) {
  const auto loss = [](torch::nn::LinearImpl& model, const Which& which) {
    return model.forward(drawn(which, {4, 5}));
  };
  EXPECT_THAT(refusal(linear, loss),
              AllOf(HasSubstr("a loss of one element"), HasSubstr("[4, 3]")));
}

TEST(Preflight, ALossThatIsNotFiniteIsRefused) {
  const auto loss = [](torch::nn::LinearImpl& model, const Which& which) {
    return linear_loss(model, which) / 0.0;
  };
  EXPECT_THAT(refusal(linear, loss), AllOf(HasSubstr("a finite loss"), HasSubstr("inf")));
}

TEST(Preflight, ALossWithoutAGraphIsRefused) {
  const auto loss = [](torch::nn::LinearImpl& model, const Which& which) {
    return linear_loss(model, which).detach();
  };
  EXPECT_THAT(refusal(linear, loss), HasSubstr("a loss with a graph to the parameters"));
}

TEST(Preflight, AModelThatTrainsNothingIsRefused) {
  const auto frozen = [] {
    auto model = linear();
    for (auto& parameter : model->parameters()) parameter.set_requires_grad(false);
    return model;
  };
  EXPECT_THAT(refusal(frozen, linear_loss), HasSubstr("a parameter that trains"));
}

TEST(Preflight, ParametersOfAnotherTypeThanFp32AreRefused) {
  const auto narrow = [] {
    auto model = linear();
    model->to(at::kBFloat16);
    return model;
  };
  EXPECT_THAT(refusal(narrow, linear_loss),
              AllOf(HasSubstr("parameters that train in fp32"), HasSubstr("weight of [3, 5]")));
}

Which without_rank(Which which) {
  which.rank = 0;
  return which;
}
Which without_micro_batch(Which which) {
  which.micro_batch = 0;
  return which;
}

TEST(Preflight, BatchesThatAreEqualOnAllRanksAreRefused) {
  const auto loss = [](torch::nn::LinearImpl& model, const Which& which) {
    return linear_loss(model, without_rank(which));
  };
  EXPECT_THAT(refusal(linear, loss), HasSubstr("batches that differ from rank to rank"));
  EXPECT_EQ(refusal(linear, loss, {.ranks = {1}, .stages = {1}}), "");
}

// Dropout does not make batches differ: all passes are looked at with one generator.
TEST(Preflight, MicroBatchesThatAreEqualAreRefused) {
  const auto loss = [](torch::nn::LinearImpl& model, const Which& which) {
    const auto output = model.forward(drawn(without_micro_batch(which), {4, 5}));
    return at::dropout(output, 0.5, true).square().mean();
  };
  EXPECT_THAT(refusal(linear, loss), HasSubstr("batches that differ from micro-batch"));
  EXPECT_EQ(refusal(linear, loss, {.stages = {1}, .accumulation = {1}}), "");
}

// Of the first call and later ones in the process that looks: a counter of the factory's own.
TEST(Preflight, AFactoryThatGivesOtherModelsIsRefused) {
  const auto another_shape = [calls = std::make_shared<int>(0)] {
    return std::make_shared<torch::nn::LinearImpl>(5, 3 + (*calls)++);
  };
  EXPECT_THAT(refusal(another_shape, linear_loss),
              AllOf(HasSubstr("the same model of every call"), HasSubstr("weight of [3, 5]"),
                    HasSubstr("then of [4, 5]")));
  const auto another_name = [calls = std::make_shared<int>(0)] {
    auto model = linear();
    model->register_parameter("extra" + std::to_string((*calls)++), at::ones({2}));
    return model;
  };
  EXPECT_THAT(refusal(another_name, linear_loss),
              AllOf(HasSubstr("the parameter extra0, then extra1")));
  const auto other_values = [] {
    auto model = linear();
    const at::NoGradGuard no_grad;
    model->bias.copy_(noise(model->bias));
    return model;
  };
  EXPECT_THAT(refusal(other_values, linear_loss), HasSubstr("other values in bias"));
}

TEST(Preflight, WhatTheModelThrowsIsTold) {
  const auto loss = [](torch::nn::LinearImpl& model, const Which& which) {
    return model.forward(drawn(which, {4, 6})).mean();
  };
  EXPECT_THAT(refusal(linear, loss), AllOf(HasSubstr("expected the model to run by plain autograd"),
                                           HasSubstr("mat1 and mat2")));
}

// Under autocast its parameters and statistics stay in fp32.
TEST(Preflight, APrecisionInWhichTheModelDoesNotRunIsRefused) {
  const auto net = [] { return std::make_shared<ConvNet>(); };
  EXPECT_THAT(
      refusal(net, conv_loss, {.stages = {1}, .precisions = {"fp32", "bf16"}}),
      AllOf(HasSubstr("a model that runs by plain autograd with parameters of BFloat16, for bf16"),
            HasSubstr("but found Float"), HasSubstr("take autocast")));
  EXPECT_EQ(refusal(net, conv_loss, {.stages = {1}, .precisions = {"fp32", "autocast-bf16"}}), "");
}

TEST(Preflight, ParametersWithoutAGradientAreNamed) {
  const auto report = equigrad::check([] { return std::make_shared<Knotted>(); }, knotted_loss,
                                      {.stages = {3}, .styles = {"engine_backward"}});
  EXPECT_TRUE(report.held) << report.text();
  EXPECT_THAT(report.notes, ElementsAre(AllOf(HasSubstr("never got a gradient"),
                                              HasSubstr("unused.weight, unused.bias"))));
}

// One rank holds most where it is alone; four hold most together.
TEST(Preflight, TheCaseIsNamedWhoseRanksHoldMostTogether) {
  const std::string config = R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {"stage": 1}})";
  const auto subject =
      subject_of(std::make_shared<torch::nn::LinearImpl>(64, 64),
                 [](torch::nn::Module&, const Which&) { return Forward{at::ones({1})}; });
  const auto found_in = [&](const std::vector<int>& worlds) {
    std::vector<CheckCase> cases;
    for (const int world : worlds) cases.push_back({spec_of_config(config, world), config});
    Preflight found;
    add_memory(found, *subject, cases);
    return found;
  };
  const auto one = found_in({1}), four = found_in({4});
  EXPECT_GT(one.most_bytes, four.most_bytes);
  EXPECT_GT(four.all_bytes, one.all_bytes);
  for (const auto& both : {found_in({1, 4}), found_in({4, 1})}) {
    EXPECT_EQ(both.all_bytes, four.all_bytes);
    EXPECT_EQ(both.most_bytes, four.most_bytes);
    EXPECT_EQ(both.most_in, four.most_in);
  }
}

TEST(Preflight, RanksThatDoNotFitAreRefused) {
  const Preflight large{.unused = {},
                        .unseen = {},
                        .most_bytes = int64_t{3} << 30,
                        .most_in = "the case",
                        .all_bytes = int64_t{12} << 30};
  EXPECT_NO_THROW(require_memory(large, int64_t{12} << 30));
  EXPECT_NO_THROW(require_memory(large, 0));
  try {
    require_memory(large, int64_t{11} << 30);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("11265 MiB of free memory"),
                                    HasSubstr("12289 MiB of engines alone in the case"),
                                    HasSubstr("3073 MiB a rank")));
  }
}

}  // namespace
}  // namespace equigrad::conformance
