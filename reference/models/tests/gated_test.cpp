// The gated network: of one part it is the ordinary computation, of several the same numbers in
// other sums.
#include "reference/models/gated.hpp"

#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/types.h>

#include <map>
#include <string>

#include "reference/tests/same_bits.hpp"
#include "reference/tests/sample_data.hpp"

namespace equigrad::reference {
namespace {

namespace F = torch::nn::functional;
using conformance::same_bits;
using conformance::sample_data;
using TensorMap = std::map<std::string, at::Tensor>;

const Draw kDraw{.seed = 3, .step = 1, .rank = 0, .micro_batch = 0};

std::shared_ptr<Model> model_of(const std::string& name, at::ScalarType dtype) {
  auto model = make_model(name, 5);
  model->to(dtype);
  return model;
}

// The loss and every gradient.
TensorMap numbers(Model& model, const at::Tensor& loss) {
  loss.backward();
  TensorMap all = {{"loss", loss.detach()}};
  for (const auto& [name, parameter] : unique_parameters(model)) all[name] = parameter.grad();
  return all;
}

TensorMap numbers_of(const std::string& name, at::ScalarType dtype) {
  const auto model = model_of(name, dtype);
  return numbers(*model, model->loss(sample_data().make_batch(name, kDraw)));
}

// As one would write it without any parts.
at::Tensor ordinary_loss(const Model& model, const Batch& batch) {
  const auto of = [&](const std::string& name) { return model.named_parameters()[name]; };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return F::layer_norm(
        x, F::LayerNormFuncOptions({16}).weight(of(name + ".weight")).bias(of(name + ".bias")));
  };
  at::Tensor x = F::embedding(batch.input, of("token.weight")) + of("position");
  const auto packed =
      at::linear(norm(x, "attention_norm"), of("qkv.weight"), of("qkv.bias")).view({2, 8, 16, 4});
  const auto queries = packed.narrow(2, 0, 8).transpose(1, 2);
  const auto keys = packed.narrow(2, 8, 4).transpose(1, 2).repeat_interleave(2, 1);
  const auto values = packed.narrow(2, 12, 4).transpose(1, 2).repeat_interleave(2, 1);
  const auto future = at::ones({8, 8}, at::kBool).triu(1);
  const auto scores = (queries.matmul(keys.transpose(2, 3)) / 2).masked_fill(future, -INFINITY);
  const auto mixed = F::softmax(scores, F::SoftmaxFuncOptions(-1)).matmul(values);
  x = x + at::linear(mixed.transpose(1, 2).reshape({2, 8, 32}), of("projection.weight"),
                     of("projection.bias"));
  const auto scaled = x * (x.square().mean(-1, true) + 1e-5).rsqrt() * of("mlp_norm.weight");
  const auto gate_up = at::linear(scaled, of("gate_up.weight"));
  x = x + at::linear(F::silu(gate_up.narrow(2, 0, 24)) * gate_up.narrow(2, 24, 24),
                     of("down.weight"), of("down.bias"));
  return F::cross_entropy(at::linear(norm(x, "norm"), of("token.weight")).view({16, 64}),
                          batch.target.flatten());
}

TEST(Gated, OfOnePartIsTheOrdinaryComputation) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const auto model = model_of("gated", dtype);
    const auto ordinary = ordinary_loss(*model, sample_data().make_batch("gated", kDraw));
    EXPECT_TRUE(same_bits(numbers(*model, ordinary), numbers_of("gated", dtype)));
  }
}

// What parts change is roundings of fp64, far below one of fp32.
TEST(Gated, OfSeveralPartsIsTheSameInMoreBits) {
  const auto whole = numbers_of("gated", at::kDouble);
  for (const char* name : {"gated2", "gated4"}) {
    const auto parts = numbers_of(name, at::kDouble);
    ASSERT_EQ(parts.size(), whole.size());
    for (const auto& [of, want] : whole) {
      const auto got = parts.at(of);
      EXPECT_EQ(got.scalar_type(), at::kDouble) << of;
      const double size = want.abs().max().item<double>();
      EXPECT_LE((got - want).abs().max().item<double>(), 0x1p-24 * size) << name << " " << of;
    }
  }
}

TEST(Gated, AnotherNumberOfPartsGivesOtherBits) {
  const auto one = numbers_of("gated", at::kFloat), two = numbers_of("gated2", at::kFloat),
             four = numbers_of("gated4", at::kFloat);
  for (const char* name : {"token.weight", "qkv.weight", "attention_norm.weight", "down.bias"}) {
    EXPECT_FALSE(same_bits(two.at(name), one.at(name))) << name;
    EXPECT_FALSE(same_bits(four.at(name), two.at(name))) << name;
  }
}

TEST(Gated, HasEqualValuesInAnyNumberOfParts) {
  const auto one = unique_parameters(*make_model("gated", 7));
  const auto four = unique_parameters(*make_model("gated4", 7));
  ASSERT_EQ(one.size(), four.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].first, four[i].first);
    EXPECT_TRUE(same_bits(one[i].second, four[i].second));
  }
}

TEST(Cut, TakesItsPieceOfEverySegment) {
  const Cut cut{.dimension = 0, .segments = {4, 4}};
  const auto whole = at::arange(8);
  EXPECT_TRUE(at::equal(cut_out(whole, cut, 0, 2), at::tensor({0, 1, 4, 5}, at::kLong)));
  EXPECT_TRUE(at::equal(cut_out(whole, cut, 1, 2), at::tensor({2, 3, 6, 7}, at::kLong)));
  EXPECT_TRUE(at::equal(cut_out(whole.view({1, 8}), {1, {8}}, 3, 4),
                        at::tensor({6, 7}, at::kLong).view({1, 2})));
  EXPECT_THROW(cut_out(whole, cut, 0, 3), c10::Error);
}

TEST(Cut, IsOfParametersThatAreThere) {
  EXPECT_TRUE(cuts_of("gated").empty());
  EXPECT_TRUE(cuts_of("gpt").empty());
  EXPECT_EQ(parts_of("gated4"), 4);
  const auto named = make_model("gated2", 1)->named_parameters();
  for (const auto& [name, cut] : cuts_of("gated2")) {
    ASSERT_TRUE(named.contains(name)) << name;
    int64_t size = 0;
    for (const int64_t segment : cut.segments) size += segment;
    EXPECT_EQ(named[name].size(cut.dimension), size) << name;
  }
}

}  // namespace
}  // namespace equigrad::reference
