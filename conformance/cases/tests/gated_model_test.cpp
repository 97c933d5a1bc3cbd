// The gated network: of one part it is the ordinary computation, of several the same numbers in
// other sums.
#include "conformance/cases/gated_model.hpp"

#include <gmock/gmock.h>
#include <torch/nn/functional.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "conformance/cases/linear_model.hpp"
#include "conformance/cases/model_parts.hpp"
#include "conformance/testing/bits_matcher.hpp"

namespace equigrad::conformance {
namespace {

namespace F = torch::nn::functional;
using oracle::HasTheBitsOf;
using reference::Batch;
using reference::Model;
using reference::unique_parameters;
using ::testing::Not;
using TensorMap = std::map<std::string, at::Tensor>;

const reference::Draw kDraw{.seed = 3, .step = 1, .rank = 0, .micro_batch = 0};

std::shared_ptr<Model> model_of(const std::string& name, at::ScalarType dtype) {
  auto model = make_case_model(name, 5);
  model->to(dtype);
  return model;
}

const reference::Data& sample_data() {
  static const reference::Data data = [] {
    std::string text;
    for (uint64_t i = 0; i < 1009; ++i) text += static_cast<char>(32 + reference::hash(i) % 91);
    return reference::Data(text);
  }();
  return data;
}

void expect_same_bits(const TensorMap& got, const TensorMap& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) EXPECT_THAT(got.at(name), HasTheBitsOf(values)) << name;
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
  return numbers(*model, model->loss(make_case_batch(sample_data(), name, kDraw)));
}

// As one would write it without any parts.
at::Tensor ordinary_loss(const Model& model, const Batch& batch) {
  const auto of = [&](std::string name) {
    const bool is_outside =
        name == "token.weight" || name == "position" || name.starts_with("norm");
    if (!is_outside) name = "block0." + name;
    return model.named_parameters()[name];
  };
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
    const auto ordinary = ordinary_loss(*model, make_case_batch(sample_data(), "gated", kDraw));
    expect_same_bits(numbers(*model, ordinary), numbers_of("gated", dtype));
  }
}

