// The network of split sequences: of one part it is the ordinary computation, of several the same
// numbers in other sums, of which every part's are those that its rank has.
#include "conformance/cases/sequence_model.hpp"

#include <gmock/gmock.h>
#include <torch/nn/functional.h>
#include <torch/types.h>

#include <map>
#include <set>
#include <string>

#include "conformance/cases/linear_model.hpp"
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

Batch batch_of(int64_t rank = 0) {
  static const reference::Data data = [] {
    std::string text;
    for (uint64_t i = 0; i < 1009; ++i) text += static_cast<char>(32 + reference::hash(i) % 91);
    return reference::Data(text);
  }();
  return make_case_batch(data, "ulysses", {.seed = 3, .step = 1, .rank = rank, .micro_batch = 0});
}

std::shared_ptr<Model> model_of(const std::string& name, at::ScalarType dtype) {
  auto model = make_case_model(name, 5);
  model->to(dtype);
  return model;
}

// The loss and every gradient; of one part, where it is not -1.
TensorMap numbers_of(const std::string& name, at::ScalarType dtype, int64_t part = -1) {
  const auto model = model_of(name, dtype);
  take_part(*model, part);
  const auto loss = model->loss(batch_of());
  loss.backward();
  TensorMap all = {{"loss", loss.detach()}};
  for (const auto& [of, parameter] : unique_parameters(*model)) all[of] = parameter.grad();
  return all;
}

double size_of(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }

// As one would write it of whole sequences.
at::Tensor ordinary_loss(const Model& model, const Batch& batch) {
  const auto of = [&](const std::string& name) { return model.named_parameters()[name]; };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return F::layer_norm(
        x, F::LayerNormFuncOptions({16}).weight(of(name + ".weight")).bias(of(name + ".bias")));
  };
  const auto place = at::arange(16);
  const auto later = place.unsqueeze(0) > place.unsqueeze(1);
  const auto padding = batch.input.remainder(4).eq(0).view({2, 1, 1, 16});
  const auto hidden = later | (padding & place.unsqueeze(0).ne(place.unsqueeze(1)));
  at::Tensor x = F::embedding(batch.input, of("token.weight")) + of("place.weight").unsqueeze(0);
  for (const std::string block : {"first", "second"}) {
    const auto packed =
        at::linear(norm(x, block + ".norm"), of(block + ".qkv.weight"), of(block + ".qkv.bias"));
    const int64_t heads = (packed.size(2) / 4 - 8) / 2;
    const auto split = packed.view({2, 16, 8 + 2 * heads, 4}).transpose(1, 2);
    const auto keys = split.narrow(1, 8, heads).repeat_interleave(8 / heads, 1);
    const auto values = split.narrow(1, 8 + heads, heads).repeat_interleave(8 / heads, 1);
    const auto scores = split.narrow(1, 0, 8).matmul(keys.transpose(2, 3)) / 2;
    const auto mixed =
        F::softmax(scores.masked_fill(hidden, -INFINITY), F::SoftmaxFuncOptions(-1)).matmul(values);
    x = x + at::linear(mixed.transpose(1, 2).reshape({2, 16, 32}), of(block + ".projection.weight"),
                       of(block + ".projection.bias"));
  }
  const auto logits = at::linear(norm(x, "norm"), of("token.weight"));
  return F::cross_entropy(logits.narrow(1, 0, 15).reshape({30, 64}),
                          batch.target.narrow(1, 1, 15).flatten());
}

// Of fp64 the roundings of another order are far below one of fp32.
void expect_nearly_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  EXPECT_EQ(got.scalar_type(), at::kDouble) << what;
  EXPECT_LE(size_of(got - want), 0x1p-24 * size_of(want)) << what;
}

TEST(SequenceModel, OfAnyNumberOfPartsIsTheOrdinaryComputation) {
  const auto model = model_of("ulysses", at::kDouble);
  const auto loss = ordinary_loss(*model, batch_of());
  loss.backward();
  for (const std::string name : {"ulysses", "ulysses2", "ulysses4"}) {
    auto parts = numbers_of(name, at::kDouble);
    expect_nearly_equal(parts.at("loss"), loss.detach(), name);
    for (const auto& [of, parameter] : unique_parameters(*model))
      expect_nearly_equal(parts.at(of), parameter.grad(), name + " " + of);
  }
}

TEST(SequenceModel, GradientsOfThePartsAddUpToAll) {
  for (const std::string name : {"ulysses2", "ulysses4"}) {
    const auto all = numbers_of(name, at::kDouble);
    TensorMap sums;
    for (int64_t part = 0; part < sequence_parts_of(name); ++part)
      for (const auto& [of, values] : numbers_of(name, at::kDouble, part)) {
        if (of == "loss")
          EXPECT_THAT(values, HasTheBitsOf(all.at(of)));
        else
          sums[of] = sums[of].defined() ? sums[of] + values : values;
      }
    for (const auto& [of, sum] : sums) expect_nearly_equal(sum, all.at(of), name + " " + of);
  }
}

// Of every type: whose gradients are asked for changes no bit of what is computed.
TEST(SequenceModel, TheLossIsTheSameWhoeverAsksForGradients) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const std::string name : {"ulysses2", "ulysses4"}) {
      const auto loss = numbers_of(name, dtype).at("loss");
      for (int64_t part = 0; part < sequence_parts_of(name); ++part)
        EXPECT_THAT(numbers_of(name, dtype, part).at("loss"), HasTheBitsOf(loss)) << name << dtype;
    }
}

TEST(SequenceModel, APartHasItsOwnPlacesAndNoOthers) {
  const auto second = numbers_of("ulysses2", at::kFloat, 1).at("place.weight");
  EXPECT_EQ(size_of(second.narrow(0, 0, 8)), 0);
  // Nothing is asked of the last one, and nobody else sees it.
  EXPECT_EQ(second.narrow(0, 8, 8).abs().amax(1).gt(0).sum().item<int64_t>(), 7);
}

TEST(SequenceModel, AnotherNumberOfPartsGivesOtherBits) {
  const auto one = numbers_of("ulysses", at::kFloat), two = numbers_of("ulysses2", at::kFloat),
             four = numbers_of("ulysses4", at::kFloat);
  for (const char* name : {"token.weight", "first.qkv.weight", "norm.weight"}) {
    EXPECT_THAT(two.at(name), Not(HasTheBitsOf(one.at(name)))) << name;
    EXPECT_THAT(four.at(name), Not(HasTheBitsOf(two.at(name)))) << name;
  }
}

TEST(SequenceModel, InEveryPartAnotherNumberOfLabelsCounts) {
  for (int64_t rank = 0; rank < 4; ++rank) {
    const auto counts = batch_of(rank).target.ne(kUncounted).slice(1, 1);
    std::set<int64_t> seen;
    for (const int64_t half : {0, 1})
      seen.insert(counts.slice(1, 8 * half, 8 * half + 8).sum().item<int64_t>());
    EXPECT_EQ(seen.size(), 2u);
    EXPECT_GT(*seen.begin(), 0);
  }
}

TEST(SequenceModel, ThroughTheOutputGradientsAreThoseOfTheLoss) {
  for (const char* name : {"ulysses", "ulysses2", "ulysses4"}) {
    const auto model = model_of(name, at::kFloat);
    const auto output = model->output(batch_of());
    const auto leaf = output.detach().requires_grad_();
    const auto loss = model->criterion(leaf, batch_of());
    loss.backward();
    output.backward(leaf.grad());
    for (const auto& [of, want] : numbers_of(name, at::kFloat)) {
      const auto got = of == "loss" ? loss.detach() : model->named_parameters()[of].grad();
      EXPECT_THAT(got, HasTheBitsOf(want)) << name << " " << of;
    }
  }
}

TEST(SequenceModel, HasEqualValuesInAnyNumberOfPartsAndOthersOfAnotherSeed) {
  const auto one = unique_parameters(*make_case_model("ulysses", 7));
  const auto four = unique_parameters(*make_case_model("ulysses4", 7));
  const auto other = unique_parameters(*make_case_model("ulysses", 8));
  ASSERT_EQ(one.size(), four.size());
  int64_t numel = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].first, four[i].first);
    EXPECT_THAT(one[i].second, HasTheBitsOf(four[i].second));
    EXPECT_THAT(one[i].second, Not(HasTheBitsOf(other[i].second))) << one[i].first;
    EXPECT_FALSE(one[i].second.eq(0).any().item<bool>()) << one[i].first;
    numel += one[i].second.numel();
  }
  EXPECT_EQ(numel, 4200);
}

TEST(SequenceModel, NamesSayHowManyRanksShareASequence) {
  EXPECT_EQ(sequence_parts_of("ulysses"), 1);
  EXPECT_EQ(sequence_parts_of("ulysses2"), 2);
  EXPECT_EQ(sequence_parts_of("ulysses4"), 4);
  EXPECT_EQ(sequence_parts_of("gated4"), 1);
  EXPECT_FALSE(is_sequence("ulysses3"));
}

}  // namespace
}  // namespace equigrad::conformance