// What parts change is roundings of fp64, far below one of fp32.
TEST(Gated, OfSeveralPartsIsTheSameInMoreBits) {
  const auto whole = numbers_of("gated", at::kDouble);
  for (const char* name : {"gated2", "gated4", "gated2x2"}) {
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
  for (const char* name :
       {"token.weight", "block0.qkv.weight", "block0.attention_norm.weight", "block0.down.bias"}) {
    EXPECT_THAT(two.at(name), Not(HasTheBitsOf(one.at(name)))) << name;
    EXPECT_THAT(four.at(name), Not(HasTheBitsOf(two.at(name)))) << name;
  }
}

GatedSizes mesh_sizes(int64_t tensor, int64_t sequence) {
  return {.tensor = tensor,
          .sequence = sequence,
          .vocabulary = 20,
          .context = 12,
          .features = 7,
          .hidden = 12,
          .heads = 8,
          .key_heads = 4,
          .width = 3,
          .layers = 2,
          .is_tied = false,
          .splits_loss = sequence == 2,
          .shifts_labels = true,
          .has_padding = true,
          .has_spare = true,
          .frozen = "block1.qkv"};
}

// The loss and the sum of the gradients of all parts of the sequence, each asked for alone.
TensorMap sums_of_parts(const GatedSizes& sizes, const Batch& batch) {
  TensorMap sums;
  for (int64_t part = 0; part < sizes.sequence; ++part) {
    const auto model = make_gated(sizes, 5);
    model->to(at::kDouble);
    take_part(*model, part);
    for (const auto& [of, values] : numbers(*model, model->loss(batch))) {
      auto& sum = sums[of];
      if (of == "loss" && sum.defined())
        EXPECT_THAT(values, HasTheBitsOf(sum)) << "of part " << part;
      else if (values.defined())
        sum = sum.defined() ? sum + values : values;
    }
  }
  return sums;
}

TEST(Gated, OfAnyMeshIsTheSameInMoreBits) {
  const auto tokens = (at::arange(24).view({2, 12}) * 7 + 3).remainder(20);
  const Batch batch{tokens, tokens.masked_fill(tokens.remainder(3).eq(0), kUncounted)};
  const auto whole = sums_of_parts(mesh_sizes(1, 1), batch);
  for (const auto& [tensor, sequence] : {std::pair{2, 1}, {4, 1}, {1, 2}, {1, 4}, {2, 2}, {2, 4}})
    for (const auto& [of, sum] : sums_of_parts(mesh_sizes(tensor, sequence), batch)) {
      const auto& want = whole.at(of);
      ASSERT_EQ(sum.defined(), want.defined()) << of;
      EXPECT_EQ(sum.defined(),
                of.find("block1.qkv") == std::string::npos && of.find("spare") == std::string::npos)
          << of;
      if (!want.defined()) continue;
      const double size = want.abs().max().item<double>();
      EXPECT_LE((sum - want).abs().max().item<double>(), 0x1p-24 * size)
          << of << " of " << sequence << " x " << tensor;
    }
}

TEST(Gated, DependsOnTheSeedAndNothingIsWhatMistakesHideIn) {
  const auto model = unique_parameters(*make_case_model("gated", 7));
  const auto other = unique_parameters(*make_case_model("gated", 8));
  int64_t numel = 0;
  for (size_t i = 0; i < model.size(); ++i) {
    numel += model[i].second.numel();
    EXPECT_THAT(model[i].second, Not(HasTheBitsOf(other[i].second))) << model[i].first;
    EXPECT_FALSE(model[i].second.eq(0).any().item<bool>()) << model[i].first;
    EXPECT_FALSE(model[i].second.eq(1).any().item<bool>()) << model[i].first;
  }
  EXPECT_EQ(numel, 4016);
}

TEST(Gated, ThroughTheOutputGradientsAreThoseOfTheLoss) {
  for (const char* name : {"gated", "gated2", "gated4", "gated2x2", "dropout2"}) {
    const auto model = model_of(name, at::kFloat);
    const auto batch = make_case_batch(sample_data(), name, kDraw);
    const auto output = model->output(batch);
    const auto leaf = output.detach().requires_grad_();
    const auto loss = model->criterion(leaf, batch);
    loss.backward();
    output.backward(leaf.grad());
    for (const auto& [of, want] : numbers_of(name, at::kFloat)) {
      const auto got = of == "loss" ? loss.detach() : model->named_parameters()[of].grad();
      EXPECT_THAT(got, HasTheBitsOf(want)) << name << " " << of;
    }
  }
}

TEST(Gated, HasEqualValuesInAnyNumberOfParts) {
  const auto one = unique_parameters(*make_case_model("gated", 7));
  const auto four = unique_parameters(*make_case_model("gated4", 7));
  ASSERT_EQ(one.size(), four.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].first, four[i].first);
    EXPECT_THAT(one[i].second, HasTheBitsOf(four[i].second));
  }
}

// As on a rank that computes it alone: products of matrices of MKL have other bits where an operand
// is aligned otherwise.
TEST(Parts, HaveGradientsThatBeginAsATensorOfTheirOwnDoes) {
  using Parts = std::vector<at::Tensor>;
  constexpr std::uintptr_t kAlignment = 64;  // of c10's allocator
  const std::vector<std::function<at::Tensor(const Parts&)>> joined = {
      stack_of_parts, sum_of_parts,
      [](const Parts& parts) { return put_together(parts, {.dimension = 0, .segments = {15}}); }};
  for (std::size_t way = 0; way < joined.size(); ++way) {
    Parts parts;
    int seen = 0;
    for (int i = 0; i < 3; ++i) {
      parts.push_back(at::ones({5}).requires_grad_());
      parts.back().register_hook([&seen, way](const at::Tensor& gradient) {
        const auto address = reinterpret_cast<std::uintptr_t>(gradient.const_data_ptr());
        EXPECT_EQ(address % kAlignment, 0u) << way;
        ++seen;
      });
    }
    const auto whole = joined[way](parts);
    whole.backward(at::ones_like(whole));
    EXPECT_EQ(seen, 3);
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
  const auto model = make_gated(mesh_sizes(2, 2), 1);
  const auto named = model->named_parameters();
  EXPECT_EQ(cuts_of("gated2").size(), 6);
  for (const auto& [name, cut] : cuts_of(mesh_sizes(2, 2))) {
    ASSERT_TRUE(named.contains(name)) << name;
    int64_t size = 0;
    for (const int64_t segment : cut.segments) size += segment;
    EXPECT_EQ(named[name].size(cut.dimension), size) << name;
  }
}

}  // namespace
}  // namespace equigrad::conformance
